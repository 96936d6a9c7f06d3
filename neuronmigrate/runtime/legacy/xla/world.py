"""Ranks, and the collectives that everything else is made of: an all-gather over gloo."""

from __future__ import annotations

import atexit
import contextlib
import datetime
import functools
import os
from collections.abc import Iterator, Sequence

import torch
from torch.distributed import ProcessGroupGloo
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from neuronmigrate.runtime.legacy.session import LegacyProblem, current


def size() -> int:
    """Processes of the run, told by the launcher; one without a launcher."""
    return _number("WORLD_SIZE", 1)


def rank() -> int:
    """Number of this process among all."""
    return _number("RANK", 0)


def local_rank() -> int:
    """Number of this process on its host."""
    return _number("LOCAL_RANK", rank())


def local_size() -> int:
    """Processes on this host."""
    return _number("LOCAL_WORLD_SIZE", size())


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    try:
        return int(text) if text else default
    except ValueError:
        raise LegacyProblem(f"the environment variable {variable} is {text!r}, which is no number") from None


@functools.lru_cache(maxsize=1)
def _group() -> ProcessGroupGloo:
    """A group of our own, since torch_xla's collectives need no `init_process_group`."""
    if "MASTER_ADDR" not in os.environ:
        raise LegacyProblem(
            f"WORLD_SIZE is {size()}, but there is no MASTER_ADDR to meet at; start the script with torchrun"
        )
    store, here, everybody = next(iter(rendezvous("env://")))
    # A group that is left to the end of the interpreter may abort it.
    atexit.register(_group.cache_clear)
    prefixed = PrefixStore("neuronmigrate_legacy_xla", store)
    return ProcessGroupGloo(prefixed, here, everybody, datetime.timedelta(minutes=10))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """What is done inside is not the script's."""
    session = current()
    before, session.quiet = session.quiet, True
    try:
        yield
    finally:
        session.quiet = before


@quiet()
def gather(value: torch.Tensor) -> list[torch.Tensor]:
    """This tensor of every process, in the order of ranks; all must have one shape and dtype."""
    if size() == 1:
        return [value.detach().clone()]
    sent = value.detach().contiguous()
    parts = [torch.empty_like(sent) for _ in range(size())]
    _group().allgather([parts], [sent]).wait()  # type: ignore[attr-defined]  # its stub lacks the base
    return parts


@quiet()
def gather_bytes(payload: bytes) -> list[bytes]:
    """The payload of every process, in the order of ranks."""
    if size() == 1:
        return [payload]
    lengths = [int(each) for each in gather(torch.tensor([len(payload)]))]
    longest = max(lengths)
    if longest == 0:
        return [b""] * size()
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: len(payload)] = torch.tensor(list(payload), dtype=torch.uint8)
    return [bytes(part[:length].tolist()) for part, length in zip(gather(padded), lengths, strict=True)]


def members(groups: Sequence[Sequence[int]] | None) -> list[int]:
    """The ranks of the replica group that this process is in; all ranks without groups."""
    for group in groups or ():
        if rank() in group:
            return list(group)
    return list(range(size()))


def of_group(parts: Sequence[torch.Tensor], groups: Sequence[Sequence[int]] | None) -> list[torch.Tensor]:
    """Of what all processes sent, what came from this one's replica group."""
    return [parts[number] for number in members(groups)]

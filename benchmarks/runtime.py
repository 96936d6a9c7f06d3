"""What the emulated device costs: its time over the CPU's for a Llama of 23 M parameters and a toy.

    python benchmarks/runtime.py [--repeats 7] [--import-repeats 5]

CPU and device run in turn in one process, on one thread; what counts is the process's CPU time, the best of
the repeats. `import torch` is timed in processes of its own, with the entry point off, and on.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from neuronmigrate.runtime import activate

ROOT = Path(__file__).parents[1]
SIZES: dict[str, dict[str, Any]] = {
    "23 M": {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 5, "vocab_size": 7000},
    "toy": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 100},
}
BATCHES = {"23 M": (4, 128), "toy": (2, 8)}
NEW_TOKENS = 32


def programs(size: str, device: str) -> dict[str, Callable[[], object]]:
    """Forward, training step and greedy generation of one model on one device."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        **SIZES[size], num_attention_heads=4, num_key_value_heads=2, eos_token_id=None, pad_token_id=0
    )
    model: Any = LlamaForCausalLM(config)
    model.to(device)
    ids = torch.randint(config.vocab_size, BATCHES[size]).to(device)
    optimizer = torch.optim.AdamW(model.parameters())

    def forward() -> object:
        with torch.no_grad():
            return model(ids).logits

    def train() -> object:
        loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def generate() -> object:
        return model.generate(ids[:1, :8], max_new_tokens=NEW_TOKENS, do_sample=False)

    return {"forward": forward, "train": train, "generate": generate}


def best(runs: dict[str, Callable[[], object]], repeats: int, calls: int) -> dict[str, float]:
    """Seconds of CPU time a call, the best of the repeats, of functions run in turn."""
    times = dict.fromkeys(runs, float("inf"))
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.process_time()
            for _ in range(calls):
                run()
            times[name] = min(times[name], (time.process_time() - start) / calls)
    return times


def import_times(repeats: int) -> dict[str, float]:
    """Seconds of CPU time of a process that imports torch, with the entry point off and on."""
    with tempfile.TemporaryDirectory() as folder:
        metadata = Path(folder) / "neuronmigrate-0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: neuronmigrate\nVersion: 0\n")
        (metadata / "entry_points.txt").write_text(
            "[torch.backends]\nneuronmigrate = neuronmigrate.runtime.autoload:autoload\n"
        )
        times = dict.fromkeys(("no entry point", "off", "on"), float("inf"))
        for _ in range(repeats):
            for name in times:
                path = [str(ROOT)] if name == "no entry point" else [folder, str(ROOT)]
                variables = {
                    "PYTHONPATH": os.pathsep.join(path),
                    "NEURONMIGRATE_EMULATE": str(int(name == "on")),
                }
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                subprocess.run(
                    [sys.executable, "-c", "import torch"],
                    env={**os.environ, **variables},
                    stderr=subprocess.DEVNULL,
                    check=True,
                )
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                times[name] = min(times[name], spent)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--import-repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(activate(quiet=True).selection.line())
    print("| model | program | CPU, ms | device, ms | times |")
    print("|---|---|---|---|---|")
    for size in SIZES:
        on = {device: programs(size, device) for device in ("cpu", "neuron")}
        for program in on["cpu"]:
            runs = {device: on[device][program] for device in on}
            best(runs, 1, 1)
            times = best(runs, options.repeats, 1 if size == "23 M" else 5)
            cpu, neuron = times["cpu"] * 1e3, times["neuron"] * 1e3
            print(f"| {size} | {program} | {cpu:.1f} | {neuron:.1f} | {neuron / cpu:.2f} |", flush=True)
    if options.import_repeats:
        print("| import torch | CPU time, s |\n|---|---|")
        for name, seconds in import_times(options.import_repeats).items():
            print(f"| {name} | {seconds:.3f} |")


if __name__ == "__main__":
    main()

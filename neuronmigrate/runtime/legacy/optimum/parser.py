"""`NeuronHfArgumentParser`: the parser of transformers, which also checks two fields (`hf_argparser.py`)."""

from __future__ import annotations

import functools
from collections.abc import Callable

from transformers import HfArgumentParser

__all__ = ["NeuronHfArgumentParser", "TrainiumHfArgumentParser"]

Parse = Callable[..., tuple[object, ...]]


class NeuronHfArgumentParser(HfArgumentParser):
    """Its methods raise ValueError where padding to a fixed length is switched off or has no length."""


def _checking(method: Parse) -> Parse:
    @functools.wraps(method)
    def parse(*args: object, **kwargs: object) -> tuple[object, ...]:
        parsed = method(*args, **kwargs)
        for each in parsed:
            if getattr(each, "pad_to_max_length", True) is False:
                raise ValueError("pad_to_max_length=False is not supported: shapes have to stay the same")
            if getattr(each, "max_seq_length", 0) is None:
                raise ValueError("max_seq_length must be specified")
        return parsed

    return parse


for _name in ("parse_args_into_dataclasses", "parse_dict", "parse_json_file", "parse_yaml_file"):
    setattr(NeuronHfArgumentParser, _name, _checking(getattr(HfArgumentParser, _name)))

TrainiumHfArgumentParser = NeuronHfArgumentParser
"""Its name up to 0.0.7."""

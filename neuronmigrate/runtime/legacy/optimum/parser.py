"""`NeuronHfArgumentParser`: the parser of transformers, which also checks two fields (`hf_argparser.py`)."""

from __future__ import annotations

from typing import cast

from transformers import HfArgumentParser

__all__ = ["NeuronHfArgumentParser"]


class NeuronHfArgumentParser(HfArgumentParser):
    """Raises ValueError where padding to a fixed length is switched off or has no length."""

    def parse_args_into_dataclasses(self, *args: object, **kwargs: object) -> tuple[object, ...]:
        """As the parent, and checked."""
        return self._checked(super().parse_args_into_dataclasses(*args, **kwargs))  # type: ignore[arg-type]

    def parse_json_file(self, *args: object, **kwargs: object) -> tuple[object, ...]:
        """As the parent, and checked."""
        return self._checked(super().parse_json_file(*args, **kwargs))  # type: ignore[arg-type]

    def parse_dict(self, *args: object, **kwargs: object) -> tuple[object, ...]:
        """As the parent, and checked."""
        return self._checked(super().parse_dict(*args, **kwargs))  # type: ignore[arg-type]

    def parse_yaml_file(self, *args: object, **kwargs: object) -> tuple[object, ...]:
        """As the parent, and checked."""
        return self._checked(super().parse_yaml_file(*args, **kwargs))  # type: ignore[arg-type]

    @staticmethod
    def _checked(found: object) -> tuple[object, ...]:
        parsed = cast("tuple[object, ...]", found)
        for each in parsed:
            if getattr(each, "pad_to_max_length", True) is False:
                raise ValueError("pad_to_max_length=False is not supported: shapes have to stay the same")
            if getattr(each, "max_seq_length", 0) is None:
                raise ValueError("max_seq_length must be specified")
        return parsed

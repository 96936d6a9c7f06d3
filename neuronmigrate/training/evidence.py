"""What the names in a file tell of the release of optimum-neuron that it was written for.

Where no requirement file names a release, the newest would be assumed, also for a script that imports
`lazy_load_for_parallelism`, which 0.2.1 has not any more. The defaults of training changed with the releases,
so the newest release that has all names of a file is a better guess.
"""

from __future__ import annotations

from dataclasses import dataclass

from neuronmigrate import catalogue
from neuronmigrate.site import Site

# Keywords of constructors by the last release that took them, where the catalogue does not say so: fields of
# trl 0.11, and those that NeuronTrainingArguments of 0.4.0, a class of its own, has not.
_LAST = {
    "max_seq_length": "0.4.1",
    "eval_dataset": "0.3.0",  # 0.4.0 refuses one that is not None
    **dict.fromkeys(
        [
            "data_seed",
            "ddp_backend",
            "deepspeed",
            "eval_accumulation_steps",
            "evaluation_strategy",
            "fp16",
            "fsdp",
            "group_by_length",
            "hub_model_id",
            "hub_strategy",
            "hub_token",
            "load_best_model_at_end",
            "metric_for_best_model",
            "no_cuda",
            "predict_with_generate",
            "push_to_hub",
            "save_safetensors",
        ],
        "0.3.0",
    ),
}
_OWN_ARGUMENTS = ("NeuronTrainingArguments", "NeuronTrainer", "Seq2SeqNeuronTrainingArguments")


@dataclass(frozen=True)
class Evidence:
    """The newest release that has everything a file uses."""

    release: str
    name: str
    """What the next release has not any more."""


def newest(site: Site, limit: str) -> Evidence | None:
    """What a file tells of its release; None when nothing speaks against `limit`, the release assumed."""
    from packaging.version import Version

    found: Evidence | None = None
    for use in site.uses:
        entry = catalogue.lookup(use.claim) or catalogue.lookup(use.name)
        told = [(use.name.rpartition(".")[2] if entry is None else entry.name, entry.last if entry else "")]
        short = use.claim.rpartition(".")[2]
        for arg in use.call.args if use.call is not None and not use.method else ():
            if arg.keyword is None:
                continue
            name = arg.keyword.value
            known = catalogue.arguments(use.claim).get(name)
            last = known.last if known is not None and known.last else ""
            own = short in _OWN_ARGUMENTS or (name == "max_seq_length" and short == "NeuronSFTConfig")
            if own and last in ("", "main"):
                last = _LAST.get(name, "")
            told.append((f"{name}=", last))
        for name, last in told:
            if last and last != "main" and Version(last) < Version(found.release if found else limit):
                found = Evidence(last, name.rpartition(".")[2])
    return found

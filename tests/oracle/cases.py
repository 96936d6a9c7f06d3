"""What is recorded, from which script, and what the recording may be compared with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

FIXTURES = Path(__file__).resolve().parent.parent.parent / "fixtures"
RECORDINGS = Path(__file__).resolve().parent / "recordings"


@dataclass(frozen=True)
class Case:
    """One legacy script in one environment."""

    kind: str
    """`xla` or `stand_ins`, as in environment.py."""
    before: str
    """Path of the script below `fixtures`."""
    after: str
    """Its migrated side."""
    arguments: tuple[str, ...] = ()
    processes: int = 1
    release: str = "0.4.5"
    model: Literal["", "classifier", "chat"] = ""
    """Which tiny model it reads from MODEL_DIR, if any."""
    relative: float = 1e-5
    """Tolerance of floats: another torch, another order of sums."""
    absolute: float = 1e-7
    left_out: tuple[str, ...] = ()
    """Globals that need not agree, with the reason beside the case."""

    @property
    def name(self) -> str:
        """Name of the recording."""
        return self.before.removesuffix(".py").replace("/before/", "/").replace("/", ".")

    @property
    def recording(self) -> Path:
        """The json file; tensors stand beside it."""
        return RECORDINGS / self.kind / f"{self.name}.json"

    @property
    def whole(self) -> Path:
        """The folder of one of WHOLE."""
        return RECORDINGS / "whole" / self.name


TEXTS = ("a fine film", "this long film was dull")

CASES = (
    Case("xla", "lazy_step/training.before.py", "lazy_step/training.after.py"),
    Case("xla", "xla_device/forward.before.py", "xla_device/forward.after.py"),
    # torch_xla on a CPU makes a world of its own of each process: only what gloo brings together agrees.
    Case("xla", "rendezvous/torchrun.before.py", "rendezvous/torchrun.after.py", processes=2),
    Case(
        "xla",
        "scripts/mnist_torchrun/before/train.py",
        "scripts/mnist_torchrun/after/train.py",
        ("--epochs", "1", "--output", "{folder}"),
        relative=1e-6,
    ),
    Case("xla", "device_loaders/training.before.py", "device_loaders/training.after.py"),
    Case("xla", "gradient_checkpointing/training.before.py", "gradient_checkpointing/training.after.py"),
    Case("xla", "step_closures/training.before.py", "step_closures/training.after.py"),
    # The file it writes has the number of a process in its name.
    Case(
        "stand_ins",
        "checkpoints/torchrun.before.py",
        "checkpoints/torchrun.after.py",
        processes=2,
        left_out=("path",),
    ),
    Case("stand_ins", "collectives/torchrun.before.py", "collectives/torchrun.after.py", processes=2),
    Case("stand_ins", "optimizer_step/torchrun.before.py", "optimizer_step/torchrun.after.py", processes=2),
    Case("stand_ins", "rank_queries/torchrun.before.py", "rank_queries/torchrun.after.py", processes=2),
    Case("stand_ins", "rendezvous/torchrun.before.py", "rendezvous/torchrun.after.py", processes=2),
    Case("stand_ins", "traced_models/forward.before.py", "traced_models/forward.after.py"),
    # A head that the checkpoint lacks is drawn by each version of transformers in its own way.
    Case(
        "stand_ins",
        "traced_models/families.before.py",
        "traced_models/families.after.py",
        left_out=("answer", "start", "end", "tags", "choice"),
    ),
    Case(
        "stand_ins",
        "scripts/classify/before/classify.py",
        "scripts/classify/after/classify.py",
        TEXTS,
        model="classifier",
    ),
    # The compiler cast matrix products to bfloat16; the migrated side holds bfloat16 weights.
    Case(
        "stand_ins",
        "scripts/sentiment_service/before/app.py",
        "scripts/sentiment_service/after/app.py",
        ("--once", *TEXTS, "good"),
        release="0.0.28",
        model="classifier",
        absolute=2e-2,
    ),
    Case(
        "stand_ins",
        "scripts/mnist_torchrun/before/train.py",
        "scripts/mnist_torchrun/after/train.py",
        ("--epochs", "1", "--output", "{folder}"),
        relative=1e-4,
    ),
    Case(
        "stand_ins",
        "scripts/accelerate_loop/before/train.py",
        "scripts/accelerate_loop/after/train.py",
        ("--output_dir", "{folder}/out"),
        model="classifier",
        relative=1e-4,
    ),
    # The class of 0.3.0, which the script's requirements name, could not train. Losses are logged with four
    # digits, and each version of trl takes the logarithms in its own way.
    Case(
        "stand_ins",
        "scripts/orpo/before/align.py",
        "scripts/orpo/after/align.py",
        ("--output_dir", "{folder}/out"),
        release="0.0.28",
        model="chat",
        absolute=2e-4,
    ),
)
"""rank_queries is not among those of `xla`: there each process is the first of one, and nothing agrees."""


PAIRS = (
    # Run in this order in one process, in which a group has to stand before the device is used.
    Case("xla", "process_group/pair_06.before.py", "process_group/pair_06.after.py"),
    # XLA kept more digits between the product and the read than bfloat16 has.
    Case("xla", "mixed_precision/pair_15.before.py", "mixed_precision/pair_15.after.py", absolute=4e-3),
    *(
        Case("xla", f"{fixture}.before.py", f"{fixture}.after.py")
        for fixture in (
            "checkpoints/pair_11",
            "collectives/pair_13",
            "device_loaders/pair_09",
            "gradient_checkpointing/pair_20",
            "lazy_step/pair_02",
            "lazy_step/pair_03",
            "optimizer_step/pair_10",
            "optimizer_step/pair_10b",
            "profiling/pair_22",
            "random_state/pair_21",
            "rank_queries/pair_04",
            "rank_queries/pair_05",
            "rendezvous/pair_07",
            "rendezvous/pair_08",
            "spawned_processes/pair_12",
            "step_closures/pair_14",
            "xla_device/pair_01",
        )
    ),
)
"""The worked pairs whose before side runs under torch_xla on a CPU, as one process."""


WHOLE = (
    Case(
        "stand_ins",
        "scripts/weighted_loss/before/train.py",
        "scripts/weighted_loss/after/train.py",
        release="0.0.27",
        model="classifier",
    ),
    Case(
        "stand_ins",
        "scripts/train_language_model/before/train.py",
        "scripts/train_language_model/after/train.py",
        (
            *("--model_id", "model", "--output_dir", "out", "--do_train", "--max_steps", "6"),
            *("--per_device_train_batch_size", "2", "--learning_rate", "1e-3", "--logging_steps", "1"),
            *("--save_strategy", "no", "--report_to", "none"),
        ),
        release="0.0.28",
        model="chat",
    ),
)
"""Old sides that need a transformers of their time, recorded by the recorder of `neuronmigrate.parity`:
batches, losses, gradients, weights, events. Each runs in a fresh folder that holds its model as `model`."""

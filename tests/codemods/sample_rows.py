"""Rows that tests use to see imports and references settled, whatever the real codemods do."""

from __future__ import annotations

from neuronmigrate.codemod import Call, Codemod, Drop, Manual, Rename

codemod = Codemod(__name__)

codemod.symbol(
    "neuronx_distributed.sample.Old",
    Rename("transformers.Trainer"),
    because="it has another name",
)
codemod.symbol(
    "neuronx_distributed.sample.OldArguments",
    Rename("transformers.TrainingArguments"),
    because="it has another name",
    todo="look at the defaults",
)
codemod.symbol(
    "neuronx_distributed.sample.count",
    Call("torch.accelerator.device_count()", args=("verbose",), dropped=("verbose",)),
    because="torch counts devices",
)
codemod.symbol(
    "neuronx_distributed.sample.double",
    Call("torch.mul({tensor}, 2)", args=("tensor",)),
    because="torch multiplies",
)
codemod.symbol(
    "neuronx_distributed.sample.flush",
    Drop(),
    because="nothing is pending",
)
codemod.symbol(
    "neuronx_distributed.sample.lost",
    Manual(),
    because="it has no counterpart",
    todo="write it by hand",
)

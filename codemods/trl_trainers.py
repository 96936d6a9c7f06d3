"""SFT and ORPO of Optimum Neuron: `NeuronSFTTrainer`, `NeuronORPOTrainer` and their configurations.

They become TRL's own `SFTTrainer` and `ORPOTrainer`, rewritten as one unit with arguments, parser and model.
`NeuronSFTConfig` took the defaults of the training arguments, not those of TRL's SFTConfig, so they are
written out; what comes out of `**training_args.to_dict()` keeps its own. Up to 0.4.1 the words were those of
trl 0.11 (`max_seq_length`, `tokenizer`, a `formatting_func` for batches), from 0.4.2 on those of trl 0.24;
natively they are those of trl 1.16. A `formatting_func` for batches becomes a map over the dataset. What the
old trainers did by mistake, or TRL does otherwise since, is said.

`DataCollatorForCompletionOnlyLM` is gone from TRL: a collator of the script that masks the same labels takes
its place. Other names of TRL that are gone are marked.
"""

from __future__ import annotations

import libcst as cst

from neuronmigrate import targets
from neuronmigrate.codemod import Codemod
from neuronmigrate.names import Binding
from neuronmigrate.site import Group, Site
from neuronmigrate.training import deciding
from neuronmigrate.training.kinds import ARGUMENTS, TRAINERS
from neuronmigrate.training.unit import unit_of

codemod = Codemod(__name__)

OWN_ARGUMENTS = [name for name, kind in ARGUMENTS.items() if kind.native.startswith("trl.")]
OWN_TRAINERS = [name for name, kind in TRAINERS.items() if kind.native.startswith("trl.")]

codemod.uses(OWN_ARGUMENTS)(deciding.decide_arguments)
codemod.uses(OWN_TRAINERS)(deciding.decide_trainer)

MOVED = {
    "trl.SFTScriptArguments": "trl.ScriptArguments",
    "trl.commands.cli_utils.SFTScriptArguments": "trl.ScriptArguments",
    "trl.commands.cli_utils.TrlParser": "trl.TrlParser",
    "trl.trainer.utils.TrlParser": "trl.TrlParser",
}
"""Names of trl 0.11 that moved."""
ADVICE = {
    "ConstantLengthDataset": 'give `packing=True` and `packing_strategy="wrapped"` to SFTConfig',
    "DPODataCollatorWithPadding": "the trainer has a collator of its own: leave it out",
    "get_kbit_device_map": "quantized training does not run on the device: leave it out",
    "setup_chat_format": "use `trl.clone_chat_template`",
}
COLLATOR = "DataCollatorForCompletionOnlyLM"
_COLLATOR = '''
class {name}(transformers.DataCollatorForLanguageModeling):
    """Masks the labels up to the last response template, or those of each instruction."""

    def __init__(self, response_template, instruction_template=None, *args, mlm=False, **kwargs):
        self.ignore_index = kwargs.pop("ignore_index", -100)
        super().__init__(*args, mlm=mlm, **kwargs)
        self.response, self.instruction = (
            self.tokenizer.encode(each, add_special_tokens=False) if isinstance(each, str) else each
            for each in (response_template, instruction_template)
        )

    def torch_call(self, examples):
        batch = super().torch_call(examples)
        for labels in batch["labels"]:
            ends = [start + len(self.response) for start in self.find(labels, self.response)]
            starts = [0] if self.instruction is None else self.find(labels, self.instruction)
            if self.instruction is None:
                ends = ends[-1:]
            elif starts and ends and starts[0] > ends[0]:
                starts = [0, *starts]
            if not starts or not ends:
                labels[:] = self.ignore_index
                continue
            starts[0] = 0
            for start, end in zip(starts, ends):
                labels[start:end] = self.ignore_index
            if len(ends) < len(starts):
                labels[starts[-1] :] = self.ignore_index
        return batch

    @staticmethod
    def find(labels, template):
        tokens, length = labels.tolist(), len(template)
        return [start for start in range(len(tokens)) if tokens[start : start + length] == template]
'''


@codemod.once
def decide_names(site: Site) -> None:
    """Names of TRL that a script for Optimum Neuron imports and trl 1.16 has not."""
    if not any(use.claim in OWN_ARGUMENTS or use.claim in OWN_TRAINERS for use in site.uses):
        return
    for binding in site.names.imports:
        target = binding.target
        if not target.startswith("trl.") or targets.exists(target) is not False:
            continue
        if not isinstance(binding.node, cst.ImportAlias):
            continue
        name = target.rpartition(".")[2]
        group = unit_of(site).group
        if target in MOVED:
            _replace(site, group, binding, group.ref(MOVED[target]))
            group.fixed(binding.node, target, f"it is `{MOVED[target]}` in trl 1.16")
        elif name == COLLATOR:
            _replace(site, group, binding, group.helper("CompletionCollator", _COLLATOR))
            todo = (
                "rows with `prompt` and `completion` need no collator: SFTConfig masks the prompt itself, "
                "with `completion_only_loss=True`"
            )
            why = "trl 1.16 has no such collator, so one that masks the same labels is written"
            group.review(binding.node, target, why, todo)
        else:
            advice = ADVICE.get(name, "look for its successor in TRL's release notes")
            site.mark(binding.node, target, "trl 1.16 has no such name", advice)


def _replace(site: Site, group: Group, binding: Binding, new: cst.Name) -> None:
    for reader in site.names.references(binding):
        group.replace(reader, new.deep_clone())
    group.releases.append(binding.node)

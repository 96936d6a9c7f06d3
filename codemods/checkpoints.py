"""Checkpoints of torch_xla: `xm.save()`, `xser.save()` and `xser.load()`.

`xm.save` copied the tensors to the CPU and wrote on the first process of each host. Two small helpers,
written once per file, do the same with `torch.save`; in a program of one process only the copy is left.
`save_function=xm.save` of `save_pretrained` becomes `is_main_process=`. What `xser.save` wrote as a file
and a folder is one file now, which is said, since the old folders cannot be read without torch_xla.

Marked are states of sharded models (FSDP), which all processes have to gather, and functions that are
passed on elsewhere.
"""

from __future__ import annotations

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.effects import forget
from neuronmigrate.helpers import to_cpu_helper
from neuronmigrate.plan import Numerics
from neuronmigrate.processes import is_on_first_alone, runs_alone
from neuronmigrate.site import Group, Site, Use

codemod = Codemod(__name__)

SAVE = "torch_xla.core.xla_model.save"
SERIALIZE = "torch_xla.utils.serialization.save"
LOAD = "torch_xla.utils.serialization.load"
COPIES = (
    "neuronx_distributed.parallel_layers.utils.move_all_tensor_to_cpu",
    "torch_xla.core.xla_model._maybe_convert_to_cpu",
)
PARAMETERS = {
    SAVE: ("data", "file_or_path", "master_only", "global_master"),
    SERIALIZE: ("data", "path", "master_only", "global_master"),
}
SHARDS = frozenset(
    {
        "torch.distributed._composable.fsdp.fully_shard",
        "torch.distributed.fsdp.FullyShardedDataParallel",
        "torch.distributed.fsdp.fully_shard",
        "torch_neuronx.distributed.fsdp_mics.XlaFullyShardedDataParallelMiCS",
        "torch_xla.distributed.fsdp.XlaFullyShardedDataParallel",
    }
)
SHARDS_TODO = (
    "gather on every process with `get_model_state_dict(model, options=StateDictOptions("
    "full_state_dict=True, cpu_offload=True))` of torch.distributed.checkpoint.state_dict, then `torch.save` "
    "on rank 0"
)
OLD_FOLDERS = (
    "it is one file of `torch.save` now: convert what `xser.save` wrote earlier, a file with a `.tensors` "
    "folder, while torch_xla is still installed"
)

SAVE_ONCE = '''\
def {name}(data, path, rank="LOCAL_RANK"):
    """Write on the first process of each host, or with `RANK` of the job."""
    if int(os.environ.get(rank, 0)) == 0:
        torch.save({to_cpu}(data), path)
'''


@codemod.uses(PARAMETERS)
def decide(site: Site, use: Use) -> None:
    """Write with `torch.save`, on the processes that wrote before."""
    call = use.call
    if call is None or use.method:
        if not _as_save_function(site, use):
            todo = "pass a function that copies to the CPU and calls `torch.save` on one process"
            site.mark(use.chain, use.name, "the function is passed on, not called", todo)
        return
    bound = edits.arguments(call, PARAMETERS[use.claim])
    data, path = bound.value("data"), bound.value(PARAMETERS[use.claim][1])
    extra = [arg for arg in bound.extra if arg.keyword is None or arg.keyword.value != "sync"]
    if data is None or path is None or bound.spread or extra:
        todo = "write `torch.save` of a copy on the CPU, on one process"
        site.mark(call, use.name, "its arguments cannot be seen from here", todo)
        return
    if any(site.name_of(each.func) in SHARDS for each in site.names.calls):
        site.mark(call, use.name, "the model is sharded, so no process has all of it", SHARDS_TODO)
        return
    master, of_all = _flag(bound.value("master_only"), True), _flag(bound.value("global_master"), False)
    if master is None or of_all is None:
        todo = "write `torch.save` under the test that says which process writes"
        site.mark(call, use.name, "which process writes is decided at run time", todo)
        return
    group = site.group(use)
    to_cpu = to_cpu_helper(group)
    data_arg, path_arg = (bound.by_name[name] for name in PARAMETERS[use.claim][:2])
    if not master or runs_alone(site) or is_on_first_alone(site, call, of_all):
        func = group.ref("torch.save")
        copied = edits.expression("{to_cpu}({data})", to_cpu=to_cpu, data=data)
        args = [edits.positional(data_arg, copied), edits.positional(path_arg)]
        why = "a copy on the CPU is written" if master else "each process writes a copy on the CPU"
    else:
        func = group.helper("save_on_master", SAVE_ONCE, to_cpu=to_cpu)
        args = [edits.positional(data_arg), edits.positional(path_arg)]
        who = "each host"
        if of_all:
            args.append(cst.Arg(edits.string("RANK")))
            who = "the job"
        why = f"a helper writes a copy on the CPU, on the first process of {who}"
    group.replace(call, edits.with_arguments(call.with_changes(func=func), args))
    if use.claim == SERIALIZE:
        group.review(call, use.name, why, OLD_FOLDERS, numerics=Numerics.FORMAT)
    else:
        group.fixed(call, use.name, why)


def _flag(value: cst.BaseExpression | None, default: bool) -> bool | None:
    """What a flag says; None when that is known at run time alone."""
    if value is None:
        return default
    return {"True": True, "False": False}.get(edits.code_of(value))


def _as_save_function(site: Site, use: Use) -> bool:
    """Rewrite `model.save_pretrained(path, save_function=xm.save)`."""
    arg = site.parent(use.chain)
    call = site.parent(arg) if isinstance(arg, cst.Arg) else None
    if not isinstance(arg, cst.Arg) or arg.keyword is None or arg.keyword.value != "save_function":
        return False
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
        return False
    if call.func.attr.value != "save_pretrained" or any(each.star for each in call.args):
        return False
    group = site.group(use)
    kept = [each for each in call.args if each is not arg]
    told = any(each.keyword is not None and each.keyword.value == "is_main_process" for each in kept)
    why = "`save_pretrained` writes by itself, on the process that is told to"
    if not told and not runs_alone(site):
        first = group.expression('int(os.environ.get("LOCAL_RANK", 0)) == 0')
        kept.append(edits.keyword("is_main_process", first))
        site.keywords.append(("transformers.PreTrainedModel.save_pretrained", "is_main_process"))
    group.replace(call, edits.with_arguments(call, kept))
    group.fixed(use.chain, use.name, why)
    return True


@codemod.uses([LOAD])
def decide_load(site: Site, use: Use) -> None:
    """Read with `torch.load`."""
    call = use.call
    if call is None or use.method or len(call.args) != 1 or call.args[0].star:
        site.mark(
            use.whole,
            use.name,
            "more than a call with a path",
            'write `torch.load(path, map_location="cpu")`',
        )
        return
    group = site.group(use)
    _rename_call(group, use, call, 'torch.load({data}, map_location="cpu")')
    group.review(
        call, use.name, "files of `torch.save` are read on the CPU", OLD_FOLDERS, numerics=Numerics.FORMAT
    )


@codemod.uses(COPIES)
def decide_copy(site: Site, use: Use) -> None:
    """Copy with a helper."""
    call = use.call
    flag = None
    if call is not None:
        bound = edits.arguments(call, ("data", "convert"))
        flag = _flag(bound.value("convert"), True)
    if (
        call is None
        or use.method
        or not call.args
        or call.args[0].star
        or call.args[0].keyword
        or flag is not True
    ):
        todo = "copy the tensors with `tensor.detach().cpu()`"
        site.mark(use.whole, use.name, "more than a call with what is to be copied", todo)
        return
    group = site.group(use)
    to_cpu = to_cpu_helper(group)
    group.replace(call, edits.with_arguments(call.with_changes(func=to_cpu), [call.args[0]]))
    for arg in call.args[1:]:
        forget(site, arg)
    group.fixed(call, use.name, "a helper copies the tensors to the CPU")


def _rename_call(group: Group, use: Use, call: cst.Call, template: str) -> None:
    new = group.expression(template, data=call.args[0].value)
    assert isinstance(new, cst.Call)
    group.replace(call, edits.with_arguments(call.with_changes(func=new.func), new.args))

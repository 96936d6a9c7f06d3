"""Checkpoints of NxD: `nxd.save_checkpoint(path, tag, model=...)`, `load_checkpoint`, `has_checkpoint`.

Functions with the same parameters take their place, also where the old ones were passed on: the model and
the optimizer are saved by `torch.distributed.checkpoint`, each process its shards, the scheduler and the
user's content by the first process, last, so that a tag is there once it is whole. Without a tag the newest
is loaded. The way workers took turns and `use_xser` go.

The older `checkpointing.save(state, path)` becomes a save of `torch.distributed.checkpoint`, and the load
of a model alone a helper that reads it.

The files are others, and a save in the background is written at once: that is a review. Marked are states
of ZeRO-1 alone, and older loads of optimizers, of whole files, and for what else they gave back.
"""

from __future__ import annotations

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.effects import forget, is_harmless
from neuronmigrate.plan import Numerics
from neuronmigrate.site import Group, Site, Use

codemod = Codemod(__name__)

PATHS = ("neuronx_distributed", "neuronx_distributed.trainer", "neuronx_distributed.trainer.checkpoint")
PARAMETERS = {
    "finalize_checkpoint": (),
    "has_checkpoint": ("checkpoint_dir_str",),
    "load_checkpoint": ("path", "tag", "model", "optimizer", "scheduler", "num_workers", "strict"),
    "save_checkpoint": (
        *("checkpoint_dir_str", "tag", "model", "optimizer", "scheduler", "user_content", "num_workers"),
        *("use_xser", "num_kept_ckpts", "async_save"),
    ),
}
"""Of neuronx_distributed/trainer/checkpoint.py, as far as the new functions take them."""
NAMES = {f"{path}.{name}": name for path in PATHS for name in PARAMETERS}
OLDER = tuple(f"neuronx_distributed.parallel_layers.{path}" for path in ("", "checkpointing."))
SAVES = ("checkpoint", "output_dir", "save_serially", "save_xser", "down_cast_bf16", "master_dp_only")
LOADS = (
    *("chkpt_path", "model", "model_or_optimizer", "model_key", "load_xser", "sharded", "strict"),
    *("master_dp_only", "weights_only"),
)
"""Parameters of neuronx_distributed/parallel_layers/checkpointing.py."""
STATES = "torch.distributed.checkpoint.state_dict"
BY_HAND = "use `torch.distributed.checkpoint`"
FORMAT = "it does not read what NxD saved: load such a checkpoint while NxD is installed, and save it anew"
IN_BACKGROUND = (
    "it is whole when the call returns, and no more written in the background: "
    "`torch.distributed.checkpoint.async_save` does that where the process group has a part for the CPU"
)
FINISHED = '''\
def {name}(path):
    """The tags below a folder whose checkpoint is whole, the newest last."""
    tags = os.listdir(path) if os.path.isdir(path) else []
    ends = {{tag: os.path.join(path, tag, "rest.pt") for tag in tags}}
    whole = [tag for tag in tags if os.path.exists(ends[tag])]
    return sorted(whole, key=lambda tag: os.path.getmtime(ends[tag]))
'''
HAS = '''\
def {name}(path):
    """Whether a whole checkpoint stands below a folder."""
    return bool({finished}(path))
'''
SAVE = '''\
def {name}(
    path,
    tag,
    model=None,
    optimizer=None,
    scheduler=None,
    user_content=None,
    num_workers=None,
    use_xser=False,
    num_kept_ckpts=None,
):
    """Save the shards of all processes, then the rest by the first one."""
    folder = os.path.join(path, str(tag))
    shards = {{}}
    if model is not None:
        shards["model"] = torch.distributed.checkpoint.state_dict.get_model_state_dict(model)
        if optimizer is not None:
            shards["optimizer"] = {optimizer_state}(model, optimizer)
    torch.distributed.checkpoint.save(shards, checkpoint_id=folder)
    if torch.distributed.get_rank() == 0:
        state = None if scheduler is None else scheduler.state_dict()
        torch.save({{"scheduler": state, "user_content": user_content}}, os.path.join(folder, "rest.pt"))
        for old in {finished}(path)[:-num_kept_ckpts] if num_kept_ckpts else []:
            {remove}(os.path.join(path, old))
    torch.distributed.barrier()
'''
LOAD = '''\
def {name}(path, tag=None, model=None, optimizer=None, scheduler=None, num_workers=None, strict=True):
    """Load the checkpoint of a tag, or the newest, and give the user's content back."""
    if tag is None:
        tags = {finished}(path)
        if not tags:
            raise RuntimeError(f"no checkpoint in {{path}}")
        tag = tags[-1]
    folder = os.path.join(path, str(tag))
    shards = {{}}
    if model is not None:
        shards["model"] = torch.distributed.checkpoint.state_dict.get_model_state_dict(model)
        if optimizer is not None:
            shards["optimizer"] = {optimizer_state}(model, optimizer)
    torch.distributed.checkpoint.load(shards, checkpoint_id=folder)
    if model is not None:
        options = torch.distributed.checkpoint.state_dict.StateDictOptions(strict=strict)
        torch.distributed.checkpoint.state_dict.set_model_state_dict(model, shards["model"], options=options)
        if optimizer is not None:
            {set_optimizer_state}(model, optimizer, shards["optimizer"])
    rest = torch.load(os.path.join(folder, "rest.pt"), map_location="cpu", weights_only=False)
    if scheduler is not None:
        scheduler.load_state_dict(rest["scheduler"])
    return rest["user_content"]
'''
IN_BFLOAT16 = '''\
def {name}(data):
    """Cast the float32 tensors in nested containers to bfloat16."""
    if isinstance(data, torch.Tensor):
        return data.to(torch.bfloat16) if data.dtype == torch.float32 else data
    if isinstance(data, dict):
        return {{key: {name}(value) for key, value in data.items()}}
    if isinstance(data, (list, tuple)):
        return type(data)({name}(value) for value in data)
    return data
'''
LOAD_MODEL = '''\
def {name}(path, model, model_key="model", strict=True):
    """Load into a model what was saved of it under a key, each process its shards."""
    weights = torch.distributed.checkpoint.state_dict.get_model_state_dict(model)
    shards = {{model_key: weights}} if model_key else weights
    torch.distributed.checkpoint.load(shards, checkpoint_id=path)
    options = torch.distributed.checkpoint.state_dict.StateDictOptions(strict=strict)
    weights = shards[model_key] if model_key else shards
    torch.distributed.checkpoint.state_dict.set_model_state_dict(model, weights, options=options)
'''


@codemod.uses(NAMES)
def decide(site: Site, use: Use) -> None:
    """Put a function of the same name in its place."""
    name = NAMES[use.claim]
    if use.method:
        site.mark(use.chain, use.name, "more than the function is meant", BY_HAND)
        return
    renamed = []
    background = None
    if use.call is not None:
        bound = edits.arguments(use.call, PARAMETERS[name])
        background = bound.by_name.get("async_save") if name == "save_checkpoint" else None
        if background is not None and not is_harmless(background.value, site.name_of):
            bound.extra.append(background)
        extra = [
            arg for arg in bound.extra if not arg.star and edits.code_of(arg.value) not in ("False", "None")
        ]
        if extra:
            what = ", ".join(f"`{edits.short(arg.value if arg.keyword is None else arg)}`" for arg in extra)
            site.mark(use.call, use.name, f"the function that takes its place has no {what}", BY_HAND)
            return
        renamed = [
            arg for arg in use.call.args if arg.star or (arg not in bound.extra and arg is not background)
        ]
    if name == "finalize_checkpoint":
        _finalize(site, use)
        return
    group = site.group(use)
    helper = _helper(group, name)
    if use.call is None:
        group.replace(use.chain, helper)
    else:
        args = [
            arg.with_changes(keyword=cst.Name("path"))
            if arg.keyword is not None and arg.keyword.value == "checkpoint_dir_str"
            else arg
            for arg in renamed
        ]
        group.replace(use.call, edits.with_arguments(use.call.with_changes(func=helper), args))
    why = "a function with its parameters takes its place"
    if name == "has_checkpoint":
        group.fixed(use.whole, use.name, why)
        return
    todo = FORMAT
    if background is not None:
        forget(site, background.value)
        if edits.code_of(background.value) != "False":
            todo += f"; {IN_BACKGROUND}"
    group.review(use.whole, use.name, why, todo, numerics=Numerics.FORMAT)


def _finalize(site: Site, use: Use) -> None:
    alone = None if use.call is None else site.alone(use.call)
    if alone is None:
        site.mark(use.whole, use.name, "it is passed on, or its result is used", "drop it")
        return
    group = site.group(use)
    group.replace_statement(alone)
    group.fixed(use.whole, use.name, "each save is finished when it returns")


def _helper(group: Group, name: str) -> cst.Name:
    finished = group.helper("finished_checkpoints", FINISHED)
    if name == "has_checkpoint":
        return group.helper(name, HAS, finished=finished)
    if name == "load_checkpoint":
        return group.helper(
            name,
            LOAD,
            finished=finished,
            optimizer_state=group.ref(f"{STATES}.get_optimizer_state_dict"),
            set_optimizer_state=group.ref(f"{STATES}.set_optimizer_state_dict"),
        )
    return group.helper(
        name,
        SAVE,
        finished=finished,
        optimizer_state=group.ref(f"{STATES}.get_optimizer_state_dict"),
        remove=group.ref("shutil.rmtree"),
    )


@codemod.uses([f"{path}save" for path in OLDER])
def decide_save(site: Site, use: Use) -> None:
    """Save the shards of all processes."""
    bound = edits.arguments(use.call, SAVES) if use.call is not None else edits.Arguments()
    state, path = bound.value("checkpoint"), bound.value("output_dir")
    if use.call is None or use.method or bound.spread or bound.extra or state is None or path is None:
        site.mark(use.whole, use.name, "its arguments cannot be seen from here", BY_HAND)
        return
    down = bound.value("down_cast_bf16")
    cast = edits.code_of(down) if down is not None else "False"
    if cast not in ("True", "False") or _is_told(bound, "master_dp_only", "True"):
        site.mark(use.call, use.name, "what is saved depends on options that it has no more", BY_HAND)
        return
    group = site.group(use)
    if cast == "True":
        state = cst.Call(group.helper("in_bfloat16", IN_BFLOAT16), [cst.Arg(state)])
    named = edits.keyword("checkpoint_id", path)
    args = [
        edits.positional(bound.by_name["checkpoint"], state),
        bound.by_name["output_dir"].with_changes(keyword=named.keyword, equal=named.equal),
    ]
    func = group.ref("torch.distributed.checkpoint.save")
    group.replace(use.call, edits.with_arguments(use.call.with_changes(func=func), args))
    why = "each process saves its shards"
    group.review(use.call, use.name, why, FORMAT, numerics=Numerics.FORMAT)


@codemod.uses([f"{path}load" for path in OLDER])
def decide_load(site: Site, use: Use) -> None:
    """Load a model, where nothing else is asked for."""
    bound = edits.arguments(use.call, LOADS) if use.call is not None else edits.Arguments()
    path, model = bound.value("chkpt_path"), bound.value("model_or_optimizer") or bound.value("model")
    key = bound.value("model_key")
    reason = ""
    if use.call is None or use.method or bound.spread or bound.extra or path is None:
        reason = "its arguments cannot be seen from here"
    elif _is_told(bound, "sharded", "True") or _is_told(bound, "master_dp_only", "True"):
        reason = "it does not load shards"
    elif model is None or site.alone(use.call) is None:
        reason = "what else it gives back has to be asked for by name"
    elif key is not None and edits.code_of(key) not in ("None", '"model"', "'model'"):
        reason = f"it may load an optimizer, under `{edits.short(key)}`"
    if reason:
        todo = "load a dictionary of the same form with `torch.distributed.checkpoint.load`"
        site.mark(use.whole, use.name, reason, todo)
        return
    assert use.call is not None
    group = site.group(use)
    args = []
    for name in ("chkpt_path", "model", "model_or_optimizer", "model_key", "strict"):
        arg = bound.by_name.get(name)
        if arg is None or (arg.value is not model and name in ("model", "model_or_optimizer")):
            continue
        named = name in ("model_key", "strict")
        args.append(edits.keyword(name, arg.value) if named else edits.positional(arg))
    helper = group.helper("load_model", LOAD_MODEL)
    group.replace(use.call, edits.with_arguments(use.call.with_changes(func=helper), args))
    group.review(use.call, use.name, "a helper loads the shards", FORMAT, numerics=Numerics.FORMAT)


def _is_told(bound: edits.Arguments, name: str, default: str) -> bool:
    """Whether an option is anything but its default."""
    value = bound.value(name)
    return value is not None and edits.code_of(value) != default

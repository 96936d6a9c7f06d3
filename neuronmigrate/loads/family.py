"""A family of legacy classes that load a checkpoint: its loads, and wherever the loaded objects go.

A codemod for a family subclasses Family: it gives the classes and a table of their arguments, and
overrides the few points where its objects behave otherwise than a traced encoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import libcst as cst
import libcst.matchers as m

from neuronmigrate import edits, effects
from neuronmigrate.codemod import Codemod
from neuronmigrate.flow import UseKind
from neuronmigrate.loads import pipelines
from neuronmigrate.loads.arguments import Load, Table, constant, means_the_same, sorted_arguments, unread
from neuronmigrate.loads.classes import loads_through
from neuronmigrate.loads.dtypes import settle_cast
from neuronmigrate.loads.settings import asked_setting, tokenizer_of, write_setting
from neuronmigrate.loads.sources import Saved, settle_source
from neuronmigrate.loads.subclasses import Subclass, is_self, own_calls, subclass
from neuronmigrate.moving import Moved, is_module, model_of, move_call
from neuronmigrate.names import dotted_name
from neuronmigrate.site import Group, Site, Use

ItemT = TypeVar("ItemT")

GONE_ATTRIBUTES = {
    "neuron_config": "nothing is compiled, so there are no compiled shapes to read",
    "input_static_shapes": "nothing is compiled, so there are no compiled shapes to read",
    "model_save_dir": "there is no folder of compiled files",
    "preprocessors": "load the tokenizer with `AutoTokenizer.from_pretrained`",
    "replace_weights": "weights are ordinary parameters: use `load_state_dict`",
    "push_to_hub": "it uploaded compiled files; native `push_to_hub(repo_id)` uploads the weights",
}
_MOVERS = ("cpu", "cuda", "to")


class Family:
    """What all families share, as traced encoders need it."""

    makers: frozenset[str] = frozenset({"from_pretrained"})
    """Class methods that make an object of a checkpoint."""
    methods: frozenset[str] = frozenset()
    """Methods of an object whose calls `on_call` answers for, besides direct calls of it."""
    gone: Mapping[str, str] = GONE_ATTRIBUTES
    """Attributes of an object that are gone, and what to do instead."""
    base = "transformers.PreTrainedModel"
    """What an object is an instance of now."""
    suits_both = True
    """Whether a rewritten call runs as well on an object that stays a legacy one."""
    handed_on = False
    """Whether loads are followed whose class comes from a table or a function."""
    suits_pipelines = True
    """Whether Transformers' pipelines take an object."""
    lost_calls = "move inputs of its calls"
    """What is left to do at calls that cannot be followed; empty when nothing is."""

    def __init__(self, codemod: Codemod, classes: Mapping[str, str], table: Table) -> None:
        """Register handlers for `classes`, legacy names and the native ones that take their place."""
        self.codemod = codemod
        self.classes = classes
        self.table = table
        codemod.tables.append(table)
        codemod.uses(classes)(self.decide)
        codemod.once(self.decide_elsewhere)

    # Points where families differ.

    def read(self, site: Site, use: Use, call: cst.Call) -> Load:
        """The arguments of a load, sorted by what becomes of them."""
        return sorted_arguments(site, use, call, self.classes[use.claim], self.table)

    def settle(self, site: Site, load: Load, saved: Saved) -> None:
        """Work out what is loaded and in which dtype; refuse the load where that is not certain."""
        settle_source(load, saved)
        settle_cast(site, load)

    def written(self, site: Site, group: Group, load: Load) -> cst.BaseExpression:
        """The expression that takes the place of the load's call."""
        args = list(load.args)
        dtype = load.dtype or (group.expression(load.cast) if load.cast else None)
        if dtype is not None:
            args.append(edits.keyword("dtype", dtype))
        args.append(edits.keyword("device_map", edits.string("neuron")))
        site.keywords += [
            (f"{load.native}.from_pretrained", arg.keyword.value) for arg in args if arg.keyword
        ]
        return edits.with_arguments(load.call, args)

    def place(self, site: Site, group: Group, load: Load, new: cst.BaseExpression) -> None:
        """Put the new expression where the load's call stands."""
        group.replace(load.call, new)

    def renamed(self, group: Group, load: Load) -> None:
        """Let the class stand for the native one; the maker's name stays."""
        group.rename(load.use, load.native)

    def finish(self, site: Site, group: Group, load: Load) -> None:
        """Add what a load needs besides its own call."""

    def compiled(self, load: Load) -> tuple[str, ...]:
        """What `--compile` compiles: parts of an object such as `.unet`, or the empty text for all of it."""
        return ("",)

    def compile(self, site: Site, group: Group, load: Load) -> None:
        """Compile in place, so that attributes and the names of weights stay (torch.nn.Module.compile)."""
        for part in self.compiled(load):
            line = f'{part}.compile(backend="neuron", dynamic=False)'
            if not set_late(site, group, load, f"{{model}}{line}\n"):
                load.todo.append(f"to compile it call `{line}` on it")
            load.todo.append("each new shape of its inputs is compiled anew: pad them to few lengths")

    def on_call(self, site: Site, group: Group, load: Load, call: cst.Call, method: str) -> Moved:
        """Rewrite a call of an object (`method` is empty) or of one of `methods`."""
        return move_call(site, group, call, as_float32=load.as_float32, half=load.half)

    def on_call_elsewhere(self, site: Site, group: Group, call: cst.Call, name: str, method: str) -> Moved:
        """Rewrite a call of an object that another module loads with `name`."""
        # The dtype is written in the other module; float32 stays what it is under `.float()`.
        moved = move_call(site, group, call, as_float32=True, half=True)
        if not moved.refused and not dotted_name(model_of(call)):
            return Moved("the model has no name here of which its device could be asked")
        return moved

    def why(self, load: Load, calls: int) -> str:
        """What was done, for the report."""
        native = load.native.rpartition(".")[2]
        why = f"{native} loads the original checkpoint onto the device, without an export"
        return f"{why}; inputs are moved and outputs brought back at its calls" if calls else why

    def by_hand(self, load: Load) -> str:
        """What a person can write where a load is only marked."""
        name = load.native.rpartition(".")[2]
        return f'by hand: `{name}.from_pretrained(original id, dtype=torch.float32, device_map="neuron")`'

    def advice(self, use: Use) -> str:
        """What to do with a class that is used in a way that cannot be followed."""
        native = self.classes[use.claim].rpartition(".")[2]
        return (
            f'use `{native}` with `device_map="neuron"`, move inputs to `model.device` and outputs back '
            "with `.cpu()`"
        )

    # The uses of the classes.

    def decide(self, site: Site, use: Use) -> None:
        """Answer each use of a class of the family by what is done with it."""
        base = self.base.rpartition(".")[2]
        same = self.classes.get(use.claim) == self.base
        if self.is_load(use):
            self._decide_loads(site)
        elif is_annotation(site, use.chain):
            group = site.group(use)
            group.rename(use, self.base, alias=same)
            group.fixed(use.chain, use.name, f"as a type it is any {base}")
        elif is_isinstance(site, use.chain) and self._stays(site, use):
            site.mark(
                use.whole,
                use.name,
                "a load of this class stays a legacy one, and its objects are tested for here",
                f"test for any {base} once that load is a native one",
            )
        elif is_isinstance(site, use.chain):
            group = site.group(use)
            group.rename(use, self.base, alias=same)
            if same:
                group.fixed(use.chain, use.name, f"it is an instance of {base} now")
            else:
                group.review(
                    use.chain,
                    use.name,
                    f"every native model is a {base}, and Auto classes have no instances",
                    "check that the branch is meant for any Transformers model",
                )
        elif (derived := subclass(site, use, self.classes[use.claim], self.makers)) is not None:
            self._decide_subclass(site, derived)
        elif self._is_handed_on(site, use):
            self._decide_loads(site)
        else:
            if use.method and use.method in self.makers:
                why = "it is the base of several classes, and loads a model of any of them"
            elif use.method and use.call is not None:
                why = f"`{use.method}` has no counterpart"
            else:
                why = "the class is handed on as a value here, so its calls cannot be followed"
            site.mark(use.whole, use.name, why, self.advice(use))

    def is_load(self, use: Use) -> bool:
        """Whether a use makes an object, in a way that can be seen."""
        return use.method in self.makers and use.call is not None and not use.ambiguous and not use.stored

    def loads(self, site: Site) -> list[Use]:
        """The uses in a file that make an object."""
        return [use for use in site.uses if use.claim in self.classes and self.is_load(use)]

    def _is_handed_on(self, site: Site, use: Use) -> bool:
        return any(use in uses for uses in self._through(site).values())

    def _through(self, site: Site) -> dict[cst.Call, tuple[Use, ...]]:
        """The loads whose class comes as a value, with the classes that may be meant."""
        plain = [
            use
            for use in site.uses
            if use.claim in self.classes
            and use.name == use.claim
            and use.call is None
            and not (use.stored or use.ambiguous or use.quoted or use.alias)
        ]
        derived = [subclass(site, use, self.classes[use.claim], self.makers) for use in plain]
        found: dict[cst.Call, tuple[Use, ...]] = {
            call: (each.use,)
            for each in derived
            if each is not None and not each.refused
            for call in each.loads
        }
        if self.handed_on:
            values = [
                use
                for use, each in zip(plain, derived, strict=True)
                if each is None and not is_annotation(site, use.chain) and not is_isinstance(site, use.chain)
            ]
            found |= loads_through(site, values, self.makers)
        return found

    def _decide_subclass(self, site: Site, derived: Subclass) -> None:
        """Let a class be derived from the native one, with what loads with it."""
        use = derived.use
        if derived.refused:
            site.mark(use.whole, use.name, derived.refused, self.advice(use))
            return
        if derived.loads:
            self._decide_loads(site)
            return
        group = site.group(use)
        self._call_itself(site, group, derived)
        group.rename(use, self.classes[use.claim])
        group.review(
            use.chain,
            use.name,
            "the native class is derived from in the same way",
            f"nothing here loads with `{derived.node.name.value}`; where it is done, {self.advice(use)}",
        )

    def _stays(self, site: Site, use: Use) -> bool:
        """Whether a load of a class stays as it is in this file."""
        self._decide_loads(site)
        stay = site.notes.get("stay", set())
        of_all = self.classes[use.claim] == self.base
        return any((of_all or each.claim == use.claim) and each.call in stay for each in self.loads(site))

    def _call_itself(self, site: Site, group: Group, derived: Subclass) -> None:
        """Rewrite what the methods of a derived class call of their own object."""
        for call, method in own_calls(site, derived.node, self.methods):
            moved = self.on_call_elsewhere(site, group, call, derived.use.name, method)
            line = site.positions.span(call).line
            if moved.refused or moved.freeze:
                group.refuse(f"line {line}: `{edits.short(call, 40)}`: {moved.refused or moved.freeze}")
            elif moved.todo:
                group.review(call, derived.use.name, moved.why, "; ".join(moved.todo))
            else:
                group.fixed(call, derived.use.name, moved.why)
        for node in m.findall(derived.node.body, m.Attribute()):
            if isinstance(node, cst.Attribute) and is_self(site, derived.node, node.value):
                self.on_attribute(site, None, None, node, [])

    def _decide_loads(self, site: Site) -> None:
        """Decide on all loads of the file at once: those whose objects meet at a call go together."""
        loads = []
        stay: set[cst.CSTNode] = set()
        own = self.loads(site)
        for use in site.uses:
            if use in own and use.call is not None:
                if use not in site.settled:
                    site.settled.add(use)
                    loads.append(self.read(site, use, use.call))
            elif use.method in self.makers and use.call is not None:
                stay.add(use.call)  # another family answers for it
        for call, uses in self._through(site).items():
            if site.settled.isdisjoint(uses):
                method = edits.code_of(call.func).rpartition(".")[2]
                load = self.read(site, replace(uses[0], name=f"{uses[0].claim}.{method}", call=call), call)
                load.through = uses
                loads.append(load)
        site.settled.update(use for load in loads for use in load.through)
        saved = Saved(site, loads)
        for load in loads:
            self.settle(site, load, saved)
        for load in loads:
            # A class that stays for one of its loads stays for all of them.
            if any(other.refused and set(load.through) & set(other.through) for other in loads):
                load.refuse("the class that it loads with is one for another load that cannot be rewritten")
        for load in loads:
            if load.refused:
                stay.add(load.call)
                self._leave(site, load, load.refused)
                site.notes.setdefault("stay", set()).add(load.call)
                pipelines.left_with(site, load.call)
        for members in clusters([(self._reached(site, load), load) for load in loads if not load.refused]):
            self._rewrite(site, members, stay, saved)

    def _reached(self, site: Site, load: Load) -> set[object]:
        """What the rewrite of a load may touch: dictionaries, variables, calls."""
        reached: set[object] = {*load.spread.values(), *load.through}
        for name in load.dropped:
            reached.update(site.names.bindings_at(name))
        for use in site.flow.uses_of(load.call).uses:
            called, _ = self.called(site, use.node)
            if called is not None:
                reached |= reached_by_call(site, called)
        return reached

    def called(self, site: Site, node: cst.BaseExpression) -> tuple[cst.Call | None, str]:
        """The call of an object at `node`, as `model(...)` or `model.generate(...)`, and the method."""
        parent = site.parent(node)
        if isinstance(parent, cst.Call) and parent.func is node:
            return parent, ""
        around = site.parent(parent) if parent is not None else None
        if isinstance(parent, cst.Attribute) and isinstance(around, cst.Call) and around.func is parent:
            if model_of(around) is node:
                return around, ""
            if parent.attr.value in self.methods:
                return around, parent.attr.value
        return None, ""

    def _rewrite(self, site: Site, loads: list[Load], stay: set[cst.CSTNode], saved: Saved) -> None:
        group = site.group(loads[0].use)
        # A call that two models share is rewritten for the first of them: for one whose outputs were float32.
        ordered = sorted(loads, key=lambda each: not each.as_float32)
        calls = {load: self._follow(site, group, load, stay) for load in ordered}
        done = site.notes.setdefault("derived", set())
        for use in [use for load in loads for use in load.through if use.chain not in done]:
            done.add(use.chain)
            derived = subclass(site, use, self.classes[use.claim], self.makers)
            if derived is not None:
                self._call_itself(site, group, derived)
        if group.refused:
            for load in loads:
                self._leave(site, load, group.refused)
                site.notes.setdefault("stay", set()).add(load.call)
            return
        for load in loads:
            # Each name comes in where the legacy import stands that this load uses.
            group.anchor = load.use.binding
            group.uncertain = not load.use.certain
            new = self.written(site, group, load)
            if load.frozen:
                new = edits.expression("{model}.requires_grad_(False)", model=new)
            self.place(site, group, load, new)
            if load.through:
                self._rename_values(site, group, load)
            else:
                self.renamed(group, load)
            self.finish(site, group, load)
            if site.settings.compile:
                self.compile(site, group, load)
            saved.redirect(group, load)
            load.todo += _as_submodule(site, load)
            load.todo += unread(site, group, load, loads)
            why = self.why(load, calls[load])
            if load.frozen:
                why += "; its weights record no gradients, as a call of it cannot be put under `no_grad`"
            if load.todo:
                todo = "; ".join(dict.fromkeys(load.todo))
                group.review(load.call, load.use.name, why, todo, numerics=load.numerics)
            else:
                group.fixed(load.call, load.use.name, why, numerics=load.numerics)

    def _leave(self, site: Site, load: Load, why: str) -> None:
        """Mark a load that stays, and the classes that are handed on to it."""
        site.mark(load.call, load.use.name, why, self.by_hand(load))
        left = site.notes.setdefault("left", set())
        for use in load.through:
            if use.chain not in left:
                left.add(use.chain)
                line = site.positions.span(load.call).line
                site.mark(
                    use.chain,
                    use.name,
                    f"the load in line {line} that gets it stays a legacy one",
                    self.advice(use),
                )

    def _rename_values(self, site: Site, group: Group, load: Load) -> None:
        renamed = site.notes.setdefault("renamed", set())
        for use in load.through:
            if use.chain not in renamed:
                renamed.add(use.chain)
                group.anchor = use.binding
                group.rename(use, self.classes[use.claim])
                derived = subclass(site, use, self.classes[use.claim], self.makers) is not None
                group.fixed(
                    use.chain,
                    use.name,
                    "the native class is derived from in the same way"
                    if derived
                    else "it is the native class wherever it is handed on to",
                )
        group.anchor = load.use.binding

    # Where the objects go.

    def decide_elsewhere(self, site: Site) -> None:
        """Rewrite the calls of an object that another module of the project loads."""
        if not site.project.modules:
            return
        self._attributes_elsewhere(site)
        found = []
        for call in site.names.calls:
            method = self.method_of(call)
            for name, place, certain in self.loads_elsewhere(site, object_of(call, method)):
                if certain:
                    found.append((call, method, name, place))
                    continue
                site.mark(
                    call,
                    name,
                    f"it may call the model that is loaded at {place}, and may call something else",
                    "if it does, move its inputs to the device and call it under `torch.no_grad()`",
                )
        for calls in clusters([(reached_by_call(site, each[0]), each) for each in found]):
            group = site.group()
            for call, method, name, place in calls:
                moved = self.on_call_elsewhere(site, group, call, name, method)
                if moved.refused or moved.freeze:
                    group.refuse(moved.refused or moved.freeze)
                why = f"the model of {place} is on the device: {moved.why}"
                if moved.todo:
                    group.review(call, name, why, "; ".join(moved.todo))
                else:
                    group.fixed(call, name, why)

    def method_of(self, call: cst.Call) -> str:
        """The method of the family that a call may be of; empty for a direct call."""
        func = call.func
        return func.attr.value if isinstance(func, cst.Attribute) and func.attr.value in self.methods else ""

    def loads_elsewhere(self, site: Site, made: cst.BaseExpression) -> list[tuple[str, str, bool]]:
        """The load in another module that made an object: its name, its place, whether that is certain."""
        origins = site.flow.origin_of(made)
        loads = [
            each
            for each in origins.producers
            if each.called and each.node is None and self.is_maker(each.name)
        ]
        certain = origins.certain and len(loads) == len(origins.producers)
        return [(each.name, each.place, certain) for each in loads[:1]]

    def is_maker(self, name: str) -> bool:
        """Whether a qualified name is a class method that makes an object."""
        owner, _, method = name.rpartition(".")
        return owner in self.classes and method in self.makers

    def _attributes_elsewhere(self, site: Site) -> None:
        for node in site.nodes(cst.Attribute):
            if node.attr.value in self.gone or node.attr.value in _MOVERS:
                for _ in self.loads_elsewhere(site, node.value):
                    self.on_attribute(site, None, None, node, [])

    def _follow(self, site: Site, group: Group, load: Load, stay: set[cst.CSTNode]) -> int:
        """Rewrite every place where the loaded object goes; tells how many calls that were."""
        todo = load.todo
        found = site.flow.uses_of(load.call)
        moved = 0
        for use in found.uses:
            parent = site.parent(use.node)
            line = site.positions.span(use.node).line
            called, method = self.called(site, use.node)
            if called is not None:
                shown = edits.short(called, 40)
                if stay and not (self.suits_both and dotted_name(use.node)):
                    makers = site.flow.origin_of(use.node).producers
                    if any(each.node in stay for each in makers):
                        group.refuse(f"`{shown}` may call a model that stays a legacy one as well")
                answer = self.on_call(site, group, load, called, method)
                if answer.refused:
                    group.refuse(f"`{shown}`: {answer.refused}")
                todo.extend(answer.todo)
                load.frozen = load.frozen or bool(answer.freeze)
                if _expects_a_refusal(site, called):
                    todo.append(
                        f"line {line}: inputs longer than the compiled length raised ValueError; now they run"
                    )
                moved += 1
            elif use.kind is UseKind.ATTRIBUTE and isinstance(parent, cst.Attribute):
                self.on_attribute(site, group, load, parent, todo)
            elif use.kind is UseKind.ARGUMENT:
                call = site.parent(parent) if parent is not None else None
                piped = isinstance(call, cst.Call) and site.name_of(call.func) in pipelines.LEGACY
                if piped and self.suits_pipelines and isinstance(call, cst.Call):
                    pipelines.hand_to_legacy(site, group, load, call)
                else:
                    self.on_argument(site, group, use.node, todo)
            elif use.kind in (UseKind.BOUND, UseKind.DISCARDED, UseKind.COMPARED, UseKind.RETURNED):
                continue  # what is returned is followed, or told as lost
            elif use.kind is UseKind.HANDED_ON:
                continue  # the other module finds it again, and answers for its calls
            elif self.lost_calls:
                todo.append(f"line {line}: the model goes where it cannot be followed; {self.lost_calls}")
        for node, why in found.lost if self.lost_calls else ():
            line = site.positions.span(node).line
            todo.append(f"line {line}: {why}; {self.lost_calls}")
        return moved

    def on_attribute(
        self, site: Site, group: Group | None, load: Load | None, node: cst.Attribute, todo: list[str]
    ) -> None:
        """Answer for an attribute of the model that is gone or means something else.

        There are a group and a load only where this file loads the model.
        """
        told = site.notes.setdefault("told", set())
        name = node.attr.value
        line = site.positions.span(node).line
        parent = site.parent(node)
        if name == "save_pretrained":
            todo.append(f"line {line}: `save_pretrained` now writes the weights, not a compiled model")
        elif (
            node not in told
            and group is not None
            and load is not None
            and self._rewrites(site, group, load, node, todo)
        ):
            pass
        elif name == "device" and not _is_input_device(site, node):
            todo.append(f"line {line}: `{edits.short(node)}` was the CPU and is the Neuron device now")
        elif name in ("forward", "__call__"):
            todo.append(
                f"line {line}: `{edits.short(node)}` is kept; move inputs of its calls to `model.device`"
            )
        elif node in told:
            return
        elif name in self.gone:
            site.mark(node, f"model.{name}", f"`{name}` is gone", self.gone[name])
        elif name == "config" and isinstance(parent, cst.Attribute) and parent.attr.value == "neuron":
            site.mark(parent, "model.config.neuron", "`config.neuron` is gone", self.gone["neuron_config"])
        elif name in _MOVERS and isinstance(parent, cst.Call):
            site.mark(
                parent,
                f"model.{name}",
                f"`{edits.short(parent)}` moved nothing before and moves the model away from the device now",
                'drop it: `device_map="neuron"` places the model',
            )
        told.add(node)

    def setting(self, site: Site, load: Load, name: str) -> cst.BaseExpression | None:
        """What a compiled model told of itself under a name, where its load says it."""
        plain = name.removeprefix("static_")
        value = load.told.get(plain) or load.values.get(plain)
        return constant(site, value) if value is not None else None

    def _rewrites(self, site: Site, group: Group, load: Load, node: cst.Attribute, todo: list[str]) -> bool:
        """Rewrite a use of an attribute that is gone, where what it did can be written."""
        name = node.attr.value
        call = site.parent(node)
        if name in self.gone or name == "config":
            whole, asked = asked_setting(site, node)
            value = self.setting(site, load, asked) if asked else None
            if value is not None and (
                edits.is_literal(value) or (edits.is_pure(value) and means_the_same(site, value, node))
            ):
                load.keep(value)
                write_setting(site, group, whole, value)
                return True
            tokenizer = tokenizer_of(site, whole) if asked.endswith("sequence_length") else None
            if value is None and tokenizer is not None:
                # Without a value it is the compiled model alone that knows it.
                line = site.positions.span(node).line
                limit = cst.Attribute(tokenizer.deep_clone(), cst.Name("model_max_length"))
                group.replace(whole, limit)
                todo.append(
                    f"line {line}: texts were cut to the compiled length, and are to the tokenizer's now"
                )
                return True
        alone = site.alone(call) if isinstance(call, cst.Call) else None
        if name == "to" and isinstance(call, cst.Call) and alone is not None:
            # It moved nothing, and gave nothing back.
            if not all(effects.is_harmless(arg.value, site.name_of) for arg in call.args):
                return False
            for arg in call.args:
                effects.forget(site, arg.value)
            group.replace_statement(alone)
            return True
        if name == "push_to_hub" and name in self.gone and isinstance(call, cst.Call):
            pushed = _pushed(call)
            if pushed is not None:
                line = site.positions.span(node).line
                todo.append(f"line {line}: it uploads the weights, where the repository held compiled files")
                group.replace(call, pushed)
            return pushed is not None
        return False

    def on_argument(self, site: Site, group: Group, node: cst.BaseExpression, todo: list[str]) -> None:
        """Answer for an object that is passed to a function."""
        arg = site.parent(node)
        call = site.parent(arg) if isinstance(arg, cst.Arg) else None
        line = site.positions.span(node).line
        if not isinstance(call, cst.Call):
            todo.append(f"line {line}: the model goes where it cannot be followed; {self.lost_calls}")
            return
        name = site.name_of(call.func)
        if pipelines.is_native(name):
            pipelines.hand_to_native(site, group, call, todo)
        elif name in (
            "builtins.print",
            "builtins.type",
            "builtins.id",
            "builtins.isinstance",
            "builtins.repr",
        ):
            return
        elif isinstance(call.func, cst.Name) and any(
            isinstance(each.node, cst.ClassDef) for each in site.names.bindings_at(call.func)
        ):
            group.refuse(f"`{call.func.value}` keeps the model where its calls cannot be followed")
        else:
            todo.append(f"line {line}: `{edits.short(call.func)}` gets the model; {self.lost_calls} there")


_PUSHED = {"private": "private", "token": "token", "use_auth_token": "token"}


def _pushed(call: cst.Call) -> cst.Call | None:
    """A legacy `push_to_hub(save_directory, repository_id, ...)` as the native one; None if it hides some."""
    given = edits.arguments(call, ("save_directory", "repository_id"))
    repository = given.value("repository_id")
    options = {
        name: arg for name, arg in given.by_name.items() if name not in ("save_directory", "repository_id")
    }
    hidden = given.spread or any(arg.keyword is None for arg in given.extra)
    if repository is None or hidden or not options.keys() <= _PUSHED.keys():
        return None
    kept = [arg.with_changes(keyword=cst.Name(_PUSHED[name])) for name, arg in options.items()]
    return edits.with_arguments(call, [cst.Arg(repository), *kept])


def _as_submodule(site: Site, load: Load) -> list[str]:
    """What is said of a model that a module of the user keeps: a legacy one was no `torch.nn.Module`."""
    assign = site.parent(load.call)
    target = assign.targets[0].target if isinstance(assign, cst.Assign) else None
    owner = next((each for each in site.ancestors(load.call) if isinstance(each, cst.ClassDef)), None)
    if owner is None or not isinstance(target, cst.Attribute) or not isinstance(target.value, cst.Name):
        return []
    if target.value.value != "self" or not is_module(site, owner):
        return []
    return [
        f"`{edits.short(target)}` is a submodule now: `parameters()`, `state_dict()`, `train()` and `to()` "
        f"of `{owner.name.value}` reach it, which the compiled model was not part of"
    ]


def set_late(site: Site, group: Group, load: Load, template: str, **holes: cst.BaseExpression) -> bool:
    """Write statements after a load, about the object it gives a name; False if there is no such name.

    `{model}` stands for the object in the template.
    """
    assign = site.parent(load.call)
    line = site.statement(load.call)
    if (
        not isinstance(assign, cst.Assign)
        or len(assign.targets) != 1
        or not dotted_name(assign.targets[0].target)
        or not isinstance(line, cst.SimpleStatementLine)
    ):
        return False
    model = assign.targets[0].target
    group.insert(line, group.statements(template, model=model.deep_clone(), **holes), before=False)
    return True


def object_of(call: cst.Call, method: str) -> cst.BaseExpression:
    """The object whose method, or which itself, is called."""
    func = call.func
    return func.value if method and isinstance(func, cst.Attribute) else model_of(call)


def clusters(items: list[tuple[set[object], ItemT]]) -> list[list[ItemT]]:
    """Items in groups of those that share something, in their order."""
    clusters: list[tuple[set[object], list[int]]] = []
    for number, (keys, _) in enumerate(items):
        shared, members = set(keys), [number]
        apart = []
        for others, numbers in clusters:
            if others & shared:
                shared |= others
                members += numbers
            else:
                apart.append((others, numbers))
        clusters = [*apart, (shared, members)]
    return [[items[number][1] for number in sorted(members)] for _, members in clusters]


def reached_by_call(site: Site, call: cst.Call) -> set[object]:
    """What the rewrite of a call of a model may touch: its statement, and where its output is read."""
    reached: set[object] = {call}
    reached.update(each for each in site.ancestors(call) if isinstance(each, cst.BaseSmallStatement))
    reached.update(each.node for each in site.flow.uses_of(call).uses)
    return reached


def _expects_a_refusal(site: Site, call: cst.Call) -> bool:
    for around in site.ancestors(call):
        if isinstance(around, cst.FunctionDef):
            return False
        if isinstance(around, cst.Try):
            return any(
                handler.type is not None and "ValueError" in edits.code_of(handler.type)
                for handler in around.handlers
            )
    return False


def _is_input_device(site: Site, node: cst.Attribute) -> bool:
    """Whether `model.device` is only read to move an input of that model's call where it stands."""
    name = dotted_name(node.value)
    for around in site.ancestors(node):
        if name and isinstance(around, cst.Call) and dotted_name(model_of(around)) == name:
            return True
        if isinstance(around, cst.BaseSmallStatement):
            return False
    return False


def is_annotation(site: Site, node: cst.CSTNode) -> bool:
    """Whether a class is used as a type: in an annotation, or as the first argument of `typing.cast`."""
    inside = node
    for around in site.ancestors(node):
        if isinstance(around, cst.Annotation):
            return True
        if isinstance(around, cst.Call) and site.name_of(around.func) == "typing.cast":
            return inside is around.args[0]
        if isinstance(around, (cst.Call, cst.BaseSmallStatement)):
            return False
        inside = around
    return False


def is_isinstance(site: Site, node: cst.CSTNode) -> bool:
    for around in site.ancestors(node):
        if isinstance(around, cst.Call):
            return site.name_of(around.func) in ("builtins.isinstance", "builtins.issubclass")
        if isinstance(around, cst.BaseSmallStatement):
            return False
    return False


def is_base(site: Site, node: cst.CSTNode) -> bool:
    arg = site.parent(node)
    return isinstance(arg, cst.Arg) and isinstance(site.parent(arg), cst.ClassDef)

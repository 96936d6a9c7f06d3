"""Questions about models that are traced and saved: which file is meant, and how a model is built again."""

from __future__ import annotations

import ast
from collections.abc import Mapping

import libcst as cst

from neuronmigrate import artefacts, catalogue, edits
from neuronmigrate.artefacts import text_of
from neuronmigrate.loads.arguments import only_binding
from neuronmigrate.names import Binding, Kind
from neuronmigrate.origins import PASSTHROUGH, CallSite
from neuronmigrate.site import Site

_DEPTH = 4


def path_text(site: Site, value: cst.BaseExpression, depth: int = _DEPTH) -> str:
    """The text of a path, through names that are bound once; empty when it is known at run time alone."""
    constants: dict[str, str] = {}
    for name in _names(value):
        binding = only_binding(site, name)
        if binding is not None and binding.value is not None and depth:
            constants[name.value] = path_text(site, binding.value, depth - 1)
    try:
        parsed = ast.parse(edits.code_of(value).strip(), mode="eval")
    except (SyntaxError, ValueError):
        return ""
    return text_of(parsed.body, {name: text for name, text in constants.items() if text})


def path_shape(site: Site, value: cst.BaseExpression) -> str:
    """A path with `*` for what is known at run time alone; defaults of options count as known."""
    try:
        source = artefacts.Paths.of(site.path, site.module.code, site.project.constants)
    except (SyntaxError, ValueError):
        return artefacts.UNKNOWN
    return _shape(site, value, source.constants, _DEPTH)


def _shape(site: Site, value: cst.BaseExpression, constants: Mapping[str, str], depth: int) -> str:
    known = dict(constants)
    for name in _names(value):
        given = _given(site, name)
        if given is not None and depth:
            known[name.value] = _shape(site, given, constants, depth - 1)
    try:
        parsed = ast.parse(edits.code_of(value).strip(), mode="eval")
    except (SyntaxError, ValueError):
        return artefacts.UNKNOWN
    return text_of(parsed.body, known, artefacts.UNKNOWN)


def _given(site: Site, name: cst.Name) -> cst.BaseExpression | None:
    """What a name is bound to, or what a parameter is when nothing is passed."""
    binding = only_binding(site, name)
    if binding is not None:
        return binding.value
    bindings = site.names.bindings_at(name)
    param = site.parent(bindings[0].node) if len(bindings) == 1 else None
    return param.default if isinstance(param, cst.Param) else None


def same_path(site: Site, one: cst.BaseExpression, other: cst.BaseExpression) -> bool:
    """Whether two expressions certainly name the same file."""
    text = path_text(site, one)
    if text and text == path_text(site, other):
        return True
    if edits.code_of(one) != edits.code_of(other):
        return False
    names = list(zip(_names(one), _names(other), strict=True))
    return bool(names) and all(
        set(site.names.bindings_at(a)) == set(site.names.bindings_at(b)) for a, b in names
    )


def _names(value: cst.CSTNode) -> list[cst.Name]:
    """The names that an expression reads, in their order."""
    if isinstance(value, cst.Name):
        return [value]
    if isinstance(value, cst.Attribute):
        return _names(value.value)
    if isinstance(value, cst.Arg):
        return _names(value.value)
    return [name for child in value.children for name in _names(child)]


# Who else reads a model.


def is_read_later(site: Site, value: cst.BaseExpression, at: cst.CSTNode, depth: int = _DEPTH) -> bool:
    """Whether anything may read a model, or what it is made of, after a place that changes it.

    The answer errs on the side of yes: a copy more does no harm.
    """
    if isinstance(value, cst.Call):
        return _is_shared(site, value, at, depth)
    if not isinstance(value, cst.Name):
        return True
    if not depth:
        return True
    for binding in site.names.bindings_at(value):
        if binding.kind is Kind.PARAMETER:
            if _is_read_by_callers(site, binding, depth) or any(
                reader is not value and _runs_later(site, reader, binding.node, at)
                for reader in site.names.references(binding)
            ):
                return True
            continue
        if binding.kind not in (Kind.ASSIGN, Kind.WALRUS) or binding.path or binding.value is None:
            return True
        if site.project.imported_elsewhere(site.path, binding.name):
            return True
        for reader in site.names.references(binding):
            if reader is not value and _runs_later(site, reader, binding.node, at):
                return True
        if is_read_later(site, binding.value, at, depth - 1):
            return True
    return False


def _is_read_by_callers(site: Site, binding: Binding, depth: int) -> bool:
    """Whether whoever passes a parameter may read the value afterwards."""
    function = binding.scope.node
    if not isinstance(function, (cst.FunctionDef, cst.Lambda)) or site.flow.escapes(function):
        return True
    if isinstance(function, cst.FunctionDef) and site.project.imported_elsewhere(
        site.path, function.name.value
    ):
        return True
    sites = site.flow.call_sites(function)
    for each in sites:
        given = [arg for arg in each.call.args if not arg.star and _receives(each, arg, binding)]
        if len(given) != 1 or is_read_later(site, given[0].value, each.call, depth - 1):
            return True
    return not sites


def _receives(place: CallSite, arg: cst.Arg, binding: Binding) -> bool:
    receiver = place.receiver(arg)
    return receiver is not None and receiver[0].name is binding.node and not receiver[1]


def _is_shared(site: Site, call: cst.Call, at: cst.CSTNode, depth: int) -> bool:
    """Whether something holds on to a part of what a call made."""
    func = call.func
    if site.name_of(func) == "copy.deepcopy":
        return False
    if isinstance(func, cst.Attribute):
        if func.attr.value in ("from_pretrained", "from_config"):
            return False
        if func.attr.value in PASSTHROUGH:
            return is_read_later(site, func.value, at, depth)
    return any(
        is_read_later(site, name, at, depth - 1)
        for arg in call.args
        for name in _names(arg)
        if not _is_plain(site, name)
    )


def _is_plain(site: Site, name: cst.Name) -> bool:
    """Whether a name stands for text, a number or the like."""
    producers = site.flow.origin_of(name).producers
    return bool(producers) and all(
        (isinstance(each.node, cst.BaseExpression) and edits.is_literal(each.node))
        or each.name.startswith(("argparse.", "builtins.", "os."))
        for each in producers
    )


def _runs_later(site: Site, reader: cst.Name, bound: cst.CSTNode, at: cst.CSTNode) -> bool:
    """Whether a reader of a name may run after a place."""
    parent = site.parent(reader)
    if isinstance(parent, cst.Del):
        return False
    if any(each is at for each in site.ancestors(reader)):
        return False
    if site.names.order_of(reader) > site.names.order_of(at):
        return True
    if site.names.function_of(reader) is not site.names.function_of(at):
        return True
    # Above it in a loop that goes round with the same model.
    loops = [each for each in site.ancestors(at) if isinstance(each, (cst.For, cst.While))]
    inside = set(site.ancestors(reader))
    return any(loop in inside and loop not in set(site.ancestors(bound)) for loop in loops)


# How a model is built.


def builder(site: Site, model: cst.BaseExpression, at: cst.CSTNode) -> tuple[cst.BaseExpression, bool] | None:
    """An expression that gives, at another place, a model like one that is traced; None if there is none.

    The flag says that it is the very model, which has to be copied.
    """
    root = _names(model)
    if len(root) == 1 and isinstance(model, (cst.Name, cst.Attribute)) and _is_held(site, root[0], at):
        return model.deep_clone(), True
    producers = site.flow.origin_of(model).producers
    made = producers[0].node if len(producers) == 1 else None
    if isinstance(made, cst.Call) and all(_is_held(site, name, at) for name in _names(made)):
        return made.deep_clone(), False
    return None


def _is_held(site: Site, name: cst.Name, at: cst.CSTNode) -> bool:
    """Whether a name certainly has, at another place, the value that is read here."""
    names = site.names
    scope = names.lookup(name.value, at)
    if scope is not names.lookup(name.value, name):
        return _is_passed_alike(site, name, at)
    if scope is None:
        return True  # a builtin
    everywhere = scope.bindings.get(name.value, ())
    if scope is not names.scope(at):
        # The code of a function runs later; comprehensions read what is around them.
        return len(everywhere) == 1 and (scope is names.module_scope or everywhere[0].kind is Kind.PARAMETER)
    here = names.bindings_at(name)
    if not here or names.scope(name) is not scope:
        return len(everywhere) == 1 and everywhere[0].kind not in (Kind.ASSIGN, Kind.WALRUS)
    around = set(names.ancestors(at))
    orders = [names.order_of(each.node) for each in here]
    for each in here:
        suite = next((up for up in names.ancestors(each.node) if isinstance(up, _SUITES)), None)
        fixed = each.kind in (Kind.PARAMETER, Kind.IMPORT, Kind.FUNCTION, Kind.CLASS)
        if not fixed and (names.order_of(each.node) > names.order_of(at) or suite not in around):
            return False
    last = max(names.order_of(name), names.order_of(at))
    between = [
        each for each in everywhere if each not in here and min(orders) < names.order_of(each.node) < last
    ]
    gone = [
        each for each in names.nodes(cst.Del) if names.order_of(each) < last and _deletes(each, name.value)
    ]
    return not between and not gone


def _is_passed_alike(site: Site, name: cst.Name, at: cst.CSTNode) -> bool:
    """Whether a parameter is the same in both functions: `self` of one class, or what a parser read."""
    scope = site.names.lookup(name.value, at)
    there = scope.bindings.get(name.value, ()) if scope is not None else ()
    both = [site.names.bindings_at(name), there]
    if any(len(each) != 1 or each[0].kind is not Kind.PARAMETER for each in both):
        return False
    if name.value in artefacts.ARGUMENTS:
        return True
    owner = site.names.class_of(name)
    return name.value == "self" and owner is not None and owner is site.names.class_of(at)


def _deletes(statement: cst.Del, name: str) -> bool:
    target = statement.target
    targets = [each.value for each in target.elements] if isinstance(target, cst.Tuple) else [target]
    return any(isinstance(each, cst.Name) and each.value == name for each in targets)


_SUITES = (cst.IndentedBlock, cst.SimpleStatementSuite, cst.Module)


# Parts of pipelines and models that people put compiled files in the place of.
_PARTS = frozenset(
    {"controlnet", "decoder", "encoder", "image_encoder", "post_quant_conv", "quant_conv", "safety_checker"}
    | {
        "text_encoder",
        "text_encoder_2",
        "text_encoder_3",
        "transformer",
        "unet",
        "vae",
        "vision_model",
        "visual_projection",
    }
)


def standing(site: Site, load: cst.Call) -> tuple[cst.BaseExpression, bool] | None:
    """The module in whose place a load is put: `pipe.vae.decoder = torch.jit.load(...)`; None if it has none.

    The object has to come from a checkpoint, or from a class of this file that keeps such an attribute.
    """
    node: cst.CSTNode = load
    parent = site.parent(node)
    while isinstance(parent, cst.Arg):
        around = site.parent(parent)
        if not isinstance(around, cst.Call):
            return None
        node, parent = around, site.parent(around)
    if not isinstance(parent, cst.Assign) or len(parent.targets) != 1:
        return None
    target = parent.targets[0].target
    if not isinstance(target, cst.Attribute):
        return None
    holder, name = target.value, target.attr.value
    given = [
        store.value
        for store in (site.names.bindings_at(holder) if isinstance(holder, cst.Name) else site.names.stores)
        if store.value is not None
        and edits.code_of(store.node) == edits.code_of(holder)
        and site.names.order_of(store.node) < site.names.order_of(load)
    ]
    func = given[-1].func if given and isinstance(given[-1], cst.Call) else None
    owners = [each.node for each in site.names.bindings_at(func)] if isinstance(func, cst.Name) else []
    if owners and all(isinstance(each, cst.ClassDef) for each in owners):
        kept = [each for owner in owners for each in _kept(site, owner, name)]
        held = bool(kept) and not any(each is None or edits.is_literal(each) for each in kept)
        return (target.deep_clone(), False) if held else None
    if given and not isinstance(holder, cst.Name):
        # A class of another module may keep it.
        qualified = (site.name_of(func) if func is not None else None) or ""
        facts = site.flow.facts
        known = facts is not None and facts.knows(qualified) and facts.attribute_of(qualified, name)
        return (target.deep_clone(), False) if known else None
    root = _names(holder)
    producers = site.flow.origin_of(root[0]).producers if root else ()
    loaded = producers and all(
        ".from_pretrained" in each.name and not catalogue.is_legacy(each.name) for each in producers
    )
    return (target.deep_clone(), False) if loaded and name in _PARTS else None


def _kept(site: Site, owner: cst.CSTNode, name: str) -> list[cst.BaseExpression | None]:
    """What the methods of a class of this file keep under an attribute."""
    if not isinstance(owner, cst.ClassDef):
        return []
    return [
        store.value
        for store in site.names.stores
        if store.node.attr.value == name
        and edits.code_of(store.node.value) == "self"
        and site.names.class_of(store.node) is owner
    ]

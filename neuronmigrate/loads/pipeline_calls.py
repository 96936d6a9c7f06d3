"""Calls of diffusion pipelines: what the compiled graph decided is written into them.

The compiled size overruled a call's, images were brought to it, and whether guidance ran depended on how
the pipeline was placed (`NeuronDiffusionPipelineBase.__call__` in modeling_diffusion.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.loads.arguments import constant, only_binding, text_of, written_out
from neuronmigrate.moving import model_of
from neuronmigrate.names import dotted_name
from neuronmigrate.site import Site

ON_DEVICE = "its tensors are on the device now: `.cpu()` before numpy, PIL or CPU tensors"
# Keywords of a call that the compiled graph never got to see.
_UNSEEN = ("cross_attention_kwargs", "guess_mode")
# What gives an image of PIL.
_PICTURES = ("PIL.Image.fromarray", "PIL.Image.new", "PIL.Image.open", "diffusers.utils.load_image")
_CALLBACKS = "`callback` gets latents on the device; Diffusers wants `callback_on_step_end` instead"
_LATENTS = "`latents` have to be of the pipeline's dtype now: `.to(pipe.dtype)`"


@dataclass(frozen=True)
class Pipeline:
    """What is particular about a pipeline class of Diffusers (0.42)."""

    leading: int
    """How many positional arguments of a call mean the same in every legacy release and natively."""
    image: int | None = None
    """The position of `image` where a call takes no size and the image decides about it."""
    guided: bool = False
    """Whether the legacy class decided by itself if classifier-free guidance runs."""
    checked: bool = False
    """Whether repositories may bring a safety checker, which legacy classes never loaded."""
    lora: bool = True
    controlnet: bool = False
    prompt_length: bool = False
    """Whether the compiled text length overruled `max_sequence_length`."""


class Refused(Exception):
    """A call cannot be rewritten. Its text says why."""


class CallRewrite:
    """What becomes of one call of a pipeline."""

    def __init__(
        self,
        site: Site,
        what: Pipeline,
        values: Mapping[str, cst.BaseExpression],
        home: cst.Call,
        call: cst.Call,
    ) -> None:
        """`values` are what the pipeline was compiled for, as they stand at its load `home`.

        A `guidance_scale` among them says that guidance never ran.
        """
        self.site = site
        self.values = values
        self.home = home
        self.call = call
        self.what = what
        self.line = site.positions.span(call).line
        self.args = list(call.args)
        self.keywords: list[str] = []
        """Keywords that are put in."""
        self.read: set[str] = set()
        """Variables of the load that are read now."""
        self.gone: list[cst.Arg | cst.BaseDictElement] = []
        """What is not written any more."""
        self.todo: list[str] = []
        self.changed = False

    @property
    def result(self) -> cst.Call:
        return edits.with_arguments(self.call, self.args) if self.changed else self.call

    def run(self) -> None:
        """Work out the new arguments. Raises Refused."""
        self._check_positions()
        size = {name: self._compiled(name) for name in ("height", "width")}
        if self.what.image is None:
            for name, value in size.items():
                self._overrule(name, value, f"`{name}=` was ignored before, and the compiled one is written")
        else:
            self._resize(size)
        if self.what.prompt_length:
            length = "max_sequence_length"
            self._overrule(length, self._compiled("sequence_length"), f"`{length}=` was ignored before")
        self._guidance()
        self._leave_out()
        self._look()

    def _check_positions(self) -> None:
        count = 0
        for arg in self.args:
            if arg.star == "*":
                raise Refused(f"its arguments come as `*{edits.short(arg.value)}`")
            count += not arg.star and arg.keyword is None
        if count > self.what.leading:
            raise Refused("its positional arguments mean others natively: pass them by keyword")

    def _compiled(self, name: str) -> cst.BaseExpression | None:
        """What a shape was compiled as, as it can be written in this call. Raises Refused."""
        value = self.values.get(name)
        if value is None or edits.code_of(value) == "None":
            return None
        found = value_at(self.site, value, self.home, self.call)
        if found is None:
            raise Refused(
                f"the compiled `{name}={edits.short(value)}` is not known there: pass it to this call"
            )
        self.read.update(name.value for name in names_in(found))
        if _may_change(self.site, found, self.call):
            self.todo.append(f"line {self.line}: `{edits.short(found)}` is read anew at each call")
        return found

    def _overrule(self, name: str, value: cst.BaseExpression | None, said: str) -> None:
        """Let a call say a value that overruled what it said before."""
        if value is None:
            return
        given = self._keyword(name)
        if given is not None:
            if edits.code_of(given.value) != edits.code_of(value):
                self.gone.append(given)
                self._replace(given, given.with_changes(value=value))
                self.todo.append(f"line {self.line}: {said}")
            return
        for arg in [arg for arg in self.args if arg.star == "**"]:
            known = self._entry(arg.value, name)
            if known is _ABSENT:
                continue
            if known is None or edits.code_of(known) != edits.code_of(value):
                self._enter(arg, name, value)
                if known is not None:
                    self.todo.append(f"line {self.line}: {said}")
            return
        self.args.append(edits.keyword(name, value))
        self.keywords.append(name)
        self.changed = True

    def _entry(self, mapping: cst.BaseExpression, name: str) -> cst.BaseExpression | None:
        """What a mapping holds under a key: `_ABSENT` for nothing, None where it cannot be told."""
        if not isinstance(mapping, cst.Dict):
            known = written_out(self.site, mapping)
            return None if known is None else known.get(name, _ABSENT)
        for element in reversed(mapping.elements):
            if isinstance(element, cst.StarredDictElement):
                found = self._entry(element.value, name)
                if found is not _ABSENT:
                    return found
            elif isinstance(element, cst.DictElement):
                if not isinstance(element.key, cst.SimpleString):
                    return None
                if _key_of(element) == name:
                    return element.value
        return _ABSENT

    def _enter(self, arg: cst.Arg, name: str, value: cst.BaseExpression) -> None:
        """Let an entry of a dictionary that is spread have another value."""
        entry = cst.DictElement(edits.string(name), value)
        if isinstance(arg.value, cst.Dict):
            kept = [each for each in arg.value.elements if _key_of(each) != name]
            self.gone += [each for each in arg.value.elements if _key_of(each) == name]
            new = arg.value.with_changes(elements=[*kept, entry])
        else:
            new = cst.Dict([cst.StarredDictElement(arg.value), entry])
        self._replace(arg, arg.with_changes(value=new))

    def _keyword(self, name: str) -> cst.Arg | None:
        return next((arg for arg in self.args if arg.keyword and arg.keyword.value == name), None)

    def _replace(self, old: cst.Arg, new: cst.Arg) -> None:
        self.args[self.args.index(old)] = new
        self.changed = True

    def _drop(self, arg: cst.Arg) -> None:
        self.args.remove(arg)
        self.gone.append(arg)
        self.changed = True

    def _resize(self, size: Mapping[str, cst.BaseExpression | None]) -> None:
        """Bring the image to the compiled size as the legacy class did: with the pipeline's own processor."""
        for name in size:
            given = self._keyword(name)
            if given is not None:
                self._drop(given)
                self.todo.append(
                    f"line {self.line}: `{name}=` was ignored before, and no such pipeline takes it"
                )
        height, width = size["height"], size["width"]
        if height is None or width is None:
            return
        image = self._keyword("image")
        plain = [arg for arg in self.args if not arg.star and arg.keyword is None]
        if image is None and self.what.image is not None and len(plain) > self.what.image:
            image = plain[self.what.image]
        if image is not None:
            new = self._resized(image.value, height, width)
            if new is not image.value:
                self._replace(image, image.with_changes(value=new))
            return
        for arg in [arg for arg in self.args if arg.star == "**"]:
            known = self._entry(arg.value, "image")
            if known is None:
                raise Refused(
                    f"whether `**{edits.short(arg.value)}` holds an image, which was resized, cannot be seen"
                )
            if known is not _ABSENT:
                inside = known
                if isinstance(arg.value, cst.Name):
                    key = cst.SubscriptElement(cst.Index(edits.string("image")))
                    inside = cst.Subscript(arg.value, [key])
                new = self._resized(inside, height, width, known)
                if new is not inside:
                    self._enter(arg, "image", new)
                return

    def _resized(
        self,
        image: cst.BaseExpression,
        height: cst.BaseExpression,
        width: cst.BaseExpression,
        seen: cst.BaseExpression | None = None,
    ) -> cst.BaseExpression:
        """The image at the compiled size; the same expression where it has that size. `seen` is its value."""
        seen = seen or image
        if edits.is_literal(seen) or self._has_size(seen, height, width):
            return image
        pipe = model_of(self.call)
        if not dotted_name(pipe):
            raise Refused("the pipeline has no name here of which its image processor could be asked")
        # The pipeline preprocesses what it gets: a tensor with nothing below zero, as of a pale image, would
        # be normalized again (`VaeImageProcessor.preprocess`). `resize` takes no list, and scales latents.
        step = "resize" if self._is_picture(seen) else "preprocess"
        if step == "preprocess":
            self.todo.append(
                f"line {self.line}: a picture that is pale all over is normalized twice, as it was before: "
                "where the image is one of PIL, write `resize` for `preprocess`"
            )
        return edits.expression(
            f"{{pipe}}.image_processor.{step}({{image}}, height={{height}}, width={{width}})",
            pipe=pipe.deep_clone(),
            image=image,
            height=height,
            width=width,
        )

    def _is_picture(self, image: cst.BaseExpression) -> bool:
        """Whether an image is certainly one of PIL."""
        if isinstance(image, cst.Name):
            binding = only_binding(self.site, image)
            return binding is not None and binding.value is not None and self._is_picture(binding.value)
        if not isinstance(image, cst.Call):
            return False
        if self.site.name_of(image.func) in _PICTURES:
            return True
        return (
            isinstance(image.func, cst.Attribute)
            and image.func.attr.value in ("convert", "resize")
            and self._is_picture(image.func.value)
        )

    def _has_size(
        self, image: cst.BaseExpression, height: cst.BaseExpression, width: cst.BaseExpression
    ) -> bool:
        """Whether an image was brought to the compiled size just before."""
        if isinstance(image, cst.Name):
            binding = only_binding(self.site, image)
            image = binding.value if binding is not None and binding.value is not None else image
        if not (isinstance(image, cst.Call) and isinstance(image.func, cst.Attribute) and image.args):
            return False
        given = {arg.keyword.value: edits.code_of(arg.value) for arg in image.args if arg.keyword}
        if "height" in given and image.func.attr.value in ("preprocess", "resize"):
            return [given["height"], given.get("width")] == [edits.code_of(height), edits.code_of(width)]
        wanted = f"({edits.code_of(width)}, {edits.code_of(height)})"
        return image.func.attr.value == "resize" and edits.code_of(image.args[0].value) == wanted

    def _guidance(self) -> None:
        """Switch guidance off where it never ran."""
        value = self.values.get("guidance_scale")
        if value is None:
            return
        given = self._keyword("guidance_scale")
        number = given.value if given is not None else None
        if isinstance(number, (cst.Integer, cst.Float)) and float(number.value) <= 1:
            return
        self._overrule(
            "guidance_scale", value, "`guidance_scale=` had no effect before, as it has none at 1.0"
        )
        if given is None:
            self.todo.append(
                f"line {self.line}: no guidance ran before, on one core; `guidance_scale=1.0` keeps it off"
            )

    def _leave_out(self) -> None:
        """Leave out what had no effect before, and would have one now."""
        for name in _UNSEEN if self.what.controlnet else _UNSEEN[:1]:
            given = self._keyword(name)
            if given is not None and edits.code_of(given.value) not in ("None", "False"):
                self._drop(given)
                self.todo.append(f"line {self.line}: `{name}` was ignored before, and left out now")
            for arg in [arg for arg in self.args if arg.star == "**"]:
                known = self._entry(arg.value, name)
                if known is not None and edits.code_of(known) not in (_ABSENT.value, "None", "False"):
                    self.todo.append(f"line {self.line}: `{name}` was ignored before, and acts now")

    def _look(self) -> None:
        """Say what is not rewritten and means something else."""
        output = self._keyword("output_type")
        if output is not None and text_of(constant(self.site, output.value)) in ("pt", "latent"):
            self.todo.append(f"line {self.line}: {ON_DEVICE}")
        if self._keyword("callback"):
            self.todo.append(f"line {self.line}: {_CALLBACKS}")
        if self._keyword("latents"):
            self.todo.append(f"line {self.line}: {_LATENTS}")


_ABSENT = cst.Name("absent")


def _key_of(element: cst.BaseDictElement) -> str | None:
    key = element.key if isinstance(element, cst.DictElement) else None
    return text_of(key) if isinstance(key, cst.SimpleString) else None


def value_at(
    site: Site, value: cst.BaseExpression, home: cst.Call, call: cst.Call
) -> cst.BaseExpression | None:
    """An expression that stands at a load, as it can be written at a call; None if it cannot."""
    if edits.is_literal(value):
        return value.deep_clone()
    names = [value] if isinstance(value, cst.Name) else list(names_in(value))
    if _only_reads(site, value) and all(_is_same(site, name, home, call) for name in names):
        return value.deep_clone()
    literal = constant(site, value)
    if edits.is_literal(literal):
        return literal.deep_clone()
    made = {edits.code_of(each.node): each.node for each in site.flow.origin_of(value).producers if each.node}
    if len(made) == 1 and site.flow.origin_of(value).certain:
        only = next(iter(made.values()))
        if isinstance(only, cst.Integer):
            return only.deep_clone()
    return None


def _may_change(site: Site, value: cst.BaseExpression, call: cst.Call) -> bool:
    """Whether an attribute of an instance is given a value in more than one place."""
    parts = (dotted_name(value) or "").split(".")
    scope = site.names.lookup(parts[0], call) if len(parts) > 1 else None
    bindings = scope.bindings.get(parts[0], ()) if scope is not None else ()
    owners = [owner for owner in map(site.names.instance_class, bindings) if owner is not None]
    return any(len(site.names.class_attribute(owner, parts[1])) > 1 for owner in owners)


def _only_reads(site: Site, value: cst.BaseExpression) -> bool:
    """Whether an expression can be evaluated again: names, settings that are looked up, numbers of them."""
    if edits.is_pure(value):
        return True
    if isinstance(value, cst.Attribute):
        return _only_reads(site, value.value)
    if isinstance(value, cst.Subscript):
        keys = [each.slice.value for each in value.slice if isinstance(each.slice, cst.Index)]
        return all(_only_reads(site, each) for each in [value.value, *keys])
    if isinstance(value, cst.BinaryOperation):
        return _only_reads(site, value.left) and _only_reads(site, value.right)
    if isinstance(value, cst.Call):
        func = value.func
        looks_up = (
            isinstance(func, cst.Attribute) and func.attr.value == "get" and _only_reads(site, func.value)
        )
        known = site.name_of(func) in ("builtins.int", "os.getenv", "os.environ.get")
        return (known or looks_up) and all(_only_reads(site, arg.value) for arg in value.args)
    return False


def names_in(value: cst.CSTNode) -> Iterator[cst.Name]:
    """The names that an expression reads."""
    if isinstance(value, cst.Name):
        yield value
    for child in [value.value] if isinstance(value, cst.Attribute) else value.children:
        yield from names_in(child)


def _is_same(site: Site, name: cst.Name, home: cst.Call, call: cst.Call) -> bool:
    """Whether a name means the same at a load and at a call: one variable, bound once, or one instance."""
    here, there = site.names.lookup(name.value, home), site.names.lookup(name.value, call)
    if here is None or there is None:
        return here is there
    bindings = [scope.bindings.get(name.value, ()) for scope in (here, there)]
    if here is there:
        return len(bindings[0]) == 1
    owners = {site.names.instance_class(each) for found in bindings for each in found}
    return len(owners) == 1 and None not in owners

"""What was compiled into a diffusion pipeline: LoRA weights, IP-adapters, a U-Net or ControlNets of its own.

Natively they are loaded beside the pipeline: models as arguments of its load, adapters by statements
that follow it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.loads.arguments import Load, constant, only_binding
from neuronmigrate.site import Group, Site

IP_ADAPTER = ("id", "subfolder", "weight_name", "scale")
"""What follows `ip_adapter_` in arguments of a load."""
_LCM = ("lcm", "latent-consistency")


@dataclass(frozen=True)
class Loader:
    """A statement that loads or sets something in a pipeline: a template with its holes and keywords."""

    template: str
    holes: Mapping[str, cst.BaseExpression] = field(default_factory=dict)
    keywords: tuple[str, ...] = ()


def items_of(site: Site, value: cst.BaseExpression) -> list[cst.BaseExpression] | None:
    """The items of a list that is written out, or the one thing; None when it cannot be told which."""
    seen = value
    if isinstance(value, cst.Name):
        binding = only_binding(site, value)
        if binding is None or binding.value is None:
            return None
        seen = binding.value
    if isinstance(seen, (cst.List, cst.Tuple)):
        items = [each.value for each in seen.elements if isinstance(each, cst.Element)]
        whole = len(items) == len(seen.elements)
        far = seen is not value and not all(edits.is_literal(each) for each in items)
        return items if whole and not far else None
    if isinstance(seen, (cst.SimpleString, cst.FormattedString, cst.Float, cst.Integer)):
        return [value]
    return None


def loaders_of(site: Site, load: Load) -> list[Loader]:
    """The statements that a pipeline needs after its load, in their order."""
    values = load.source.values
    return [*_lora(site, values), *_ip_adapter(values), *_lcm_scheduler(site, values)]


def lora_items(
    site: Site, values: Mapping[str, cst.BaseExpression]
) -> dict[str, list[cst.BaseExpression]] | None:
    """The LoRA arguments as lists; None where it cannot be told how many there are."""
    given = {
        name: values[f"lora_{name}"]
        for name in ("model_ids", "weight_names", "adapter_names", "scales")
        if f"lora_{name}" in values
    }
    items = {name: items_of(site, value) for name, value in given.items()}
    known = [each for name, each in items.items() if each is not None and name != "adapter_names"]
    if None in items.values() and (not known or any(len(each) != 1 for each in known)):
        return None
    return {name: each or [given[name]] for name, each in items.items()}


def _lora(site: Site, values: Mapping[str, cst.BaseExpression]) -> Iterator[Loader]:
    """LoRA weights, fused as `_load_lora_weights_to_pipeline` did (exporters/neuron/utils.py)."""
    given = lora_items(site, values) or {}
    ids, scales = given.get("model_ids", []), given.get("scales", [])
    if not ids:
        return
    several = len(ids) > 1
    for number, each in enumerate(ids):
        holes = {"id": each.deep_clone()}
        template = "{pipe}.load_lora_weights({id}"
        keywords = [("weight_name", "weight_names"), ("adapter_name", "adapter_names")]
        for keyword, name in keywords[: 2 if several else 1]:
            if number < len(given.get(name, [])):
                holes[keyword] = given[name][number].deep_clone()
                template += f", {keyword}={{{keyword}}}"
        taken = tuple(name for name in holes if name != "id")
        yield Loader(template + ")\n", holes, taken)
    if several and scales and "adapter_names" in given:
        names = cst.List([cst.Element(each.deep_clone()) for each in given["adapter_names"]])
        weights = cst.List([cst.Element(each.deep_clone()) for each in scales])
        yield Loader(
            "{pipe}.set_adapters({names}, adapter_weights={weights})\n",
            {"names": names, "weights": weights},
            ("adapter_weights",),
        )
    if scales and not several:
        yield Loader(
            "{pipe}.fuse_lora(lora_scale={scale})\n", {"scale": scales[0].deep_clone()}, ("lora_scale",)
        )
    else:
        yield Loader("{pipe}.fuse_lora()\n")


def _ip_adapter(values: Mapping[str, cst.BaseExpression]) -> Iterator[Loader]:
    given = {
        name: values.get(f"ip_adapter_{name}") or values.get(f"ip_adapter_{name}s") for name in IP_ADAPTER
    }
    found = {name: value.deep_clone() for name, value in given.items() if value is not None}
    if "id" not in found:
        return
    holes = {"id": found["id"], "subfolder": found.get("subfolder", cst.Name("None"))}
    template = "{pipe}.load_ip_adapter({id}, subfolder={subfolder}"
    if "weight_name" in found:
        holes["weight_name"] = found["weight_name"]
        template += ", weight_name={weight_name}"
    yield Loader(template + ")\n", holes, tuple(name for name in holes if name != "id"))
    if "scale" in found:
        yield Loader("{pipe}.set_ip_adapter_scale({scale})\n", {"scale": found["scale"]})


def is_lcm(site: Site, names: Iterable[cst.BaseExpression | None], text: str = "") -> bool:
    """Whether a U-Net is of the fast kind, by the name of what it is loaded from.

    It takes guidance as an input, and classifier-free guidance never runs with it, then and natively.
    """
    texts = [text, *(edits.code_of(constant(site, name)) for name in names if name is not None)]
    return any(each in text.lower() for each in _LCM for text in texts)


def _lcm_scheduler(site: Site, values: Mapping[str, cst.BaseExpression]) -> Iterator[Loader]:
    """The scheduler that a U-Net of that kind got (`is_lcm` in modeling_diffusion.py)."""
    if is_lcm(site, [values.get("unet_id")]):
        yield Loader("{pipe}.scheduler = diffusers.LCMScheduler.from_config({pipe}.scheduler.config)\n")


def components(site: Site, group: Group, load: Load) -> list[cst.Arg]:
    """The U-Net and the ControlNets, as arguments of the pipeline's load."""
    values = load.source.values
    args = []

    def loaded(template: str, value: cst.BaseExpression) -> cst.BaseExpression:
        site.keywords.append((template, "dtype"))
        return group.expression(
            f"{template}({{id}}, dtype={{dtype}})", id=value.deep_clone(), dtype=dtype_of(group, load)
        )

    if "unet_id" in values:
        args.append(
            edits.keyword("unet", loaded("diffusers.UNet2DConditionModel.from_pretrained", values["unet_id"]))
        )
    items = items_of(site, values["controlnet_ids"]) if "controlnet_ids" in values else None
    if items:
        models = [loaded("diffusers.ControlNetModel.from_pretrained", each) for each in items]
        whole = models[0] if len(models) == 1 else cst.List([cst.Element(each) for each in models])
        args.append(edits.keyword("controlnet", whole))
    return args


def dtype_of(group: Group, load: Load) -> cst.BaseExpression:
    """The dtype that a load asks for, as an expression of its own."""
    return load.dtype.deep_clone() if load.dtype is not None else group.expression(load.cast)

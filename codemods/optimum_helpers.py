"""Small helpers and constants of Optimum Neuron, such as `get_available_cores()` and `NEURON_FILE_NAME`.

Each is written out, or replaced by the function of PyTorch or of the standard library that tells the same.
Names of compiled files stay what they are, so that a test for such a file keeps its meaning; the native
device reads none of them. Other helpers are marked from the catalogue.
"""

from __future__ import annotations

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Call, Codemod
from neuronmigrate.site import Site, Use

codemod = Codemod(__name__)

_CORES = Call("torch.accelerator.device_count()")
_COUNTED = "torch counts the devices that a process may use"
_LIMITS = "a device is a logical core: NEURON_LOGICAL_NC_CONFIG decides how many physical ones it has"

codemod.symbol("optimum.neuron.modeling_decoder.get_available_cores", _CORES, because=_COUNTED, todo=_LIMITS)
codemod.symbol("optimum.neuron.utils.system.get_available_cores", _CORES, because=_COUNTED, todo=_LIMITS)
codemod.symbol(
    "optimum.neuron.utils.version_utils.get_neuronxcc_version",
    Call('importlib.metadata.version("neuronx-cc")'),
    because="the native stack has the same compiler, and its package tells the release",
)

# optimum/neuron/utils/constant.py of 0.4.5.
FILES = {
    "DECODER_NAME": "decoder",
    "DIFFUSION_MODEL_CONTROLNET_NAME": "controlnet",
    "DIFFUSION_MODEL_IMAGE_ENCODER_NAME": "image_encoder",
    "DIFFUSION_MODEL_TEXT_ENCODER_2_NAME": "text_encoder_2",
    "DIFFUSION_MODEL_TEXT_ENCODER_NAME": "text_encoder",
    "DIFFUSION_MODEL_TRANSFORMER_NAME": "transformer",
    "DIFFUSION_MODEL_UNET_NAME": "unet",
    "DIFFUSION_MODEL_VAE_DECODER_NAME": "vae_decoder",
    "DIFFUSION_MODEL_VAE_ENCODER_NAME": "vae_encoder",
    "ENCODER_NAME": "encoder",
    "NEURON_FILE_NAME": "model.neuron",
}
CONSTANTS = {
    f"optimum.neuron.utils.{module}{name}": text
    for module in ("", "constant.")
    for name, text in FILES.items()
}


@codemod.uses(CONSTANTS)
def decide_constant(site: Site, use: Use) -> None:
    """Write the text of a constant."""
    if use.stored or use.quoted or use.method:
        return
    group = site.group(use)
    group.replace(use.node, edits.string(CONSTANTS[use.claim]))
    if use.claim.endswith("NEURON_FILE_NAME"):
        group.review(
            use.node,
            use.name,
            "it is the name of a compiled file",
            "the native device reads no compiled files: load the original where one is found",
        )
    else:
        group.fixed(use.node, use.name, "it is the name of a folder")


VERSIONS = ("optimum.neuron.__version__", "optimum.neuron.version.__version__")


@codemod.uses(VERSIONS)
def decide_version(site: Site, use: Use) -> None:
    """Tell the release of the native stack where one is only told; where it decides all are marked."""
    uses = [each for each in site.uses if each.claim in VERSIONS]
    if not all(_is_told(site, each.chain) and not each.stored for each in uses):
        return
    group = site.group(use)
    group.replace(use.chain, group.expression('importlib.metadata.version("torch-neuronx")'))
    group.review(
        use.chain,
        use.name,
        "what it tells is a release of the stack that a program runs on",
        "it is the release of torch-neuronx now, not that of Optimum Neuron",
    )


def _is_told(site: Site, node: cst.CSTNode) -> bool:
    """Whether a value goes into a text, or is printed."""
    parent = site.parent(node)
    if isinstance(parent, cst.FormattedStringExpression):
        return True
    call = site.parent(parent) if isinstance(parent, cst.Arg) else None
    return isinstance(call, cst.Call) and site.name_of(call.func) == "builtins.print"

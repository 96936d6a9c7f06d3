"""`scaled_dot_product_attention`, on the way that the CPU takes.

PyTorch's C++ chooses between the flash kernel and the formula by device, and for a device that it does not
know always takes the formula, whose sums are in another order.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Parameter

from neuronmigrate.runtime.emulated.fallback import MixedDevices, by_name
from neuronmigrate.runtime.emulated.retag import to_cpu

NAME = "scaled_dot_product_attention"
FLASH = 1
"""`sdp::SDPBackend::flash_attention` (aten/src/ATen/SDPBackend.h)."""

LIFTS = not torch.__version__.startswith("2.13.")
"""Whether this torch gives three dimensions a fourth, which torch 2.14 began with."""

aten = torch.ops.aten


def lift(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The operands as torch passes them on: with a leading dimension of 1 where three have none."""
    if not LIFTS or not query.dim() == key.dim() == value.dim() == 3:
        return query, key, value, attn_mask
    if attn_mask is not None and attn_mask.dim() in (1, 3):
        attn_mask = attn_mask.unsqueeze(0)
    return query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0), attn_mask


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """aten::scaled_dot_product_attention; shapes as there: `[..., heads, length, size]`.

    Raises MixedDevices if an argument is not on the device.
    """
    tensors = [query, key, value] if attn_mask is None else [query, key, value, attn_mask]
    real = all(type(tensor) in (Tensor, Parameter) for tensor in tensors)
    if real:
        if any(tensor.get_device() != 0 for tensor in tensors):
            raise MixedDevices(f"aten::{NAME}", tensors)
        if not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)):
            operands = (query, key, value, attn_mask, dropout_p, is_causal)
            return by_name(f"aten::{NAME}", *operands, scale=scale, enable_gqa=enable_gqa)  # type: ignore[return-value]
    lifted = lift(query, key, value, attn_mask)
    if lifted[0] is not query:
        made = attention(*lifted, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        return made.squeeze(0)
    if real:
        twins = [to_cpu(tensor).requires_grad_(tensor.requires_grad) for tensor in tensors]
        choice = aten._fused_sdp_choice.default(
            *twins[:3],
            twins[3] if attn_mask is not None else None,
            dropout_p,
            is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )
        flash = choice == FLASH
    else:  # being traced: there is nothing to ask the CPU's chooser about
        flash = fits_flash(query, key, value, attn_mask, dropout_p)
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        nothing = torch.zeros((), dtype=query.dtype, device=attn_mask.device)
        attn_mask = nothing.where(attn_mask, float("-inf"))
    if flash:
        results = aten._scaled_dot_product_flash_attention_for_cpu.default(
            query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
        )
    else:
        results = aten._scaled_dot_product_attention_math.default(
            query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )
    return results[0]  # type: ignore[no-any-return]


def fits_flash(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float) -> bool:
    """Whether the CPU's chooser takes the flash kernel, judged by shapes alone (sdp_utils_cpp.cpp)."""
    lengths = (query.size(-2), key.size(-2), value.size(-2))
    return (
        dropout_p == 0.0
        and query.dim() == key.dim() == value.dim() == 4
        and query.size(-1) == key.size(-1) == value.size(-1)
        and all(length > 0 for length in lengths)
        and (attn_mask is None or (attn_mask.dim() in (2, 4) and not attn_mask.requires_grad))
    )


def install(lib: torch.library.Library) -> None:
    """Register above autograd, and below it for inference mode."""
    lib.impl(NAME, attention, "AutogradPrivateUse1")
    lib.impl(NAME, attention, "PrivateUse1")

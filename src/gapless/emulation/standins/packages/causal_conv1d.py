"""causal-conv1d: a depthwise convolution along time, whole and step by step."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gapless.emulation.standins.launch import differentiable, launch
from gapless.emulation.standins.package import Package

PACKAGE = Package(
    "causal_conv1d",
    "causal-conv1d",
    "1.6.1",
    lacks="causal_conv1d_varlen is missing",
    requests=("causal-conv1d", "use_mamba_kernels"),
)
_MODULES = ("causal_conv1d", "causal_conv1d.causal_conv1d_interface")


def _activated(activation: str | None) -> bool:
    """Whether SiLU follows.

    Raises:
        NotImplementedError: another activation.
    """
    if activation not in (None, "silu", "swish"):
        raise NotImplementedError("activation must be None, silu, or swish")
    return activation is not None


def _convolve(
    active: bool,
    final: bool,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    states: Tensor | None,
    ids: Tensor | None,
) -> Any:
    """``[batch, channels, length]`` convolved in float32; with `final` the last inputs too.

    Taps that reach into another sequence, told by `ids` ``[batch, length]``, count as zeros.
    """
    width = weight.shape[1]
    wide = x.float()
    before = states.float() if states is not None else wide.new_zeros(*x.shape[:2], width - 1)
    padded = torch.cat((before, wide), -1)
    taps = padded.unfold(-1, width, 1)
    if ids is not None:
        own = functional.pad(ids, (width - 1, 0), value=-1).unfold(-1, width, 1)
        taps = taps * (own == ids[..., None])[:, None]
    out = (taps * weight.float()[:, None]).sum(-1)
    out = out if bias is None else out + bias.float()[:, None]
    out = (functional.silu(out) if active else out).to(x.dtype)
    return (out, padded[..., padded.shape[-1] - width + 1 :].to(x.dtype)) if final else out


@PACKAGE.provides(*_MODULES)
def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
) -> Any:
    """`x` ``[batch, channels, length]`` convolved with `weight` ``[channels, width]``."""
    body = partial(_convolve, _activated(activation), return_final_states)
    result = differentiable(
        "causal_conv1d::causal_conv1d_fwd",
        body,
        x,
        weight,
        bias,
        initial_states,
        seq_idx,
        backward="causal_conv1d::causal_conv1d_bwd",
    )
    if return_final_states and final_states_out is not None:
        return result[0], final_states_out.copy_(result[1])
    return result


@PACKAGE.provides(*_MODULES)
def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    cache_seqlens: Tensor | None = None,
    conv_state_indices: Tensor | None = None,
) -> Tensor:
    """Convolve next steps `x` ``[batch, channels(, steps)]``; `conv_state` is updated.

    With `cache_seqlens` the state is a ring, and with `conv_state_indices` its rows are chosen.
    """
    active = _activated(activation)

    def body(x: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None, at: Any, rows: Any) -> Tensor:
        steps = x if x.dim() == 3 else x[..., None]
        own = state if rows is None else state[rows.long()]
        width, size, length = weight.shape[1], state.shape[-1], steps.shape[-1]
        if at is None:
            whole = torch.cat((own, steps), -1)
            kept = whole[..., whole.shape[-1] - size :]
            before = (
                whole[..., : whole.shape[-1] - length][..., -(width - 1) :] if width > 1 else own[..., :0]
            )
        else:
            back = (torch.arange(1 - width, 0) + at.long()[:, None]) % size
            before = own.gather(2, back[:, None].expand(-1, own.shape[1], -1))
            ahead = (torch.arange(length) + at.long()[:, None]) % size
            kept = own.scatter(2, ahead[:, None].expand(-1, own.shape[1], -1), steps.to(own.dtype))
        out = _convolve(active, False, steps, weight, bias, before, None)
        if rows is None:
            state.copy_(kept)
        else:
            state[rows.long()] = kept.to(state.dtype)
        return out if x.dim() == 3 else out[..., 0]

    with torch.no_grad():
        out: Tensor = launch(
            "causal_conv1d::causal_conv1d_update",
            body,
            x,
            conv_state,
            weight,
            bias,
            cache_seqlens,
            conv_state_indices,
        )
    return out

"""What fla's modules launch for other shapes: wide rows, long sequences, one token, several sequences in one."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from kernel_cases.cases import Case, first
from kernel_cases.fla.names import module


def _with_state(x: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """A convolution after a state of the last 4 inputs, and the state that it leaves but for its unused first."""
    whole = torch.cat((x.s, x.x.transpose(1, 2)), -1)
    out = F.conv1d(whole[..., 1:], x.w[:, None], x.b, groups=64)
    return F.silu(out).transpose(1, 2), whole[..., -3:]


def _convolved(x: Any) -> tuple[torch.Tensor, torch.Tensor]:
    out, state = module("convolution.causal_conv1d")(
        x.x, x.w, x.b, initial_state=x.s, output_final_state=True, activation="silu"
    )
    return out, state[..., 1:]


def _one_more(x: Any) -> torch.Tensor:
    whole = torch.cat((x.s[..., 1:], x.x[..., None]), -1)
    return F.silu((whole * x.w).sum(-1) + x.b)


def _grpo(x: Any) -> torch.Tensor:
    logp = x.x[:, :-1].log_softmax(-1).gather(-1, x.ids[:, -10:, None])[..., 0]
    apart = (x.ref - logp).exp() - (x.ref - logp) - 1
    return -((logp - logp.detach()).exp() * x.a[:, None] - 0.04 * apart)


def _gated_groups(x: Any) -> torch.Tensor:
    grouped = F.rms_norm(x.x.unflatten(-1, (4, 16)), (16,), None, 1e-6).flatten(-2)
    return grouped * x.w * F.silu(x.z)


def _straight(value: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor:
    """`rounded`, whose gradient is that of `value`."""
    return value + (rounded - value).detach()


def _quantized(x: Any) -> torch.Tensor:
    """A norm in 8 bits and a linear layer in three values."""
    normal = F.layer_norm(x.x, (64,), x.n, x.m)
    scale = 127.0 / normal.detach().abs().amax(-1, keepdim=True)
    weight_scale = 1.0 / x.w.detach().abs().mean()
    weight = _straight(x.w, (x.w * weight_scale).round().clamp(-1, 1) / weight_scale)
    return F.linear(_straight(normal, (normal * scale).round().clamp(-128, 127) / scale), weight, x.b)


def _power(x: Any) -> torch.Tensor:
    high = x.x.clamp(min=1e-9) ** (3.0 / (x.x.clamp(min=1e-9).sqrt() + 1))
    return torch.where(x.x > 0, high, x.x) * x.x.sigmoid() * x.y


WIDE = "x=4,1024"
CASES = [
    Case(
        "layer norm of wide rows",
        lambda x: module("layernorm.layer_norm")(x.x, x.w, x.b),
        f"{WIDE} w=1024 b=1024",
        lambda x: F.layer_norm(x.x, (1024,), x.w, x.b),
    ),
    Case(
        "RMS norm of wide rows after an addition",
        lambda x: module("layernorm.rms_norm")(x.x, x.w, x.b, residual=x.r, prenorm=True),
        f"{WIDE} w=1024 b=1024 r=4,1024",
        lambda x: (F.rms_norm(x.x + x.r, (1024,), x.w, 1e-5) + x.b, x.x + x.r),
    ),
    Case(
        "gated layer norm of wide rows",
        lambda x: module("fused_norm_gate.layer_norm_gated")(x.x, x.g, x.w, x.b),
        f"{WIDE} g=4,1024 w=1024 b=1024",
        lambda x: F.layer_norm(x.x, (1024,), x.w, x.b) * F.silu(x.g),
    ),
    Case(
        "L2 norm of wide rows",
        lambda x: module("l2norm.l2norm")(x.x),
        WIDE,
        lambda x: F.normalize(x.x, dim=-1),
    ),
    Case(
        "gated RMS norm of groups",
        lambda x: module("norm.layernorm_gated.rmsnorm_fn")(x.x, x.w, None, x.z, group_size=16),
        "x=BTD w=D z=BTD",
        _gated_groups,
    ),
    Case(
        "layer norm and linear in few bits",
        lambda x: module("norm.layernorm_quant.LayerNormLinearQuantFunction").apply(
            x.x, x.n, x.m, x.w, x.b, None, 1e-5
        ),
        "x=TD n=D m=D w=KD b=K",
        _quantized,
    ),
    Case(
        "token shift of a long sequence",
        lambda x: module("token_shift.token_shift")(x.x),
        "x=1,5000,16",
        lambda x: F.pad(x.x, (0, 0, 1, -1)) - x.x,
    ),
    Case(
        "short convolution, with a state",
        lambda x: _convolved(x),
        "x=BTD w=DX b=D s=BDX",
        _with_state,
    ),
    Case(
        "short convolution of one token",
        lambda x: first(module("convolution.causal_conv1d_update")(x.x, x.s, None, x.w, x.b, "silu")),
        "x=BD w=DX b=D s=BDX",
        _one_more,
        backward=False,
    ),
    Case(
        "cross entropy of a large vocabulary",
        lambda x: module("fused_cross_entropy.FusedCrossEntropyLoss")()(x.x, x.y),
        "x=4,70000",
        lambda x: F.cross_entropy(x.x, x.y),
        fixed={"y": lambda: torch.randint(0, 70000, (4,))},
    ),
    Case(
        "logsumexp, scaled",
        lambda x: module("fused_linear_cross_entropy.ops.logsumexp_fwd")(x.x, 0.5),
        "x=BTD",
        lambda x: (0.5 * x.x).logsumexp(-1),
        backward=False,
    ),
    Case(
        "GRPO loss",
        lambda x: module("grpo.fused_grpo_loss")(x.x, x.ref, x.ids, x.a, 0.04),
        "x=2,11,D",
        _grpo,
        fixed={
            "ref": lambda: -4 + torch.randn(2, 10) / 10,
            "ids": lambda: torch.randint(0, 64, (2, 14)),
            "a": lambda: torch.randn(2),
        },
    ),
    Case("ELU plus one", lambda x: module("activations.elu_p1")(x.x), "x=BTD", lambda x: F.elu(x.x) + 1),
    Case("GLU of a power", lambda x: module("activations.powglu")(x.x, x.y), "x=BTD y=BTD", _power),
]

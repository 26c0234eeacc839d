"""Sums, norms, activations and losses."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from kernel_cases.cases import Case, first, heads
from kernel_cases.fla.names import module, op


def _local_cumsum(x: torch.Tensor, size: int = 32) -> torch.Tensor:
    return torch.cat([part.cumsum(1) for part in x.split(size, 1)], 1)


def _strict(a: torch.Tensor) -> torch.Tensor:
    """In each chunk of 64 rows, below the diagonal only: ``[B, T, H, 64]``."""
    rows = torch.arange(a.shape[1]) % 64
    keep = torch.arange(64)[None, :] < rows[:, None]
    return (
        (a * keep[None, :, None, :].to(a)).detach()
        if a.device.type == "cpu"
        else a.detach() * keep.to(a.device)[None, :, None, :]
    )


def _inverses(a: torch.Tensor) -> torch.Tensor:
    out = []
    for part in a.split(64, 1):
        size = part.shape[1]
        square = heads(part)[..., :size]
        inverse = torch.linalg.inv(torch.eye(size) + square)
        out.append(F.pad(heads(inverse), (0, 64 - size)))
    return torch.cat(out, 1)


def _angles() -> torch.Tensor:
    return torch.arange(80.0)[:, None] / 10_000 ** (torch.arange(16.0) / 16)


def _rotated(x: Any) -> torch.Tensor:
    first, two = x.x.chunk(2, -1)
    cos, sin = x.c[None, :, None], x.s[None, :, None]
    return torch.cat((first * cos - two * sin, first * sin + two * cos), -1)


def _convolved(x: Any) -> torch.Tensor:
    out = F.conv1d(F.pad(x.x.transpose(1, 2), (3, 0)), x.w[:, None], groups=64)
    return out.transpose(1, 2)


CASES = [
    Case(
        "local sums",
        lambda x: op("utils.chunk_local_cumsum")(x.g, 32),
        "g=BTH",
        lambda x: _local_cumsum(x.g),
        backward=False,
    ),
    Case(
        "local sums of vectors",
        lambda x: op("utils.chunk_local_cumsum")(x.g, 32),
        "g=BTHK",
        lambda x: _local_cumsum(x.g),
        backward=False,
    ),
    Case(
        "sums",
        lambda x: op("utils.chunk_global_cumsum")(x.g),
        "g=BTH",
        lambda x: x.g.cumsum(1),
        backward=False,
    ),
    Case(
        "sums of vectors",
        lambda x: op("utils.chunk_global_cumsum")(x.g),
        "g=BTHK",
        lambda x: x.g.cumsum(1),
        backward=False,
    ),
    Case(
        "mean pooling",
        lambda x: op("utils.mean_pooling")(x.x, 16),
        "x=BTHK",
        lambda x: x.x.unflatten(1, (5, 16)).mean(2),
    ),
    Case(
        "softmax", lambda x: op("utils.softmax_fwd")(x.x), "x=BTD", lambda x: x.x.softmax(-1), backward=False
    ),
    Case(
        "softmax, backward",
        lambda x: op("utils.softmax_bwd")(x.p, x.d),
        "p=BTD/soft d=BTD",
        lambda x: x.p * (x.d - (x.p * x.d).sum(-1, keepdim=True)),
        backward=False,
    ),
    Case(
        "logsumexp",
        lambda x: op("utils.logsumexp_fwd")(x.x),
        "x=BTD",
        lambda x: x.x.logsumexp(-1),
        backward=False,
    ),
    Case("matmul", lambda x: op("utils.matmul")(x.a, x.b), "a=TD b=DK", lambda x: x.a @ x.b, backward=False),
    Case(
        "triangular inverse",
        lambda x: op("utils.solve_tril")(_strict(x.a)),
        "a=BTH,64/small",
        lambda x: _inverses(_strict(x.a)),
        backward=False,
    ),
    Case(
        "layer norm",
        lambda x: module("layernorm.layer_norm")(x.x, x.w, x.b),
        "x=BTD w=D b=D",
        lambda x: F.layer_norm(x.x, (64,), x.w, x.b),
    ),
    Case(
        "RMS norm",
        lambda x: module("layernorm.rms_norm")(x.x, x.w, x.b),
        "x=BTD w=D b=D",
        lambda x: F.rms_norm(x.x, (64,), x.w, 1e-5) + x.b,
    ),
    Case(
        "group norm",
        lambda x: module("layernorm.group_norm")(x.x, x.w, x.b, num_groups=4),
        "x=BTD w=D b=D",
        lambda x: F.group_norm(x.x.flatten(0, 1), 4, x.w, x.b).view_as(x.x),
    ),
    Case(
        "layer norm and linear",
        lambda x: module("layernorm.layer_norm_linear")(x.x, x.w, x.b, x.l, x.c),
        "x=BTD w=D b=D l=KD/small c=K",
        lambda x: F.linear(F.layer_norm(x.x, (64,), x.w, x.b), x.l, x.c),
    ),
    Case(
        "gated layer norm",
        lambda x: module("fused_norm_gate.layer_norm_gated")(x.x, x.g, x.w, x.b),
        "x=BTD g=BTD w=D b=D",
        lambda x: F.layer_norm(x.x, (64,), x.w, x.b) * F.silu(x.g),
    ),
    Case(
        "gated RMS norm",
        lambda x: module("fused_norm_gate.rms_norm_gated")(x.x, x.g, x.w, x.b),
        "x=BTD g=BTD w=D b=D",
        lambda x: (F.rms_norm(x.x, (64,), x.w, 1e-5) + x.b) * F.silu(x.g),
    ),
    Case("L2 norm", lambda x: module("l2norm.l2norm")(x.x), "x=BTD", lambda x: F.normalize(x.x, dim=-1)),
    Case(
        "rotary",
        lambda x: module("rotary.rotary_embedding")(x.x, x.c, x.s),
        "x=BTHK",
        _rotated,
        fixed={"c": lambda: _angles().cos(), "s": lambda: _angles().sin()},
    ),
    Case(
        "short convolution",
        lambda x: first(module("convolution.causal_conv1d")(x.x, x.w, x.b, activation="silu")),
        "x=BTD w=DX b=D",
        lambda x: F.silu(_convolved(x) + x.b),
    ),
    Case(
        "token shift",
        lambda x: module("token_shift.token_shift")(x.x),
        "x=BTD",
        lambda x: F.pad(x.x, (0, 0, 1, -1)) - x.x,
    ),
    Case(
        "cross entropy",
        lambda x: module("fused_cross_entropy.FusedCrossEntropyLoss")()(x.x.flatten(0, 1), x.y),
        "x=BTD",
        lambda x: F.cross_entropy(x.x.flatten(0, 1), x.y),
        fixed={"y": lambda: torch.randint(0, 64, (160,))},
    ),
    Case(
        "linear cross entropy",
        lambda x: module("fused_linear_cross_entropy.FusedLinearCrossEntropyLoss")()(x.x, x.y, x.w, x.b),
        "x=BTD w=KD b=K",
        lambda x: F.cross_entropy(F.linear(x.x, x.w, x.b).flatten(0, 1), x.y.flatten()),
        fixed={"y": lambda: torch.randint(0, 32, (2, 80))},
    ),
    Case(
        "KL divergence of linears",
        lambda x: module("fused_kl_div.FusedKLDivLoss")()(x.x, x.t, x.w, x.u),
        "x=TD w=KD",
        lambda x: F.kl_div((x.x @ x.w.T).log_softmax(-1), (x.t @ x.u.T).softmax(-1), reduction="batchmean"),
        fixed={"t": lambda: torch.randn(80, 64), "u": lambda: torch.randn(32, 64)},
    ),
    Case("sigmoid", lambda x: module("activations.sigmoid")(x.x), "x=BTD", lambda x: x.x.sigmoid()),
    Case(
        "log sigmoid", lambda x: module("activations.logsigmoid")(x.x), "x=BTD", lambda x: F.logsigmoid(x.x)
    ),
    Case("swish", lambda x: module("activations.swish")(x.x), "x=BTD", lambda x: F.silu(x.x)),
    Case(
        "SwiGLU", lambda x: module("activations.swiglu")(x.x, x.y), "x=BTD y=BTD", lambda x: F.silu(x.x) * x.y
    ),
    Case(
        "SwiGLU and linear",
        lambda x: module("activations.swiglu_linear")(x.x, x.y, x.w, x.b),
        "x=BTD y=BTD w=KD b=K",
        lambda x: F.linear(F.silu(x.x) * x.y, x.w, x.b),
    ),
    Case(
        "sigmoid GLU",
        lambda x: module("activations.sigmoidglu")(x.x, x.y),
        "x=BTD y=BTD",
        lambda x: x.x.sigmoid() * x.y,
    ),
]

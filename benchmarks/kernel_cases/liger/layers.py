"""Liger's norms, activations, attention and mixtures beside plain torch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from kernel_cases.cases import Case, first
from kernel_cases.liger.names import call, ops


def _rms(x: torch.Tensor, w: torch.Tensor | None = None, offset: float = 0.0) -> torch.Tensor:
    out = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    return out if w is None else out * (w + offset)


def _angles(x: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return x.cos[:, None], x.sin[:, None]


def _rope(x: Any) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = _angles(x)

    def turned(value: torch.Tensor) -> torch.Tensor:
        first, two = value.chunk(2, -1)
        return value * cos + torch.cat((-two, first), -1) * sin

    return turned(x.q), turned(x.k)


def _cos_sin() -> torch.Tensor:
    angle = torch.arange(80.0)[:, None] / 10_000 ** (torch.arange(16.0) / 16)
    return torch.cat((angle, angle), -1)[None]


def _sparsemax(x: torch.Tensor) -> torch.Tensor:
    ordered = x.sort(-1, descending=True)[0]
    total = ordered.cumsum(-1) - 1
    count = torch.arange(1, x.shape[-1] + 1)
    kept = (ordered * count > total).sum(-1, keepdim=True)
    return (x - total.gather(-1, kept - 1) / kept).clamp(min=0)


def _poly(x: Any) -> torch.Tensor:
    return sum(w * _rms(x.x**power) for w, power in zip(x.w, (3, 2, 1), strict=True)) + x.b


def _residuals(x: Any) -> torch.Tensor:
    keys = x.v * torch.rsqrt(x.v.square().mean(-1, keepdim=True) + 1e-6) * x.n
    return torch.einsum("nbt,nbtd->btd", torch.einsum("d,nbtd->nbt", x.w, keys).softmax(0), x.v)


def _masked_twice(x: Any) -> torch.Tensor:
    """Scores are masked and softmaxed, mixed by a convolution, and masked with zeros."""
    length = x.s.shape[-1]
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    inner = x.s.masked_fill(future, -1e9).softmax(-1)
    return F.conv2d(inner, x.w, x.b, padding=1).masked_fill(future, 0.0)


def _neighbours(x: Any) -> torch.Tensor:
    length, size = x.q.shape[2], 5
    place = torch.arange(length)
    near = (place[:, None] - place).abs() <= size // 2
    scores = (x.q @ x.k.transpose(-1, -2)) * x.q.shape[-1] ** -0.5
    return scores.masked_fill(~near, float("-inf")).softmax(-1) @ x.v


def _experts(x: Any) -> torch.Tensor:
    out = torch.zeros_like(x.x)
    for expert in range(x.up.shape[0]):
        token, place = (x.top == expert).nonzero(as_tuple=True)
        gate, up = (x.x[token] @ x.up[expert].T).chunk(2, -1)
        expert_out = (F.silu(gate) * up) @ x.down[expert].T
        out = out.index_add(0, token, expert_out * x.weights[token, place][:, None])
    return out


def _top() -> torch.Tensor:
    return torch.stack([torch.randperm(4)[:2] for _ in range(80)]).int()


def _mhc(x: Any) -> torch.Tensor:
    return torch.einsum("btsc,bts->btc", x.x, x.h)


def _mhc_after(x: Any) -> torch.Tensor:
    mixed = torch.einsum("btos,btsc->btoc", x.r, x.x)
    return mixed + x.p[..., None] * x.f[:, :, None]


def _three() -> torch.Tensor:
    """Angles by time, height and width: ``[3, B, T, 32]``."""
    base = _cos_sin()[0]
    return torch.stack([base, base * 0.5, base * 0.25])[:, None].repeat(1, 2, 1, 1)


def _mrope(x: Any) -> tuple[torch.Tensor, torch.Tensor]:
    sections = [4, 6, 6] * 2

    def picked(value: torch.Tensor) -> torch.Tensor:
        return torch.cat([part[n % 3] for n, part in enumerate(value.split(sections, -1))], -1)[:, None]

    cos, sin = picked(x.cos), picked(x.sin)

    def turned(value: torch.Tensor) -> torch.Tensor:
        first, two = value.chunk(2, -1)
        return value * cos + torch.cat((-two, first), -1) * sin

    return turned(x.q), turned(x.k)


def _sparse_tokens(x: Any) -> torch.Tensor:
    length = x.s.shape[-1]
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    inner = _sparsemax(x.s.masked_fill(future, -1e9))
    return F.conv2d(inner, x.w, x.b, padding=1).masked_fill(future, 0.0)


def _coefficients(x: Any) -> tuple[torch.Tensor, ...]:
    flat = x.x.flatten(2)
    mix = (flat @ x.phi) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + 1e-6)
    before = torch.sigmoid(x.a1 * mix[..., :4] + x.b[:4]) + 0.0
    after = 2.0 * torch.sigmoid(x.a2 * mix[..., 4:8] + x.b[4:8])
    return before, after, _sinkhorn(x.a3 * mix[..., 8:] + x.b[8:])


def _sinkhorn(logits: torch.Tensor) -> torch.Tensor:
    """Matrices of 4 × 4 whose rows and columns sum to one."""
    square = logits.unflatten(-1, (4, 4)).softmax(-1) + 1e-6
    square = square / (square.sum(-2, keepdim=True) + 1e-6)
    for _ in range(19):
        square = square / (square.sum(-1, keepdim=True) + 1e-6)
        square = square / (square.sum(-2, keepdim=True) + 1e-6)
    return square


def _through_sinkhorn(x: Any) -> torch.Tensor:
    logits = (x.a * x.m[..., 8:] + x.b[8:]).detach().requires_grad_()
    return torch.autograd.grad(_sinkhorn(logits), logits, x.g)[0].unflatten(-1, (4, 4))


CASES = [
    Case("softmax", lambda x: call("softmax.LigerSoftmaxFunction", x.x), "x=BTD", lambda x: x.x.softmax(-1)),
    Case(
        "softmax of long rows",
        lambda x: call("softmax.LigerSoftmaxFunction", x.x),
        "x=2,40000",
        lambda x: x.x.softmax(-1),
    ),
    Case(
        "softmax, block by block",
        lambda x: call("softmax.LigerSoftmaxFunction", x.x),
        "x=BTD",
        lambda x: x.x.softmax(-1),
        knobs={"liger_kernel.ops.softmax.calculate_settings": lambda _: (16, 4)},
        refused="liger_kernel.ops.softmax._softmax_multi_block_forward_kernel",
    ),
    Case(
        "softmax, block by block, backward",
        lambda x: ops("softmax._softmax_backward")(x.d, x.p, 16, 4, True),
        "p=BTD/soft d=BTD",
        lambda x: x.p * (x.d - (x.p * x.d).sum(-1, keepdim=True)),
        backward=False,
        refused="liger_kernel.ops.softmax._softmax_multi_block_backward_kernel",
    ),
    Case(
        "layer norm",
        lambda x: call("layer_norm.LigerLayerNormFunction", x.x, x.w, x.b, 1e-6),
        "x=BTD w=D b=D",
        lambda x: F.layer_norm(x.x, (64,), x.w, x.b, 1e-6),
    ),
    Case(
        "group norm",
        lambda x: first(call("group_norm.LigerGroupNormFunction", x.x, x.w, x.b, 64, 4, 1e-6)),
        "x=BDT w=D b=D",
        lambda x: F.group_norm(x.x, 4, x.w, x.b, 1e-6),
    ),
    Case(
        "RMS norm",
        lambda x: call("rms_norm.LigerRMSNormFunction", x.x, x.w, 1e-6, 0.0, "llama", False, None),
        "x=BTD w=D",
        lambda x: _rms(x.x, x.w),
    ),
    Case(
        "RMS norm, Gemma's, row by row",
        lambda x: call("rms_norm.LigerRMSNormFunction", x.x, x.w, 1e-6, 1.0, "gemma", False, True),
        "x=BTD w=D",
        lambda x: _rms(x.x, x.w, 1.0),
    ),
    Case(
        "RMS norm of many rows",
        lambda x: call("rms_norm.LigerRMSNormFunction", x.x, x.w, 1e-6, 0.0, "llama", False, None),
        "x=5000,D w=D",
        lambda x: _rms(x.x, x.w),
    ),
    Case(
        "RMS norm of very many rows",
        lambda x: call("rms_norm.LigerRMSNormFunction", x.x, x.w, 1e-6, 0.0, "llama", False, None),
        "x=32768,M w=M",
        lambda x: _rms(x.x, x.w),
    ),
    Case(
        "RMS norm after an addition",
        lambda x: call(
            "fused_add_rms_norm.LigerFusedAddRMSNormFunction", x.x, x.r, x.w, 1e-6, 0.0, "llama", False
        ),
        "x=BTD r=BTD w=D",
        lambda x: (_rms(x.x + x.r, x.w), x.x + x.r),
    ),
    Case(
        "modulated RMS norm",
        lambda x: call(
            "modulated_rms_norm.LigerModulatedRMSNormFunction", x.x, x.w, x.s, x.h, 1e-6, 0.0, "llama", False
        ),
        "x=BTD w=D s=BD h=BD",
        lambda x: (1 + x.s[:, None]) * _rms(x.x, x.w) + x.h[:, None],
    ),
    Case(
        "poly norm",
        lambda x: call("poly_norm.LigerPolyNormFunction", x.x, x.w, x.b, 1e-6, False),
        "x=BTD w=3 b=",
        _poly,
    ),
    Case(
        "dynamic tanh",
        lambda x: call("dyt.LigerDyTFunction", x.x, x.a, x.g, x.b),
        "x=BTD a=1 g=D b=D",
        lambda x: x.g * torch.tanh(x.a * x.x) + x.b,
    ),
    Case(
        "SwiGLU",
        lambda x: call("swiglu.LigerSiLUMulFunction", x.a, x.b),
        "a=BTD b=BTD",
        lambda x: F.silu(x.a) * x.b,
    ),
    Case(
        "SwiGLU, in tiles",
        lambda x: call("swiglu.LigerSiLUMulFunction", x.a, x.b),
        "a=BTD b=BTD",
        lambda x: F.silu(x.a) * x.b,
        knobs={
            "liger_kernel.ops.swiglu._should_tile": lambda _: True,
            "liger_kernel.ops.swiglu._swiglu_tile_settings": lambda _: (16, 4),
        },
    ),
    Case(
        "SwiGLU of one tensor",
        lambda x: call("swiglu.LigerFusedGateUpSiLUMulFunction", x.a, False),
        "a=160,D",
        lambda x: F.silu(x.a.chunk(2, -1)[0]) * x.a.chunk(2, -1)[1],
    ),
    Case(
        "GeGLU",
        lambda x: call("geglu.LigerGELUMulFunction", x.a, x.b),
        "a=BTD b=BTD",
        lambda x: F.gelu(x.a, approximate="tanh") * x.b,
    ),
    Case(
        "squared ReLU",
        lambda x: call("relu_squared.LigerReLUSquaredFunction", x.x),
        "x=BTD",
        lambda x: F.relu(x.x).square(),
    ),
    Case(
        "sparsemax",
        lambda x: call("sparsemax.LigerSparsemaxFunction", x.x, -1),
        "x=BTD",
        lambda x: _sparsemax(x.x),
    ),
    Case(
        "MLP",
        lambda x: call("mlp.LigerMLPFunction", x.x, x.g, x.u, x.d, 1.0, 1.0),
        "x=BTD g=128,D/small u=128,D/small d=D,128/small",
        lambda x: F.linear(F.silu(F.linear(x.x, x.g)) * F.linear(x.x, x.u), x.d),
    ),
    Case(
        "MLP without gradients",
        lambda x: call("mlp.LigerMLPFunction", x.x, x.g, x.u, x.d, 1.0, 1.0),
        "x=BTD g=128,D/small u=128,D/small d=D,128/small",
        lambda x: F.linear(F.silu(F.linear(x.x, x.g)) * F.linear(x.x, x.u), x.d),
        backward=False,
    ),
    Case(
        "rotary",
        lambda x: call("rope.LigerRopeFunction", x.q, x.k, x.cos, x.sin),
        "q=BHTK k=BHTK",
        _rope,
        fixed={"cos": lambda: _cos_sin().cos(), "sin": lambda: _cos_sin().sin()},
    ),
    Case(
        "rotary, Llama 4's",
        lambda x: call("llama4_rope.LigerLlama4RopeFunction", x.q, x.k, x.f),
        "q=BTHK k=BTHK",
        lambda x: tuple(
            torch.view_as_real(
                torch.view_as_complex(tensor.unflatten(-1, (-1, 2)).contiguous()) * x.f[None, :, None]
            ).flatten(-2)
            for tensor in (x.q, x.k)
        ),
        fixed={"f": lambda: torch.polar(torch.ones(80, 16), _cos_sin()[0, :, :16])},
    ),
    Case(
        "rotary, Qwen2-VL's",
        lambda x: call("qwen2vl_mrope.LigerQwen2VLMRopeFunction", x.q, x.k, x.cos, x.sin, [4, 6, 6]),
        "q=BHTK k=BHTK",
        lambda x: _mrope(x),
        fixed={"cos": lambda: _three().cos(), "sin": lambda: _three().sin()},
    ),
    Case(
        "attention over residuals",
        lambda x: call("attn_res.LigerAttnResFunction", x.v, x.w, x.n, 1e-6),
        "v=XBTD w=D n=D",
        _residuals,
    ),
    Case(
        "multi-token attention",
        lambda x: call(
            "multi_token_attention.LigerMultiTokenAttentionFunction", x.s, x.w, x.b, 1, 1, 1, 1, False
        ),
        "s=BHTT w=HH,3,3 b=H",
        _masked_twice,
    ),
    Case(
        "multi-token attention, sparse",
        lambda x: call(
            "multi_token_attention.LigerMultiTokenAttentionFunction", x.s, x.w, x.b, 1, 1, 1, 1, True
        ),
        "s=BHTT w=HH,3,3 b=H",
        lambda x: _sparse_tokens(x),
    ),
    Case(
        "neighborhood attention",
        lambda x: call(
            "fused_neighborhood_attention.LigerFusedNeighborhoodAttentionFunction", x.q, x.k, x.v, 5, 1, None
        ),
        "q=BHTK k=BHTK v=BHTK",
        _neighbours,
    ),
    Case(
        "mixture of experts",
        lambda x: call("fused_moe.LigerFusedMoEFunction", x.x, x.up, x.down, x.top, x.weights),
        "x=TD up=4,64,D/small down=4,D,32/small weights=T,2/soft",
        _experts,
        fixed={"top": _top},
    ),
    Case(
        "hyper-connections, before", lambda x: call("mhc.LigerMHCPreFunction", x.x, x.h), "x=BTXD h=BTX", _mhc
    ),
    Case(
        "hyper-connections, after",
        lambda x: call("mhc.LigerMHCPostResFunction", x.x, x.f, x.p, x.r),
        "x=BTXD f=BTD p=BTX r=BTXX",
        _mhc_after,
    ),
    Case(
        "hyper-connections, mixing matrices",
        lambda x: ops("mhc.mhc_sinkhorn_bwd")(x.m, x.b, x.a, x.g, tmax=20, sinkhorn_eps=1e-6),
        "m=T,24 b=24 a= g=T,4,4",
        lambda x: _through_sinkhorn(x),
        backward=False,
    ),
    Case(
        "hyper-connections, coefficients",
        lambda x: call(
            "mhc.LigerMHCCoeffsFunction", x.x, x.phi, x.b, x.a1, x.a2, x.a3, True, 20, 1e-6, 0.0, 1e-6, 2.0
        ),
        "x=BTXD phi=256,24/small b=24 a1= a2= a3=",
        lambda x: _coefficients(x),
    ),
]

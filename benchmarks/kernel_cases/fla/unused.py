"""Gradients that fla has kernels for and calls nowhere itself."""

from __future__ import annotations

import math
from typing import Any

import torch

from kernel_cases.cases import Case, heads
from kernel_cases.fla.gates import summed
from kernel_cases.fla.names import op

Tensor = torch.Tensor


def _solved(m: Tensor) -> Tensor:
    """``(I + m)⁻¹`` of ``[B, H, 64, 64]`` below the diagonal, as ``[B, 64, H, 64]``."""
    return heads(torch.linalg.inv(torch.eye(64) + m))


def _weights_backward(x: Any) -> tuple[Tensor, ...]:
    """Gradients of ``w = A (beta k 2^g)`` and ``u = A (beta v)``, by autograd; `dg` in natural units."""
    k, v, beta, g = (tensor.detach().requires_grad_() for tensor in (x.k, x.v, x.beta, x.g))
    m = (torch.linalg.inv(heads(x.a)) - torch.eye(64)).tril(-1).requires_grad_()
    a = _solved(m)
    w = torch.einsum("bqhs,bshk->bqhk", a, k * beta[..., None] * g.exp2())
    u = torch.einsum("bqhs,bshv->bqhv", a, v * beta[..., None])
    dk, dv, db, dg, dm = torch.autograd.grad((w * x.dw).sum() + (u * x.du).sum(), (k, v, beta, g, m))
    return dk + x.dk, dv, db, dg / math.log(2) + x.dg, heads(dm.tril(-1))


def _states_backward(x: Any) -> tuple[Tensor, Tensor]:
    """Gradients of the states after every 64 tokens, and of the values."""
    state, states, values = torch.zeros(2, 2, 32, 32), [], []
    for at in reversed(range(0, x.q.shape[1], 64)):
        q, k, w, d, v = (heads(tensor[:, at : at + 64]) for tensor in (x.q, x.k, x.w, x.d, x.v))
        g = heads(x.g[:, at : at + 64])[..., None]
        states.append(state)
        values.append(heads(v + k @ state * (g[..., -1:, :] - g).exp2()))
        direct = (0.25 * q * g.exp2()).transpose(-1, -2) @ d - w.transpose(-1, -2) @ heads(values[-1])
        state = state * g[..., -1:, :].exp2() + direct
    return torch.stack(states[::-1], 1), torch.cat(values[::-1], 1)


CASES = [
    Case(
        "Kimi delta attention, gradients of a chunk's weights",
        lambda x: op("kda.wy_fast.prepare_wy_repr_bwd")(x.k, x.v, x.beta, x.g, x.a, x.dk, x.dw, x.du, x.dg),
        "k=2,64,HK/unit v=2,64,HV beta=2,64,H/sig g=2,64,HK/gate dk=2,64,HK dw=2,64,HK du=2,64,HV dg=2,64,HK",
        _weights_backward,
        fixed={"a": lambda: _solved(torch.randn(2, 2, 64, 64).tril(-1) / 16).contiguous()},
        backward=False,
    ),
    Case(
        "gated delta product, gradients of the states",
        lambda x: op("gated_delta_product.chunk_deltaproduct_h.chunk_gated_delta_product_bwd_dhu")(
            x.q, x.k, x.w, x.g, None, None, x.d, x.v, 0.25
        )[::2],
        "q=BTHK/small k=BTHK/unit w=BTHK/small d=BTHV v=BTHV",
        _states_backward,
        fixed={"g": lambda: summed(torch.nn.functional.logsigmoid(torch.randn(2, 80, 2)), 64)},
        backward=False,
    ),
]

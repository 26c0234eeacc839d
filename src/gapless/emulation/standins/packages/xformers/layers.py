"""SwiGLU, RMS norm, and the operators that vision transformers take from ``xformers.ops``."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gapless.emulation.standins.launch import differentiable
from gapless.emulation.standins.norms import normalize
from gapless.emulation.standins.packages.xformers._package import PACKAGE

_OPS = "xformers.ops"


@PACKAGE.provides(_OPS)
def unbind(x: Tensor, dim: int) -> tuple[Tensor, ...]:
    """``torch.unbind``; the package's stacks gradients without a copy."""
    return x.unbind(dim)


@PACKAGE.provides(_OPS)
def swiglu(
    x: Tensor, w1: Tensor, b1: Any, w2: Tensor, b2: Any, w3: Tensor, b3: Any, *, op: Any = None
) -> Tensor:
    """Two projections, one of them the other's gate, and a third."""
    gate = functional.silu(functional.linear(x, w1, b1))
    return functional.linear(gate * functional.linear(x, w2, b2), w3, b3)


@PACKAGE.provides(_OPS)
class SwiGLU(nn.Module):
    """Return the weights of `swiglu`, the first two joined."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None = None,
        bias: bool = True,
        *,
        _pack_weights: bool = True,
    ) -> None:
        super().__init__()
        hidden, out = hidden_features or in_features, out_features or in_features
        self.in_features, self.hidden_features, self.out_features = in_features, hidden, out
        self.w12 = nn.Linear(in_features, 2 * hidden, bias=bias) if _pack_weights else None
        if self.w12 is None:
            self.w1 = nn.Linear(in_features, hidden, bias=bias)
            self.w2 = nn.Linear(in_features, hidden, bias=bias)
        self.w3 = nn.Linear(hidden, out, bias=bias)
        self.op: Any = None

    def forward(self, x: Tensor) -> Tensor:
        """``[…, in_features]`` to ``[…, out_features]``."""
        if self.w12 is None:
            gate, value = self.w1(x), self.w2(x)
        else:
            gate, value = self.w12(x).chunk(2, -1)
        return self.w3(functional.silu(gate) * value)  # type: ignore[no-any-return]


@PACKAGE.provides(_OPS)
class RMSNorm(nn.Module):
    """RMS norm over the last dimension."""

    weight: Any

    def __init__(self, dim: int, include_weight: bool = True, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.register_parameter("weight", nn.Parameter(torch.ones(dim)) if include_weight else None)

    def forward(self, x: Tensor) -> Tensor:
        """`x` normalized."""

        def body(eps: float, x: Tensor, weight: Tensor | None) -> Tensor:
            return normalize(x, x.shape[-1:], weight, None, eps, rms=True).to(x.dtype)

        return differentiable("xformers::rms_norm", partial(body, self.eps), x, self.weight)  # type: ignore[no-any-return]


@PACKAGE.provides(_OPS)
def scaled_index_add(
    input: Tensor, index: Tensor, source: Tensor, scaling: Tensor | None = None, alpha: float = 1.0
) -> Tensor:
    """``input[index] += alpha * scaling * source``, in place."""

    def body(input: Tensor, index: Tensor, source: Tensor, scaling: Tensor | None) -> Tensor:
        added = source if scaling is None else source * scaling
        return input.index_add(0, index, (alpha * added).to(input.dtype))

    return differentiable("xformers::scaled_index_add", body, input, index, source, scaling)  # type: ignore[no-any-return]


@PACKAGE.provides(_OPS)
def index_select_cat(sources: list[Tensor], indices: list[Tensor]) -> Tensor:
    """Return the selected rows of each source, flattened and concatenated."""

    def body(*tensors: Tensor) -> Tensor:
        count = len(tensors) // 2
        return torch.cat(
            [source[at].flatten() for source, at in zip(tensors[:count], tensors[count:], strict=True)]
        )

    return differentiable("xformers::index_select_cat", body, *sources, *indices)  # type: ignore[no-any-return]

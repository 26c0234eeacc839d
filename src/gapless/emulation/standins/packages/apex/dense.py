"""``apex.mlp`` and ``apex.fused_dense``: linear layers whose bias and activation ride along."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gapless.emulation.standins.packages.apex._package import PACKAGE

_DENSE = "apex.fused_dense"


@PACKAGE.provides(_DENSE)
class FusedDense(torch.nn.Linear):
    """A linear layer."""


@PACKAGE.provides(_DENSE)
class FusedDenseGeluDense(torch.nn.Module):
    """Two linear layers with GELU in between."""

    def __init__(
        self, in_features: int, intermediate_features: int, out_features: int, bias: bool = True
    ) -> None:
        super().__init__()
        if not bias:
            raise RuntimeError("DenseGeluDense module without bias is currently not supported")
        self.weight1 = torch.nn.Parameter(torch.empty(intermediate_features, in_features))
        self.bias1 = torch.nn.Parameter(torch.zeros(intermediate_features))
        self.weight2 = torch.nn.Parameter(torch.empty(out_features, intermediate_features))
        self.bias2 = torch.nn.Parameter(torch.zeros(out_features))
        for weight in (self.weight1, self.weight2):
            torch.nn.init.kaiming_uniform_(weight, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """Return the second layer's result."""
        hidden = functional.gelu(functional.linear(x, self.weight1, self.bias1), approximate="tanh")
        return functional.linear(hidden, self.weight2, self.bias2)


@PACKAGE.provides("apex.mlp")
class MLP(torch.nn.Module):
    """Linear layers of these sizes, each with its activation."""

    def __init__(self, mlp_sizes: list[int], bias: bool = True, activation: str = "relu") -> None:
        super().__init__()
        if activation not in ("none", "relu", "sigmoid"):
            raise TypeError("activation must be relu or none.")
        self.activation = activation
        self.weights: list[Any] = []
        self.biases: list[Any] = []
        for at, (wide, high) in enumerate(itertools.pairwise(mlp_sizes)):
            weight = torch.nn.Parameter(torch.randn(high, wide) * math.sqrt(2 / (high + wide)))
            self.weights.append(weight)
            setattr(self, f"weight_{at}", weight)
            if bias:
                held = torch.nn.Parameter(torch.randn(high) * math.sqrt(1 / high))
                self.biases.append(held)
                setattr(self, f"bias_{at}", held)

    def forward(self, x: Tensor) -> Tensor:
        """Return the last layer's result."""
        for at in range(len(self.weights)):
            x = functional.linear(x, getattr(self, f"weight_{at}"), getattr(self, f"bias_{at}", None))
            x = x if self.activation == "none" else getattr(torch, self.activation)(x)
        return x

"""What docs/compare.md takes for granted."""

import torch

import gapless  # noqa: F401


def original(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].sum()


def fixed(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x, 0.0).sum()


batches = [(torch.linspace(-1, 1, 16),)]

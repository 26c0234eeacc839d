"""What tests of planted differences have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gapless.model.proof import Proof
from gapless.prove import compare

IGNORE = -1


def proof(original: Callable[..., Any], fixed: Callable[..., Any], inputs: Any, **more: Any) -> Proof:
    return compare(original, fixed, inputs, seconds=0, **more)


def failures(result: Proof) -> dict[str, list[str]]:
    """The failing cases, each with the places where it fails."""
    return {case.name: [difference.where for difference in case.differences] for case in result.failed}


def masked() -> tuple[Tensor, Tensor]:
    return torch.randn(12, 5, requires_grad=True), torch.rand(12, 5) < 0.5


def labelled() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 6, 8, 8, requires_grad=True), torch.randint(IGNORE, 6, (4, 8, 8))


def plain() -> Tensor:
    return torch.randn(8, 6, requires_grad=True)


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask].mean()

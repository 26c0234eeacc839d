"""Calls in a row, in which state that is kept from one to the next shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from gapless.prove.cases import with_value
from gapless.prove.inputs import Input
from gapless.prove.recognise import Known, batch

PLAIN = "calls in a row"
BAD = "a bad batch between good ones"
_GIVEN = 3

Row = tuple[str, tuple[Input, ...]]
"""The name of a row, and what its calls receive."""


def rows(inputs: Sequence[Input], known: Known) -> list[Row]:
    """The rows that are made of `inputs`, the first of which is `known`.

    In one of them all are good: those given, the first with its batch turned around, and itself again. In the
    others a value is NaN in the third call, when an optimizer's state is warm, and good ones follow.
    """
    first, turned = inputs[0], _turned(inputs[0])
    following = inputs[1] if len(inputs) > 1 else turned
    found = [(PLAIN, (*inputs[:_GIVEN], turned, first))]
    for path in known.values:
        of = f" (NaN in {path})" if len(known.values) > 1 else ""
        bad = with_value(first, known, path, float("nan"), counts=True)
        good = [replace(one, lenient=True) for one in (first, following, turned, first)]
        found.append((f"{BAD}{of}", (*good[:2], bad, *good[2:])))
    return found


def _turned(first: Input) -> Input:
    """`first` with its batch turned around."""
    size = batch(first)

    def visit(path: str, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dim() or tensor.shape[0] != size or tensor.layout is not torch.strided:
            return tensor
        return tensor.detach().flip(0).requires_grad_(tensor.requires_grad)

    return first.mapped(visit)

"""Sequences of calls, in which state kept from one call to the next shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from gapless.prove.cases import with_value
from gapless.prove.inputs import Input
from gapless.prove.recognise import RecognisedInput, batch_size

PLAIN_NAME = "calls in a row"
BAD_NAME = "a bad batch between good ones"
_MAX_USER_INPUTS = 3
"""The user's inputs at the start of a sequence: the state of optimizers is warm after two."""

CallSequence = tuple[str, tuple[Input, ...]]
"""The name of a sequence, and the inputs of its calls."""


def call_sequences(inputs: Sequence[Input], recognised: RecognisedInput) -> list[CallSequence]:
    """Return the sequences made of `inputs`, the first of which is `recognised`.

    In one all values are good: the user's inputs, the first with its batch reversed, and itself again. In the
    others a value is NaN in the third call, when an optimizer's state is warm, and good calls follow.
    """
    first, turned = inputs[0], _flip_batch(inputs[0])
    following = inputs[1] if len(inputs) > 1 else turned
    sequences = [(PLAIN_NAME, (*inputs[:_MAX_USER_INPUTS], turned, first))]
    for path in recognised.values:
        of = f" (NaN in {path})" if len(recognised.values) > 1 else ""
        bad = with_value(first, recognised, path, float("nan"), counts=True)
        good = [replace(call_input, lenient=True) for call_input in (first, following, turned, first)]
        sequences.append((f"{BAD_NAME}{of}", (*good[:2], bad, *good[2:])))
    return sequences


def _flip_batch(first: Input) -> Input:
    """Return `first` with its batch reversed."""
    size = batch_size(first)

    def visit(path: str, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dim() or tensor.shape[0] != size or tensor.layout is not torch.strided:
            return tensor
        return tensor.detach().flip(0).requires_grad_(tensor.requires_grad)

    return first.map_tensors(visit)

"""Recognise what the tensors of an input are: masks, labels, lengths, values; and the batch size."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from gapless.prove.inputs import Input
from gapless.prove.lengths import Lengths, find_lengths
from gapless.prove.subjects import named_values

_IGNORE = re.compile(
    r"(?i)(?:^|_)(?:ignore(?:d)?(?:_?(?:index|indices|label|value|id|idx))?|pad(?:ding)?_?(?:index|idx|id|value))$"
)
"""Names of values that are ignored as labels."""
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_MAX_ELEMENTS = 2_000_000
"""Elements looked at to recognise a mask or labels."""
_MAX_VALUES = 3
"""Floating tensors that get NaN and infinities: each adds several cases."""


@dataclass(frozen=True)
class Labels:
    """Integers: their path, the values that occur, sorted, and the ignored value, if known."""

    path: str
    values: tuple[int, ...]
    ignored: int | None


@dataclass(frozen=True)
class RecognisedInput:
    """The paths of an input's tensors by kind; `masks` are booleans, or only zeros and ones.

    Tensors that limit a dimension of another are not labels.
    """

    masks: tuple[str, ...]
    labels: tuple[Labels, ...]
    floating: tuple[str, ...]
    lengths: tuple[Lengths, ...]

    @property
    def values(self) -> tuple[str, ...]:
        """The floating tensors that get NaN and infinities, one at a time."""
        return self.floating[:_MAX_VALUES]


def recognise_input(call_input: Input, target: Callable[..., Any]) -> RecognisedInput:
    """Recognise the tensors of `call_input`; names used by `target` may say which label is ignored."""
    named = [
        (path, tensor.detach()) for path, tensor in call_input.tensors() if tensor.layout is torch.strided
    ]
    masks = tuple(path for path, tensor in named if _is_mask(tensor))
    ignored = tuple(_ignored_candidates(call_input, target))
    lengths = find_lengths(named, ignored)
    limiting = {length.path for length in lengths}
    labels = tuple(
        _make_labels(path, tensor, ignored)
        for path, tensor in named
        if tensor.dtype in _INTEGERS and tensor.dim() and tensor.numel() and path not in limiting
    )
    floating = tuple(
        path for path, tensor in named if tensor.is_floating_point() and tensor.numel() and path not in masks
    )
    return RecognisedInput(masks, labels, floating, lengths)


def _is_mask(tensor: torch.Tensor) -> bool:
    if not tensor.dim() or not tensor.numel():
        return False
    if tensor.dtype is torch.bool:
        return True
    if not tensor.is_floating_point() or tensor.requires_grad or tensor.numel() > _MAX_ELEMENTS:
        return False
    ones = tensor == 1
    return bool((ones | (tensor == 0)).all()) and 0 < int(ones.sum()) < tensor.numel()


def _make_labels(path: str, tensor: torch.Tensor, candidates: tuple[int, ...]) -> Labels:
    flat = tensor.flatten()[:_MAX_ELEMENTS].cpu().to(torch.int64)
    values = torch.unique(flat).tolist()
    negative = [value for value in values if value < 0]
    ignored = next((value for value in candidates if value in values), None)
    if ignored is None:
        # On a GPU a label out of range ends the process's use of it: only values that occur are used.
        ignored = (
            negative[0] if negative else next(iter(() if torch.cuda.is_available() else candidates), None)
        )
    counted = tuple(value for value in values if value != ignored and (value >= 0 or not negative))
    return Labels(path, counted, ignored)


def _ignored_candidates(call_input: Input, target: Callable[..., Any]) -> Iterator[int]:
    """Yield integers that are ignored by their name: arguments, defaults, attributes, constants."""
    for name, value in (*call_input.arguments(), *named_values(target)):
        if isinstance(value, int) and not isinstance(value, bool) and _IGNORE.search(name):
            yield value


def batch_size(call_input: Input) -> int:
    """Return the size of the first dimension that most tensors share; 0 if none has one."""
    sizes = Counter(tensor.shape[0] for _, tensor in call_input.tensors() if tensor.dim())
    return sizes.most_common(1)[0][0] if sizes else 0


def index_mapping(of: torch.Tensor, values: torch.Tensor) -> Callable[[tuple[int, ...]], Any] | None:
    """Return how to turn an index into `of` (mask or labels) into one into `values`; None if they do not
    match.

    If values have one dimension more, for channels, the first channel is used.
    """
    shape, wide = tuple(of.shape), tuple(values.shape)
    if not shape:
        return None
    if shape == wide[: len(shape)]:
        return lambda index: index
    if len(wide) == len(shape) + 1 and shape == wide[:1] + wide[2:]:
        return lambda index: (index[0], 0, *index[1:])
    return None

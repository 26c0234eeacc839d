"""What the tensors of an input are to the user: masks, labels, values, and the size they share."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from gapless.prove.inputs import Input
from gapless.prove.lengths import Lengths, lengths_in
from gapless.prove.subjects import constants

_IGNORE = re.compile(
    r"(?i)(?:^|_)(?:ignore(?:d)?(?:_?(?:index|indices|label|value|id|idx))?|pad(?:ding)?_?(?:index|idx|id|value))$"
)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_MANY = 2_000_000
_VALUES = 3


@dataclass(frozen=True)
class Labels:
    """Whole numbers: their path, those that occur, in order, and the one that does not count, if known."""

    path: str
    values: tuple[int, ...]
    ignored: int | None


@dataclass(frozen=True)
class Known:
    """The tensors of an input by what they are; `masks` are of truth values, or of zeros and ones alone.

    What limits a dimension of another tensor is no label."""

    masks: tuple[str, ...]
    labels: tuple[Labels, ...]
    floating: tuple[str, ...]
    lengths: tuple[Lengths, ...]

    @property
    def values(self) -> tuple[str, ...]:
        """The floating tensors that NaN and infinities are put into, one at a time."""
        return self.floating[:_VALUES]


def recognised(given: Input, target: Callable[..., Any]) -> Known:
    """What the tensors of `given` are; `target` may say which label it ignores."""
    named = [(path, tensor.detach()) for path, tensor in given.tensors() if tensor.layout is torch.strided]
    masks = tuple(path for path, tensor in named if _is_mask(tensor))
    ignored = tuple(_candidates(given, target))
    lengths = lengths_in(named, ignored)
    limiting = {one.path for one in lengths}
    labels = tuple(
        _labels(path, tensor, ignored)
        for path, tensor in named
        if tensor.dtype in _INTEGERS and tensor.dim() and tensor.numel() and path not in limiting
    )
    floating = tuple(
        path for path, tensor in named if tensor.is_floating_point() and tensor.numel() and path not in masks
    )
    return Known(masks, labels, floating, lengths)


def _is_mask(tensor: torch.Tensor) -> bool:
    if not tensor.dim() or not tensor.numel():
        return False
    if tensor.dtype is torch.bool:
        return True
    if not tensor.is_floating_point() or tensor.requires_grad or tensor.numel() > _MANY:
        return False
    ones = tensor == 1
    return bool((ones | (tensor == 0)).all()) and 0 < int(ones.sum()) < tensor.numel()


def _labels(path: str, tensor: torch.Tensor, candidates: tuple[int, ...]) -> Labels:
    flat = tensor.flatten()[:_MANY].cpu().to(torch.int64)
    values = torch.unique(flat).tolist()
    negative = [value for value in values if value < 0]
    ignored = next((value for value in candidates if value in values), None)
    if ignored is None:
        # On a GPU a label out of range ends the process's use of it: only what is there is believed.
        ignored = (
            negative[0] if negative else next(iter(() if torch.cuda.is_available() else candidates), None)
        )
    counted = tuple(value for value in values if value != ignored and (value >= 0 or not negative))
    return Labels(path, counted, ignored)


def _candidates(given: Input, target: Callable[..., Any]) -> Iterator[int]:
    """Numbers that a name says are to be ignored: arguments, defaults, attributes, constants."""
    for name, value in (*given.arguments(), *constants(target)):
        if isinstance(value, int) and not isinstance(value, bool) and _IGNORE.search(name):
            yield value


def batch(given: Input) -> int:
    """The size of the first dimension that most tensors share; 0 where none has one."""
    sizes = Counter(tensor.shape[0] for _, tensor in given.tensors() if tensor.dim())
    return sizes.most_common(1)[0][0] if sizes else 0


def matching(of: torch.Tensor, values: torch.Tensor) -> Callable[[tuple[int, ...]], Any] | None:
    """How an index into `of` (a mask or labels) becomes one into `values`; None where they do not match.

    Of values with one dimension more, that of the channels, the first channel is meant.
    """
    shape, wide = tuple(of.shape), tuple(values.shape)
    if not shape:
        return None
    if shape == wide[: len(shape)]:
        return lambda index: index
    if len(wide) == len(shape) + 1 and shape == wide[:1] + wide[2:]:
        return lambda index: (index[0], 0, *index[1:])
    return None

"""Whole numbers that limit a dimension of another tensor: lengths, offsets, indices; and what lies beyond."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from gapless.prove.inputs import Input

Kind = Literal["lengths", "offsets", "indices"]

_NAMES: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("offsets", re.compile(r"(?i)(?:^|_)(?:offsets?|cu_?seq_?lens?(?:_[a-z]+)?|ind_?ptr|ptr)$")),
    ("lengths", re.compile(r"(?i)(?:^|_|seq)(?:lens?|lengths?|num_(?:frames|tokens|steps|points|valid))$")),
    ("indices", re.compile(r"(?i)(?:^|_)(?:index|indices|idx|positions?)$")),
)
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Lengths:
    """Whole numbers at `path` that say how far dimension `dim` (of `size`) of the tensor at `of` counts.

    ``lengths`` has one for each row, ``offsets`` where each row begins and the last one ends, and ``indices``
    point into the dimension. `of` and `dim` are the first of those that it may be. The numbers that occur are
    between `least` and `most`.
    """

    path: str
    kind: Kind
    of: str
    dim: int
    size: int
    least: int
    most: int


Place = tuple[str, torch.Tensor, int]
"""A tensor's path, the tensor, and one of its dimensions."""


def lengths_in(named: Sequence[tuple[str, torch.Tensor]], ignored: Sequence[int] = ()) -> tuple[Lengths, ...]:
    """Those among the tensors `named` that are lengths, offsets or indices by their name and their values.

    Without such a name, numbers are lengths where each row has one, none is 0, and the largest is the size of
    a dimension of a floating tensor: no label is, but one that is `ignored`.
    """
    found = (_limiting(path, tensor, named, ignored) for path, tensor in named if _whole(tensor))
    return tuple(one for one in found if one is not None)


def _whole(tensor: torch.Tensor) -> bool:
    kind = tensor.dtype
    of_numbers = not (kind is torch.bool or kind.is_floating_point or kind.is_complex)
    return of_numbers and tensor.dim() > 0 and tensor.numel() > 0


def _limiting(
    path: str, tensor: torch.Tensor, named: Sequence[tuple[str, torch.Tensor]], ignored: Sequence[int]
) -> Lengths | None:
    least, most = int(tensor.min()), int(tensor.max())
    word = (_WORD.findall(path) or [""])[-1]
    kind = next((kind for kind, pattern in _NAMES if pattern.search(word)), None)
    if least < 0 or (kind is None and (not least or most in ignored)):
        return None
    places = [(other, one, dim) for other, one in named if other != path for dim in range(one.dim())]
    if kind == "offsets":
        places = _ended(tensor, places, most)
    elif kind == "indices":
        places = [one for one in places if one[1].is_floating_point() and one[1].shape[one[2]] > most]
    else:
        places = _rows(tensor, places, most)
        if kind is None:
            places = [one for one in places if one[1].is_floating_point() and one[1].shape[one[2]] == most]
    if not places:
        return None
    other, one, dim = places[0]
    return Lengths(path, kind or "lengths", other, dim, int(one.shape[dim]), least, most)


def _ended(tensor: torch.Tensor, places: Sequence[Place], most: int) -> list[Place]:
    """The dimensions that end where offsets do."""
    rising = tensor.dim() == 1 and not int(tensor[0]) and bool((tensor.diff() >= 0).all())
    return [one for one in places if rising and one[1].shape[one[2]] == most]


def _rows(tensor: torch.Tensor, places: Sequence[Place], most: int) -> list[Place]:
    """The dimensions, the first or the second, of which each of the other's rows has a length."""
    found = [
        (path, one, dim)
        for path, one, dim in places
        if tensor.dim() == 1 and one.dim() > 1 and dim < 2
        and one.shape[1 - dim] == len(tensor) and most <= one.shape[dim]
    ]  # fmt: skip
    return sorted(found, key=lambda place: (place[1].shape[place[2]] != most, 1 - place[2]))


# -- cases -----------------------------------------------------------------------------------------

Change = Callable[[torch.Tensor], torch.Tensor]


def changes(lengths: Lengths) -> Iterator[tuple[str, Change]]:
    """The cases of `lengths`, each with how the tensor is changed for it.

    On a GPU what is out of range ends the process's use of it: only numbers that occur, or between, are used.
    """
    real = torch.cuda.is_available()
    size, one = (lengths.most, lengths.least) if real else (lengths.size, 1)
    if lengths.kind == "indices":
        yield "first index only", lambda old: torch.full_like(old, lengths.least)
        yield "last index only", lambda old: torch.full_like(old, lengths.most)
    elif lengths.kind == "offsets":
        yield "empty first row", _first_empty
    else:
        yield "full lengths", lambda old: torch.full_like(old, size)
        yield "lengths of one", lambda old: torch.full_like(old, one)
        if not real:
            yield "a length of zero", lambda old: _with_first(old, 0)
        yield "long and short in turn", lambda old: in_turn(old, size)


def in_turn(old: torch.Tensor, size: int) -> torch.Tensor:
    """The whole length and half of it, in turn, beginning with the whole."""
    made = torch.full_like(old.contiguous(), max(size // 2, 1))
    made.view(-1)[::2] = size
    return made


def _with_first(old: torch.Tensor, value: int) -> torch.Tensor:
    made = old.clone()
    made.view(-1)[0] = value
    return made


def _first_empty(old: torch.Tensor) -> torch.Tensor:
    made = old.clone()
    if len(made) > 2:
        made[1] = 0
    return made


def cut(given: Input, lengths: Sequence[Lengths], before: dict[str, torch.Tensor]) -> Input:
    """`given`, some of whose dimensions are smaller than `before`, with lengths that still fit."""
    now = dict(given.tensors())
    limits = {
        one.path: int(now[one.of].shape[one.dim]) - (one.kind == "indices")
        for one in lengths
        if now[one.of].shape[one.dim] < before[one.of].shape[one.dim]
    }

    def visit(path: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clamp(max=max(limits[path], 0)) if path in limits else tensor

    return given.mapped(visit)


def padded(given: Input, lengths: Lengths, path: str) -> Input | None:
    """`given` with NaN in the tensor at `path` wherever `lengths` say that it does not count; None: nowhere.

    Where every row counts whole, every other one is made half as long.
    """
    named = dict(given.tensors())
    values, long = named[path].detach(), named[lengths.path]
    if lengths.kind != "lengths" or values.dim() < 2 or not values.is_floating_point():
        return None
    dim = lengths.dim
    if values.shape[dim] != lengths.size or values.shape[1 - dim] != long.shape[0]:
        return None
    if int(long.min()) >= lengths.size:
        long = in_turn(long, lengths.size)
    if int(long.min()) >= lengths.size:
        return None
    beyond = torch.arange(lengths.size, device=long.device) >= long[:, None]  # rows × positions
    beyond = beyond if dim == 1 else beyond.T

    def visit(where: str, tensor: torch.Tensor) -> torch.Tensor:
        if where == lengths.path:
            return long
        return filled(tensor, beyond) if where == path else tensor

    return replace(given.mapped(visit), lenient=True)


def filled(tensor: torch.Tensor, where: Any) -> torch.Tensor:
    """`tensor` with NaN at `where`, a mask of its leading dimensions; it requires gradients if it did."""
    made = tensor.detach().clone()
    made[where.to(made.device)] = float("nan")
    return made.requires_grad_(tensor.requires_grad)

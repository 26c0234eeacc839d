"""Find integers that limit a dimension of another tensor (lengths, offsets, indices), and what lies
beyond."""

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
    """Integers at `path` that say how far dimension `dim` (of `size`) of the tensor at `of` is valid.

    ``lengths`` has one for each row, ``offsets`` where each row begins and the last one ends, and ``indices``
    point into the dimension. `of` and `dim` are the first that match. The integers that occur are between
    `least` and `most`.
    """

    path: str
    kind: Kind
    of: str
    dim: int
    size: int
    least: int
    most: int


Dimension = tuple[str, torch.Tensor, int]
"""A tensor's path, the tensor, and one of its dimensions."""


def find_lengths(
    named: Sequence[tuple[str, torch.Tensor]], ignored: Sequence[int] = ()
) -> tuple[Lengths, ...]:
    """Return the tensors in `named` that are lengths, offsets or indices by their names and values.

    Without such a name, integers are lengths if each row has one, none is 0, and the largest is the size of a
    dimension of a floating tensor: no label is, except an `ignored` one.
    """
    candidates = (
        _as_lengths(path, tensor, named, ignored) for path, tensor in named if _holds_integers(tensor)
    )
    return tuple(length for length in candidates if length is not None)


def _holds_integers(tensor: torch.Tensor) -> bool:
    kind = tensor.dtype
    of_numbers = not (kind is torch.bool or kind.is_floating_point or kind.is_complex)
    return of_numbers and tensor.dim() > 0 and tensor.numel() > 0


def _as_lengths(
    path: str, tensor: torch.Tensor, named: Sequence[tuple[str, torch.Tensor]], ignored: Sequence[int]
) -> Lengths | None:
    least, most = int(tensor.min()), int(tensor.max())
    word = (_WORD.findall(path) or [""])[-1]
    kind = next((kind for kind, pattern in _NAMES if pattern.search(word)), None)
    if least < 0 or (kind is None and (not least or most in ignored)):
        return None
    places = [
        (other, tensor_there, dim)
        for other, tensor_there in named
        if other != path
        for dim in range(tensor_there.dim())
    ]
    if kind == "offsets":
        places = _ending_at(tensor, places, most)
    elif kind == "indices":
        places = [
            place for place in places if place[1].is_floating_point() and place[1].shape[place[2]] > most
        ]
    else:
        places = _with_length_per_row(tensor, places, most)
        if kind is None:
            places = [
                place for place in places if place[1].is_floating_point() and place[1].shape[place[2]] == most
            ]
    if not places:
        return None
    other, tensor_there, dim = places[0]
    return Lengths(path, kind or "lengths", other, dim, int(tensor_there.shape[dim]), least, most)


def _ending_at(tensor: torch.Tensor, places: Sequence[Dimension], most: int) -> list[Dimension]:
    """Return the dimensions whose size is the last offset."""
    rising = tensor.dim() == 1 and not int(tensor[0]) and bool((tensor.diff() >= 0).all())
    return [place for place in places if rising and place[1].shape[place[2]] == most]


def _with_length_per_row(tensor: torch.Tensor, places: Sequence[Dimension], most: int) -> list[Dimension]:
    """Return the first or second dimensions of tensors with one row per length."""
    matching = [
        (path, place, dim)
        for path, place, dim in places
        if tensor.dim() == 1 and place.dim() > 1 and dim < 2
        and place.shape[1 - dim] == len(tensor) and most <= place.shape[dim]
    ]  # fmt: skip
    return sorted(matching, key=lambda place: (place[1].shape[place[2]] != most, 1 - place[2]))


# -- cases -----------------------------------------------------------------------------------------

Change = Callable[[torch.Tensor], torch.Tensor]


def length_changes(lengths: Lengths) -> Iterator[tuple[str, Change]]:
    """Yield the cases of `lengths`, each with the change to the tensor.

    On a GPU an index out of range ends the process's use of it: there only integers between those that occur
    are used.
    """
    on_gpu = torch.cuda.is_available()
    size, least = (lengths.most, lengths.least) if on_gpu else (lengths.size, 1)
    if lengths.kind == "indices":
        yield "first index only", lambda old: torch.full_like(old, lengths.least)
        yield "last index only", lambda old: torch.full_like(old, lengths.most)
    elif lengths.kind == "offsets":
        yield "empty first row", _empty_first_row
    else:
        yield "full lengths", lambda old: torch.full_like(old, size)
        yield "lengths of one", lambda old: torch.full_like(old, least)
        if not on_gpu:
            yield "a length of zero", lambda old: _set_first(old, 0)
        yield "long and short in turn", lambda old: alternate_lengths(old, size)


def alternate_lengths(old: torch.Tensor, size: int) -> torch.Tensor:
    """Return lengths that alternate between the whole size and half of it."""
    alternating = torch.full_like(old.contiguous(), max(size // 2, 1))
    alternating.view(-1)[::2] = size
    return alternating


def _set_first(old: torch.Tensor, value: int) -> torch.Tensor:
    changed = old.clone()
    changed.view(-1)[0] = value
    return changed


def _empty_first_row(old: torch.Tensor) -> torch.Tensor:
    changed = old.clone()
    if len(changed) > 2:
        changed[1] = 0
    return changed


def cut_lengths(call_input: Input, lengths: Sequence[Lengths], before: dict[str, torch.Tensor]) -> Input:
    """Return the input, in which dimensions were cut from `before`, with lengths clamped to fit."""
    now = dict(call_input.tensors())
    limits = {
        limit.path: int(now[limit.of].shape[limit.dim]) - (limit.kind == "indices")
        for limit in lengths
        if now[limit.of].shape[limit.dim] < before[limit.of].shape[limit.dim]
    }

    def visit(path: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clamp(max=max(limits[path], 0)) if path in limits else tensor

    return call_input.map_tensors(visit)


def fill_padding(call_input: Input, lengths: Lengths, path: str) -> Input | None:
    """Return the input with NaN at `path` wherever `lengths` exclude it; None if they exclude nothing.

    If every row is full, every other one is first made half as long.
    """
    named = dict(call_input.tensors())
    values, long = named[path].detach(), named[lengths.path]
    if lengths.kind != "lengths" or values.dim() < 2 or not values.is_floating_point():
        return None
    dim = lengths.dim
    if values.shape[dim] != lengths.size or values.shape[1 - dim] != long.shape[0]:
        return None
    if int(long.min()) >= lengths.size:
        long = alternate_lengths(long, lengths.size)
    if int(long.min()) >= lengths.size:
        return None
    beyond = torch.arange(lengths.size, device=long.device) >= long[:, None]  # rows × positions
    beyond = beyond if dim == 1 else beyond.T

    def visit(where: str, tensor: torch.Tensor) -> torch.Tensor:
        if where == lengths.path:
            return long
        return fill_with_nan(tensor, beyond) if where == path else tensor

    return replace(call_input.map_tensors(visit), lenient=True)


def fill_with_nan(tensor: torch.Tensor, where: Any) -> torch.Tensor:
    """Return `tensor` with NaN at `where`, a mask of its leading dimensions; gradients are required as
    before."""
    filled_tensor = tensor.detach().clone()
    filled_tensor[where.to(filled_tensor.device)] = float("nan")
    return filled_tensor.requires_grad_(tensor.requires_grad)

"""Pad sequences of different lengths into one tensor, with a few sizes instead of many."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import default_collate

from gapless.errors import UsageError


class Padded(NamedTuple):
    """Padded sequences: `values` (N, L, ...), `mask` (N, L), true at values, and `lengths` (N,)."""

    values: Tensor
    mask: Tensor
    lengths: Tensor


def pad_to_multiple(
    sequences: Sequence[Any], multiple: int = 8, *, value: float = 0, least: int = 0, most: int | None = None
) -> Padded:
    """Pad `sequences` ((L_i, ...) tensors, arrays or lists) at the end to a common length.

    The length is the longest's, rounded up to `multiple`, at least `least` and at most `most`. Recurring
    sizes let the caching allocator reuse its blocks, and multiples of 8 (64 in half precision) suit the
    matrix units.

    Raises:
        UsageError: a sequence is longer than `most`, or there is none.
    """
    if multiple < 1:
        raise UsageError(f"multiple={multiple} is not positive")
    return _pad_to(sequences, lambda longest: -(-longest // multiple) * multiple, value, least, most)


def pad_to_power_of_two(
    sequences: Sequence[Any], *, value: float = 0, least: int = 1, most: int | None = None
) -> Padded:
    """Pad like `pad_to_multiple`, to the next power of two: the fewest sizes, with up to twice the values."""
    return _pad_to(sequences, lambda longest: 1 << max(longest - 1, 0).bit_length(), value, least, most)


def pad_collate(
    to: int | Literal["power-of-two"] = 8,
    *,
    fields: Sequence[str | int] | None = None,
    value: float | Mapping[Any, float] = 0,
    least: int = 0,
    most: int | None = None,
) -> PadCollate:
    """Return a `collate_fn` that pads sequences and stacks the rest as torch does.

    Items may be sequences, or dicts, tuples and named tuples with sequences in them. A padded field becomes a
    `Padded`. `fields` (keys, or positions in a tuple) are padded, by default every tensor, array or list of
    numbers with one dimension. `value` is the padding, or a padding for each field.
    """
    return PadCollate(to, fields, value, least, most)


class PadCollate:
    """The collate function returned by `pad_collate`; can be pickled for spawned workers."""

    def __init__(
        self,
        to: int | Literal["power-of-two"],
        fields: Sequence[str | int] | None,
        value: float | Mapping[Any, float],
        least: int,
        most: int | None,
    ) -> None:
        if to != "power-of-two" and (not isinstance(to, int) or to < 1):
            raise UsageError(f"to={to!r} must be a positive number or 'power-of-two'")
        self.to, self.value, self.least, self.most = to, value, least, most
        self.fields = None if fields is None else tuple(fields)

    def __call__(self, items: Sequence[Any]) -> Any:
        first = items[0]
        if isinstance(first, Mapping):
            return {key: self._field(key, [item[key] for item in items]) for key in first}
        if isinstance(first, tuple) or (isinstance(first, list) and not _is_sequence(first)):
            columns = [self._field(i, list(column)) for i, column in enumerate(zip(*items, strict=True))]
            return type(first)(*columns) if hasattr(first, "_fields") else tuple(columns)
        return self._pad(items, None) if _is_sequence(first) else default_collate(list(items))

    def _field(self, name: str | int, column: list[Any]) -> Any:
        wanted = _is_sequence(column[0]) if self.fields is None else name in self.fields
        return self._pad(column, name) if wanted else default_collate(column)

    def _pad(self, sequences: Sequence[Any], name: str | int | None) -> Padded:
        value = self.value.get(name, 0) if isinstance(self.value, Mapping) else self.value
        if self.to == "power-of-two":
            return pad_to_power_of_two(sequences, value=value, least=self.least, most=self.most)
        return pad_to_multiple(sequences, self.to, value=value, least=self.least, most=self.most)


def _is_sequence(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(part, (int, float)) for part in value)
    return getattr(value, "ndim", -1) == 1


def _pad_to(
    sequences: Sequence[Any], rounded: Callable[[int], int], value: float, least: int, most: int | None
) -> Padded:
    if not sequences:
        raise UsageError("there are no sequences to pad")
    tensors = [torch.as_tensor(sequence) for sequence in sequences]
    if any(tensor.ndim == 0 for tensor in tensors):
        raise UsageError("a number has no length to pad")
    counts = [tensor.shape[0] for tensor in tensors]
    longest = max(counts)
    if most is not None and longest > most:
        raise UsageError(f"sequence {counts.index(longest)} has {longest} values, but the limit is {most}")
    size = max(rounded(longest), least, longest)
    size = size if most is None else min(size, most)
    filled = [tensor for tensor in tensors if tensor.numel()] or tensors
    values = filled[0].new_full((len(tensors), size, *filled[0].shape[1:]), value)
    for row, tensor in zip(values, tensors, strict=True):
        if tensor.shape[0]:
            row[: tensor.shape[0]] = tensor
    lengths = torch.tensor(counts)
    return Padded(values, torch.arange(size) < lengths.unsqueeze(1), lengths)

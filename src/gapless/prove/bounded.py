"""Results of bounded size beside those of the size that the values have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gapless.prove import tree
from gapless.trees import rebuilt


class Fitting:
    """Takes of the second side's results the rows that the first side's have.

    `declared` says that any tensor may have more rows than its counterpart. Results that hold their number
    beside their values (`gapless.ops.Bounded`, and named tuples like it) may without that. `short` tells of
    what had more rows than there was room for.
    """

    def __init__(self, declared: bool) -> None:
        self.declared = declared
        self.short: list[str] = []

    def fitted(self, before: Any, after: Any, where: str) -> Any:
        """`after` in the form of `before`, as far as it is a bounded form of it; `where` names both."""
        if isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
            return self._rows(before, after, where) if self.declared else after
        number = _number(after)
        if number is not None and type(before) is not type(after):
            return self._numbered(before, after, number, where)
        if isinstance(before, Mapping) and isinstance(after, Mapping) and before.keys() == after.keys():
            return {key: self.fitted(before[key], after[key], f"{where}[{key!r}]") for key in after}
        sequences = isinstance(before, (list, tuple)) and isinstance(after, (list, tuple))
        if sequences and len(before) == len(after):
            own = [
                self.fitted(old, new, where + step)
                for old, (step, new) in zip(before, tree.parts(after) or (), strict=True)
            ]
            return rebuilt(after, own)
        return after

    def _rows(self, before: torch.Tensor, after: torch.Tensor, where: str) -> torch.Tensor:
        """The first rows of `after`, as many as `before` has."""
        alike = before.dim() == after.dim() > 0 and before.shape[1:] == after.shape[1:]
        if not alike or before.shape[0] == after.shape[0]:
            return after
        if before.shape[0] > after.shape[0]:
            self.short.append(f"{where} has room for {after.shape[0]} rows of {before.shape[0]}")
            return after
        return after[: before.shape[0]]

    def _numbered(self, before: Any, after: Any, number: int, where: str) -> Any:
        """The first `number` rows of what has as many as there is room for."""
        room = after.values.shape[0]
        if number > room:
            self.short.append(f"{where} has room for {room} rows of {number}")
        fields = [
            getattr(after, name)
            for name in after._fields
            if name != "number" and getattr(after, name) is not None
        ]
        rows = [
            one[:number] if not at or (_has_rows(one, room) and not _full(one, before, at)) else one
            for at, one in enumerate(fields)
        ]
        if isinstance(before, (list, tuple)):
            return rebuilt(before, rows) if len(before) == len(rows) else after
        return rows[0] if len(rows) == 1 else after


def _number(value: Any) -> int | None:
    """How many rows of a bounded result there are; None where `value` is none."""
    if not {"values", "number"} <= set(getattr(value, "_fields", ())):
        return None
    number, values = value.number, value.values
    if not (isinstance(values, torch.Tensor) and values.dim() and isinstance(number, torch.Tensor)):
        return None
    whole = not (number.is_floating_point() or number.is_complex() or number.dim())
    return int(number) if whole else None


def _has_rows(value: Any, room: int) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape[0] == room


def _full(value: torch.Tensor, before: Any, at: int) -> bool:
    """Whether the counterpart of `value` has as many rows: an inverse has the shape of the input."""
    other = before[at] if isinstance(before, (list, tuple)) and at < len(before) else before
    return isinstance(other, torch.Tensor) and other.shape == value.shape

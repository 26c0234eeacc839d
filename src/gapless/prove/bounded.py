"""Compare results of bounded size with results whose size depends on the values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gapless.prove import tree
from gapless.trees import rebuild


class BoundedFitter:
    """Cuts results of the second side to the number of rows of the first side's.

    `declared`: any tensor may have more rows than its counterpart. Without it, only results that carry their
    number of rows beside their values may (`gapless.ops.Bounded`, and named tuples like it). `short` lists
    results with more rows than there was room for.
    """

    def __init__(self, declared: bool) -> None:
        self.declared = declared
        self.short: list[str] = []

    def fit(self, before: Any, after: Any, where: str) -> Any:
        """Return `after` in the form of `before` where it is a bounded form of it; `where` names both."""
        if isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
            return self._cut_rows(before, after, where) if self.declared else after
        number = _row_count(after)
        if number is not None and type(before) is not type(after):
            return self._cut_to_number(before, after, number, where)
        if isinstance(before, Mapping) and isinstance(after, Mapping) and before.keys() == after.keys():
            return {key: self.fit(before[key], after[key], f"{where}[{key!r}]") for key in after}
        sequences = isinstance(before, (list, tuple)) and isinstance(after, (list, tuple))
        if sequences and len(before) == len(after):
            own = [
                self.fit(old, new, where + step)
                for old, (step, new) in zip(before, tree.parts(after) or (), strict=True)
            ]
            return rebuild(after, own)
        return after

    def _cut_rows(self, before: torch.Tensor, after: torch.Tensor, where: str) -> torch.Tensor:
        """Return as many rows of `after` as `before` has."""
        alike = before.dim() == after.dim() > 0 and before.shape[1:] == after.shape[1:]
        if not alike or before.shape[0] == after.shape[0]:
            return after
        if before.shape[0] > after.shape[0]:
            self.short.append(f"{where} has room for {after.shape[0]} rows of {before.shape[0]}")
            return after
        return after[: before.shape[0]]

    def _cut_to_number(self, before: Any, after: Any, row_count: int, where: str) -> Any:
        """Return the fields of a bounded result, each cut to its valid rows."""
        room = after.values.shape[0]
        if row_count > room:
            self.short.append(f"{where} has room for {room} rows of {row_count}")
        fields = [
            getattr(after, name)
            for name in after._fields
            if name != "number" and getattr(after, name) is not None
        ]
        fitted_fields = [
            field[:row_count]
            if not at or (_has_rows(field, room) and not _has_full_counterpart(field, before, at))
            else field
            for at, field in enumerate(fields)
        ]
        if isinstance(before, (list, tuple)):
            return rebuild(before, fitted_fields) if len(before) == len(fitted_fields) else after
        return fitted_fields[0] if len(fitted_fields) == 1 else after


def _row_count(value: Any) -> int | None:
    """Return the number of valid rows of a bounded result; None where `value` is no bounded result."""
    if not {"values", "number"} <= set(getattr(value, "_fields", ())):
        return None
    number, values = value.number, value.values
    if not (isinstance(values, torch.Tensor) and values.dim() and isinstance(number, torch.Tensor)):
        return None
    whole = not (number.is_floating_point() or number.is_complex() or number.dim())
    return int(number) if whole else None


def _has_rows(value: Any, room: int) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape[0] == room


def _has_full_counterpart(value: torch.Tensor, before: Any, at: int) -> bool:
    """Whether the counterpart of `value` has as many rows, as an inverse has that of `unique`."""
    other = before[at] if isinstance(before, (list, tuple)) and at < len(before) else before
    return isinstance(other, torch.Tensor) and other.shape == value.shape

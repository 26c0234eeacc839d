"""Arithmetic on metrics: ``2 * (precision + recall)`` is a metric, computed on the device as those are."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

Operation = Callable[..., Any]


class Operators:
    """The operators of a metric. Each makes a metric whose value follows from the operands' values."""

    _composition: ClassVar[Callable[..., Any]]
    """Makes that metric: the subclass `CompositionalMetric`, which puts itself here."""

    def _combined(self, operation: Operation, first: Any, second: Any = None) -> Any:
        return self._composition(operation, first, second)

    def __add__(self, other: Any) -> Any:
        return self._combined(operator.add, self, other)

    def __radd__(self, other: Any) -> Any:
        return self._combined(operator.add, other, self)

    def __sub__(self, other: Any) -> Any:
        return self._combined(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._combined(operator.sub, other, self)

    def __mul__(self, other: Any) -> Any:
        return self._combined(operator.mul, self, other)

    def __rmul__(self, other: Any) -> Any:
        return self._combined(operator.mul, other, self)

    def __truediv__(self, other: Any) -> Any:
        return self._combined(operator.truediv, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._combined(operator.truediv, other, self)

    def __floordiv__(self, other: Any) -> Any:
        return self._combined(operator.floordiv, self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._combined(operator.floordiv, other, self)

    def __mod__(self, other: Any) -> Any:
        return self._combined(remainder, self, other)

    def __rmod__(self, other: Any) -> Any:
        return self._combined(remainder, other, self)

    def __pow__(self, other: Any) -> Any:
        return self._combined(operator.pow, self, other)

    def __rpow__(self, other: Any) -> Any:
        return self._combined(operator.pow, other, self)

    def __matmul__(self, other: Any) -> Any:
        return self._combined(operator.matmul, self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return self._combined(operator.matmul, other, self)

    def __and__(self, other: Any) -> Any:
        return self._combined(operator.and_, self, other)

    def __rand__(self, other: Any) -> Any:
        return self._combined(operator.and_, other, self)

    def __or__(self, other: Any) -> Any:
        return self._combined(operator.or_, self, other)

    def __ror__(self, other: Any) -> Any:
        return self._combined(operator.or_, other, self)

    def __xor__(self, other: Any) -> Any:
        return self._combined(operator.xor, self, other)

    def __rxor__(self, other: Any) -> Any:
        return self._combined(operator.xor, other, self)

    def __lt__(self, other: Any) -> Any:
        return self._combined(operator.lt, self, other)

    def __le__(self, other: Any) -> Any:
        return self._combined(operator.le, self, other)

    def __gt__(self, other: Any) -> Any:
        return self._combined(operator.gt, self, other)

    def __ge__(self, other: Any) -> Any:
        return self._combined(operator.ge, self, other)

    def __eq__(self, other: Any) -> Any:
        return self._combined(operator.eq, self, other)

    def __ne__(self, other: Any) -> Any:
        return self._combined(operator.ne, self, other)

    def __hash__(self) -> int:
        return id(self)

    def __abs__(self) -> Any:
        return self._combined(operator.abs, self)

    def __pos__(self) -> Any:
        return self._combined(operator.abs, self)

    def __neg__(self) -> Any:
        return self._combined(operator.neg, self)

    def __invert__(self) -> Any:
        return self._combined(operator.invert, self)

    __inv__ = __invert__

    def __getitem__(self, index: Any) -> Any:
        return self._combined(Item(index), self)

    __iter__ = None
    """Indexing makes a metric and never ends, so that a metric must not be taken for a sequence."""


class Item:
    """One part of a value."""

    def __init__(self, index: Any) -> None:
        self.index = index

    def __call__(self, value: Any) -> Any:
        return value[self.index]


def remainder(first: Any, second: Any) -> Tensor:
    """The remainder with the sign of `first`, as in C."""
    if not isinstance(first, Tensor):
        first = torch.full((), first, device=second.device)
    return torch.fmod(first, second)

"""Arithmetic on metrics: ``2 * (precision + recall)`` is a metric, computed on the device as those are."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

Operation = Callable[..., Any]
Unary = Callable[[Any], Any]
Binary = Callable[[Any, Any], Any]


def remainder(first: Any, second: Any) -> Tensor:
    """The remainder with the sign of `first`, as in C."""
    if not isinstance(first, Tensor):
        first = torch.full((), first, device=second.device)
    return torch.fmod(first, second)


def of_value(operation: Operation) -> Unary:
    """The method that makes the metric of an operation on a metric's value."""

    def method(self: Any) -> Any:
        return self._composition(operation, self, None)

    return method


def of_both(operation: Operation) -> tuple[Binary, Binary]:
    """Those of an operation on a metric's value and another one's, and the other way around."""

    def method(self: Any, other: Any) -> Any:
        return self._composition(operation, self, other)

    def swapped(self: Any, other: Any) -> Any:
        return self._composition(operation, other, self)

    return method, swapped


class Operators:
    """The operators of a metric. Each makes a metric whose value follows from the operands' values."""

    _composition: ClassVar[Callable[..., Any]]
    """Makes that metric: the subclass `CompositionalMetric`, which puts itself here."""

    __add__, __radd__ = of_both(operator.add)
    __sub__, __rsub__ = of_both(operator.sub)
    __mul__, __rmul__ = of_both(operator.mul)
    __truediv__, __rtruediv__ = of_both(operator.truediv)
    __floordiv__, __rfloordiv__ = of_both(operator.floordiv)
    __mod__, __rmod__ = of_both(remainder)
    __pow__, __rpow__ = of_both(operator.pow)
    __matmul__, __rmatmul__ = of_both(operator.matmul)
    __and__, __rand__ = of_both(operator.and_)
    __or__, __ror__ = of_both(operator.or_)
    __xor__, __rxor__ = of_both(operator.xor)
    __lt__ = of_both(operator.lt)[0]
    __le__ = of_both(operator.le)[0]
    __gt__ = of_both(operator.gt)[0]
    __ge__ = of_both(operator.ge)[0]
    __eq__ = of_both(operator.eq)[0]
    __ne__ = of_both(operator.ne)[0]
    __abs__ = __pos__ = of_value(operator.abs)
    __neg__ = of_value(operator.neg)
    __invert__ = __inv__ = of_value(operator.invert)

    def __hash__(self) -> int:
        return id(self)

    def __getitem__(self, index: Any) -> Any:
        return self._composition(Item(index), self, None)

    __iter__ = None
    """Indexing makes a metric and never ends, so that a metric must not be taken for a sequence."""


class Item:
    """One part of a value."""

    def __init__(self, index: Any) -> None:
        self.index = index

    def __call__(self, value: Any) -> Any:
        return value[self.index]

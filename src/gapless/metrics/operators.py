"""Arithmetic on metrics: ``2 * (precision + recall)`` is a metric, computed on the device."""

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
    """Return the remainder with the sign of `first`, as in C."""
    if not isinstance(first, Tensor):
        first = torch.full((), first, device=second.device)
    return torch.fmod(first, second)


def make_unary(operation: Operation) -> Unary:
    """Return a method that composes a metric from `operation` on a metric's value."""

    def method(self: Any) -> Any:
        return self._composition(operation, self, None)

    return method


def make_binary(operation: Operation) -> tuple[Binary, Binary]:
    """Return two methods that compose a metric from `operation`, with self as first and as second operand."""

    def method(self: Any, other: Any) -> Any:
        return self._composition(operation, self, other)

    def reverse_method(self: Any, other: Any) -> Any:
        return self._composition(operation, other, self)

    return method, reverse_method


class Operators:
    """The operators of a metric: each makes a metric computed from the operands' values."""

    _composition: ClassVar[Callable[..., Any]]
    """The class `CompositionalMetric`, which sets this attribute itself."""

    __add__, __radd__ = make_binary(operator.add)
    __sub__, __rsub__ = make_binary(operator.sub)
    __mul__, __rmul__ = make_binary(operator.mul)
    __truediv__, __rtruediv__ = make_binary(operator.truediv)
    __floordiv__, __rfloordiv__ = make_binary(operator.floordiv)
    __mod__, __rmod__ = make_binary(remainder)
    __pow__, __rpow__ = make_binary(operator.pow)
    __matmul__, __rmatmul__ = make_binary(operator.matmul)
    __and__, __rand__ = make_binary(operator.and_)
    __or__, __ror__ = make_binary(operator.or_)
    __xor__, __rxor__ = make_binary(operator.xor)
    __lt__ = make_binary(operator.lt)[0]
    __le__ = make_binary(operator.le)[0]
    __gt__ = make_binary(operator.gt)[0]
    __ge__ = make_binary(operator.ge)[0]
    __eq__ = make_binary(operator.eq)[0]
    __ne__ = make_binary(operator.ne)[0]
    __abs__ = __pos__ = make_unary(operator.abs)
    __neg__ = make_unary(operator.neg)
    __invert__ = __inv__ = make_unary(operator.invert)

    def __hash__(self) -> int:
        return id(self)

    def __getitem__(self, index: Any) -> Any:
        return self._composition(Item(index), self, None)

    __iter__ = None
    """Not iterable: indexing composes a metric for any index, so iteration would never end."""


class Item:
    """Takes one element of a value."""

    def __init__(self, index: Any) -> None:
        self.index = index

    def __call__(self, value: Any) -> Any:
        return value[self.index]

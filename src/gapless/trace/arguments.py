"""What an operator was given, where the profile recorded it (``record_shapes=True``)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

Shape = tuple[int, ...]
Written = bytes
"""Sizes, types and values of an operator's arguments as they stand in the file: three lists in JSON."""
SEPARATOR = b"\0"
"""What parts the three: JSON never holds it."""


class Arguments(NamedTuple):
    """One item for each argument of an operator.

    `sizes` are a tensor's shape; several shapes for a list of tensors; empty for what is no tensor, and for
    a tensor of one element. `types` are C++ names (``float``, ``c10::Half``), ``Scalar``, ``ScalarList``,
    ``TensorList`` or "". `values` are texts of plain numbers, lists and flags (``[2, 2]``), "" for the rest;
    profiles before torch 2.1 have none.
    """

    sizes: tuple[Any, ...] = ()
    types: tuple[str, ...] = ()
    values: tuple[str, ...] = ()

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The shapes of all tensors that have any; lists of tensors are taken apart."""
        return tuple(shapes_in(self.sizes))


def shapes_in(sizes: Any) -> list[Shape]:
    """Shapes from nested lists; what is none is left out.

    >>> shapes_in([[2, 3], [[4], [5]], []])
    [(2, 3), (4,), (5,)]
    """
    shapes: list[Shape] = []
    for one in sizes:
        if isinstance(one, list | tuple) and one and all(type(size) is int for size in one):
            shapes.append(tuple(one))
        elif isinstance(one, list | tuple):
            shapes += shapes_in(one)
    return shapes


@lru_cache(maxsize=16384)
def arguments(written: Written) -> Arguments:
    """What was written, taken apart; of what is not three lists, the lists."""
    sizes, types, values = map(_list, written.split(SEPARATOR))
    return Arguments(
        tuple(map(_fixed, sizes)),
        tuple(one if isinstance(one, str) else "" for one in types),
        tuple(one if isinstance(one, str) else "" for one in values),
    )


def _fixed(size: Any) -> Any:
    return tuple(map(_fixed, size)) if isinstance(size, list) else size


def _list(text: bytes) -> list[Any]:
    try:
        found = msgspec.json.decode(text) if text else []
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
    return found if isinstance(found, list) else []

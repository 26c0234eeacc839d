"""Arguments of an operator, where the profile recorded them (``record_shapes=True``)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

Shape = tuple[int, ...]
EncodedArguments = bytes
"""Sizes, types and values of an operator's arguments as the file writes them: three JSON lists."""
SEPARATOR = b"\0"
"""Separates the three lists: no JSON text contains it."""


class Arguments(NamedTuple):
    """One item for each argument of an operator.

    `sizes` are a tensor's shape; several shapes for a list of tensors; empty for other arguments and for
    zero-dimensional tensors. `types` are C++ names (``float``, ``c10::Half``), ``Scalar``, ``ScalarList``,
    ``TensorList`` or "". `values` are texts of plain numbers, lists and flags (``[2, 2]``), "" for the rest;
    profiles before torch 2.1 have none.
    """

    sizes: tuple[Any, ...] = ()
    types: tuple[str, ...] = ()
    values: tuple[str, ...] = ()

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The shapes of all tensors with at least one dimension, those in lists of tensors included."""
        return tuple(find_shapes(self.sizes))


def find_shapes(sizes: Any) -> list[Shape]:
    """Return the shapes in nested lists, without anything that is not a shape.

    >>> find_shapes([[2, 3], [[4], [5]], []])
    [(2, 3), (4,), (5,)]
    """
    shapes: list[Shape] = []
    for item in sizes:
        if isinstance(item, list | tuple) and item and all(type(size) is int for size in item):
            shapes.append(tuple(item))
        elif isinstance(item, list | tuple):
            shapes += find_shapes(item)
    return shapes


@lru_cache(maxsize=16384)
def parse_arguments(encoded: EncodedArguments) -> Arguments:
    """Decode sizes, types and values; a part that is not a JSON list counts as empty."""
    sizes, types, values = map(_decode_list, encoded.split(SEPARATOR))
    return Arguments(
        tuple(map(_to_tuples, sizes)),
        tuple(type_name if isinstance(type_name, str) else "" for type_name in types),
        tuple(value if isinstance(value, str) else "" for value in values),
    )


def _to_tuples(size: Any) -> Any:
    return tuple(map(_to_tuples, size)) if isinstance(size, list) else size


def _decode_list(text: bytes) -> list[Any]:
    try:
        decoded = msgspec.json.decode(text) if text else []
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
    return decoded if isinstance(decoded, list) else []

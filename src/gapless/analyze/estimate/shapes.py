"""The shapes that a profile recorded for its operators (``record_shapes=True``)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from gapless.model.programme import Shape
from gapless.trace.sources import open_source

_PIECE = 1 << 22
T = TypeVar("T")


class _Args(msgspec.Struct, rename={"external": "External id", "older": "external id", "dims": "Input Dims",
                                    "older_dims": "Input dims"}):  # fmt: skip
    external: int | str = -1
    older: int | str = -1
    dims: Any = None
    older_dims: Any = None


class _Event(msgspec.Struct):
    ph: str = ""
    args: _Args = msgspec.field(default_factory=_Args)


class _File(msgspec.Struct, rename={"events": "traceEvents"}):
    events: list[msgspec.Raw] = []


def recorded_shapes(path: str | os.PathLike[str]) -> dict[int, tuple[Shape, ...]]:
    """For each operator's external id the shapes of its tensors; empty where none were recorded.

    Raises:
        UnreadableInput: the file cannot be read.
    """
    found: dict[int, tuple[Shape, ...]] = {}
    for event in recorded(path, _Event):
        args = event.args
        dims = args.dims if args.dims is not None else args.older_dims
        number = args.external if args.external != -1 else args.older
        if isinstance(dims, list) and str(number).isdigit():
            found[int(number)] = shapes_in(dims)
    return found


def recorded(path: str | os.PathLike[str], kind: type[T]) -> Iterator[T]:
    """The events of a file whose operators have shapes, each as a `kind`; none of a damaged one.

    Raises:
        UnreadableInput: the file cannot be read.
    """
    with open_source(os.fspath(path)) as source:
        data = bytearray()
        while piece := source.read(_PIECE):
            data += piece
    if b'"Input Dims"' not in data and b'"Input dims"' not in data:
        return
    try:
        events = msgspec.json.decode(data, type=_File).events
    except (msgspec.DecodeError, UnicodeDecodeError):
        return  # what the operators took is still to be had
    decoder = msgspec.json.Decoder(kind)
    for raw in events:
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            yield decoder.decode(raw)


def shapes_in(dims: list[Any]) -> tuple[Shape, ...]:
    """Shapes from the nested lists of a profile; lists of tensors are taken apart, what is none left out."""
    shapes: list[Shape] = []
    for one in dims:
        if isinstance(one, list) and one and all(isinstance(size, int) for size in one):
            shapes.append(tuple(one))
        elif isinstance(one, list):
            shapes += shapes_in(one)
    return tuple(shapes)

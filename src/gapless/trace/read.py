"""A Kineto file as a `Timeline`."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from gapless.trace.build import Builder
from gapless.trace.chunks import Rest, events
from gapless.trace.events import Head
from gapless.trace.sources import open_source
from gapless.trace.timeline import Facts, Timeline


def read(path: str | os.PathLike[str]) -> Timeline:
    """The profile in `path`.

    Raises:
        UnreadableInput: the file cannot be read or is no trace.
    """
    name = os.fspath(path)
    rest = Rest()
    builder = Builder()
    with open_source(name) as source, _no_collection():
        for some in events(source, rest, name):
            builder.add(some)
            del some
        head = _head(rest)
        return builder.timeline(head, Facts(path=name, size=rest.size, truncated=rest.truncated), ())


@contextmanager
def _no_collection() -> Iterator[None]:
    """Millions of objects are made here and none of them in cycles: looking for cycles would take longer."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _head(rest: Rest) -> Head:
    """What the file says of itself, from what stands before and after the events."""
    text = rest.before + b"]" + (rest.after or b"}")
    try:
        return msgspec.json.decode(text, type=Head)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Head()

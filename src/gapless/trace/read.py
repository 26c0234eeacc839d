"""A Kineto file as a `Timeline`."""

from __future__ import annotations

import gc
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from gapless.errors import UnreadableInput
from gapless.files.sources import Progress, Source, open_source
from gapless.trace.assemble import timeline
from gapless.trace.build import TWICE, Builder
from gapless.trace.chunks import CHUNK, Rest, events
from gapless.trace.head import head
from gapless.trace.notes import notes
from gapless.trace.timeline import Facts, Timeline


def read(path: str | os.PathLike[str], progress: Progress | None = None) -> Timeline:
    """The profile in `path`: a file, gzip or not, ``-`` for standard input, or a URL of fsspec.

    `progress` is told from time to time how many bytes of the file have been read.

    Raises:
        UnreadableInput: the file cannot be read or is no trace.
    """
    name = os.fspath(path)
    with open_source(name, progress) as source:
        return _read(source, name, CHUNK)


def read_bytes(data: bytes, name: str = "-", chunk: int = CHUNK) -> Timeline:
    """The profile that `data` is, read in pieces of `chunk` bytes.

    Raises:
        UnreadableInput: `data` is no trace.
    """
    return _read(Source(io.BytesIO(data), name), name, chunk)


def _read(source: Source, name: str, chunk: int) -> Timeline:
    rest = Rest()
    builder = Builder()
    with _no_collection():
        for some in events(source, rest, name, chunk):
            builder.add(some)
            some.clear()
        cut = rest.truncated or source.short
        if not builder.events and cut:
            raise UnreadableInput(
                f"{name} was cut off before its first event: keep the process alive until the file is whole"
            )
        if not builder.events:
            raise UnreadableInput(f"{name} is a trace without events: nothing was recorded")
        made = timeline(builder, head(rest), Facts(path=name, size=rest.size, truncated=cut))
        losses = replace(
            made.facts.losses,
            broken=rest.damage.dropped.total() + builder.dropped.total() - builder.dropped[TWICE],
            corrupted=rest.damage.corrupted,
            lists=rest.lists,
        )
        facts = replace(made.facts, losses=losses)
        return replace(made, facts=facts, notes=notes(rest, builder, made, source.trouble))


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

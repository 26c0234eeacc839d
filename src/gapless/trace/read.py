"""Read a Kineto file as a `Timeline`."""

from __future__ import annotations

import io
import os
from dataclasses import replace

from gapless.cores import no_collection
from gapless.errors import UnreadableInput
from gapless.files.sources import Progress, Source, open_source
from gapless.trace.assemble import build_timeline
from gapless.trace.build import DUPLICATED, TimelineBuilder
from gapless.trace.chunks import CHUNK, Rest, iter_events
from gapless.trace.head import read_head
from gapless.trace.notes import describe_damage
from gapless.trace.timeline import Facts, Timeline


def read(path: str | os.PathLike[str], progress: Progress | None = None) -> Timeline:
    """Read the profile at `path`: a file, gzip or not, ``-`` for standard input, or a URL of fsspec.

    `progress` is called from time to time with the number of bytes read so far.

    Raises:
        UnreadableInput: the file cannot be read or is no trace.
    """
    name = os.fspath(path)
    with open_source(name, progress) as source:
        return _read(source, name, CHUNK)


def read_bytes(data: bytes, name: str = "-", chunk: int = CHUNK) -> Timeline:
    """Read the profile in `data`, in pieces of `chunk` bytes.

    Raises:
        UnreadableInput: `data` is no trace.
    """
    return _read(Source(io.BytesIO(data), name), name, chunk)


def _read(source: Source, name: str, chunk: int) -> Timeline:
    rest = Rest()
    builder = TimelineBuilder()
    with no_collection():  # millions of objects, none of them in cycles
        for batch in iter_events(source, rest, name, chunk):
            builder.add(batch)
            batch.clear()
        cut = rest.truncated or source.short
        if not builder.events and rest.nests_too_deep:
            raise UnreadableInput(f"{name} is damaged: its first event nests too deep")
        if not builder.events and cut:
            raise UnreadableInput(
                f"{name} was cut off before its first event: keep the process alive until the file is whole"
            )
        if not builder.events:
            raise UnreadableInput(f"{name} is a trace without events: nothing was recorded")
        timeline = build_timeline(builder, read_head(rest), Facts(path=name, size=rest.size, truncated=cut))
        losses = replace(
            timeline.facts.losses,
            broken=rest.damage.dropped.total() + builder.dropped.total() - builder.dropped[DUPLICATED],
            corrupted=rest.damage.corrupted,
            lists=rest.lists,
        )
        facts = replace(timeline.facts, losses=losses)
        return replace(timeline, facts=facts, notes=describe_damage(rest, builder, timeline, source.trouble))

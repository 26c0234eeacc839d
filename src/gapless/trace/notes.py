"""What reading a file repaired and lost, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.trace.build import Builder
from gapless.trace.chunks import Rest
from gapless.trace.timeline import Timeline


def notes(rest: Rest, builder: Builder, timeline: Timeline, trouble: str) -> tuple[str, ...]:
    """A sentence for each kind of damage."""
    return tuple(_sentences(rest, builder, timeline, trouble))


def _sentences(rest: Rest, builder: Builder, timeline: Timeline, trouble: str) -> Iterator[str]:
    repaired, dropped = rest.damage.repaired, rest.damage.dropped
    if trouble:
        yield trouble
    elif rest.truncated and not dropped["cut"]:
        yield "The file is truncated between two events: the rest is missing"
    if count := dropped["cut"]:
        yield f"{events(count, 'was', 'were')} cut off at the end of the file: the rest is missing"
    if count := dropped["broken"]:
        yield f"{events(count, 'was', 'were')} damaged and skipped"
    if count := dropped["foreign"]:
        where = "one place" if count == 1 else f"{count:,} places"
        yield f"Text that does not belong to the profile was found in {where} of the file"
    if count := repaired["values"]:
        what = (
            "value that is not valid JSON (NaN, N/A) was"
            if count == 1
            else "values that are not valid JSON (NaN, N/A) were"
        )
        yield f"{count:,} {what} treated as unknown"
    if count := repaired["types"]:
        yield f"{events(count, 'was', 'were')} not formatted as the profiler does, and parsed leniently"
    if count := repaired["fields"]:
        yield f"{events(count, 'was', 'were')} invalid JSON; their fields were parsed one by one"
    for what, count in sorted(builder.dropped.items()):
        if count:
            yield f"{events(count, '', '')}{what} {'was' if count == 1 else 'were'} skipped"
    if builder.unnamed:
        yield "The names of this device's runtime calls are not known: syncs are not found among them"
    if rest.lists > 1:
        yield f"The file contains {rest.lists} profiles one after the other; they were read as one"
    processes = {thread.pid for row, thread in enumerate(timeline.threads) if _runs(timeline, row)}
    if len(processes) > 1:
        yield f"The file contains {len(processes)} processes; they were read as one"


def _runs(timeline: Timeline, thread: int) -> bool:
    """Whether operators or calls ran there (frames of threads that the profiler does not know have none)."""
    begin, end = timeline.thread_rows[thread]
    return bool((timeline.host.kind[begin:end] <= 1).any())


def events(count: int, one: str, many: str) -> str:
    """ "3 events were" or "1 event was"."""
    return f"{count:,} event {one}" if count == 1 else f"{count:,} events {many}"

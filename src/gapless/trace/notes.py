"""Describe in sentences what reading a file repaired and lost."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.trace.build import TimelineBuilder
from gapless.trace.chunks import Rest
from gapless.trace.timeline import Timeline


def describe_damage(
    rest: Rest, builder: TimelineBuilder, timeline: Timeline, trouble: str
) -> tuple[str, ...]:
    """Return a sentence for each kind of damage."""
    return tuple(_sentences(rest, builder, timeline, trouble))


def _sentences(rest: Rest, builder: TimelineBuilder, timeline: Timeline, trouble: str) -> Iterator[str]:
    repaired, dropped = rest.damage.repaired, rest.damage.dropped
    if trouble:
        yield trouble
    elif rest.truncated and not dropped["cut"]:
        yield "The file is truncated between two events: the rest is missing"
    if count := dropped["cut"]:
        yield f"{event_count(count, 'was', 'were')} cut off at the end of the file: the rest is missing"
    if count := dropped["broken"]:
        yield f"{event_count(count, 'was', 'were')} damaged and skipped"
    if count := dropped["foreign"]:
        where = "one place" if count == 1 else f"{count:,} places"
        yield f"Text that does not belong to the profile was found in {where} of the file"
    if count := repaired["values"]:
        reason = (
            "value that is not valid JSON (NaN, N/A) was"
            if count == 1
            else "values that are not valid JSON (NaN, N/A) were"
        )
        yield f"{count:,} {reason} treated as unknown"
    if count := repaired["types"]:
        yield f"{event_count(count, 'was', 'were')} not formatted as the profiler does, and parsed leniently"
    if count := repaired["fields"]:
        yield f"{event_count(count, 'was', 'were')} invalid JSON; their fields were parsed one by one"
    for reason, count in sorted(builder.dropped.items()):
        if count:
            yield f"{event_count(count, '', '')}{reason} {'was' if count == 1 else 'were'} skipped"
    if not timeline.facts.waits_known:
        yield (
            "The names of this device's runtime calls are not known: syncs are not found among them, and "
            "idle time in which the CPU works or waits is unexplained"
        )
    if rest.lists > 1:
        yield f"The file contains {rest.lists} profiles one after the other; they were read as one"
    processes = {
        thread.pid for row, thread in enumerate(timeline.threads) if _has_operators_or_calls(timeline, row)
    }
    if len(processes) > 1:
        yield f"The file contains {len(processes)} processes; they were read as one"


def _has_operators_or_calls(timeline: Timeline, thread: int) -> bool:
    """Whether operators or calls ran on this thread; frames of unknown threads have none."""
    begin, end = timeline.thread_rows[thread]
    return bool((timeline.host.kind[begin:end] <= 1).any())


def event_count(count: int, singular: str, plural: str) -> str:
    """Return "3 events were" or "1 event was"."""
    return f"{count:,} event {singular}" if count == 1 else f"{count:,} events {plural}"

"""Assert that two timelines are equal, or that one is sound; list their rows."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from gapless.trace.timeline import ColumnTable, Timeline

TABLES = ("host", "work", "syncs", "memory", "links")


def columns(table: ColumnTable) -> dict[str, list[object]]:
    return {field.name: getattr(table, field.name).tolist() for field in fields(table)}


def assert_same(first: Timeline, other: Timeline) -> None:
    """All columns, names, threads, stacks, groups and facts, up to the file's name."""
    for name in TABLES:
        assert columns(getattr(first, name)) == columns(getattr(other, name)), name
    for name in ("names", "threads", "stacks", "groups", "notes"):
        assert getattr(first, name) == getattr(other, name), name
    for fact in fields(first.facts):
        if fact.name != "path":
            assert getattr(first.facts, fact.name) == getattr(other.facts, fact.name), fact.name


def host_rows(timeline: Timeline) -> list[tuple[object, ...]]:
    """Host spans as readable tuples: kind, name, thread id, start, end."""
    host = timeline.host
    return [
        (
            int(host.kind[row]),
            timeline.names[host.name[row]],
            timeline.threads[host.thread[row]].tid,
            int(host.start[row]),
            int(host.end[row]),
        )
        for row in range(len(host))
    ]


def work_rows(timeline: Timeline) -> list[tuple[object, ...]]:
    """Device spans as readable tuples: kind, name, device, stream, start, end, correlation."""
    work = timeline.work
    return [
        (
            int(work.kind[row]),
            timeline.names[work.name[row]],
            int(work.device[row]),
            int(work.stream[row]),
            int(work.start[row]),
            int(work.end[row]),
            int(work.correlation[row]),
        )
        for row in range(len(work))
    ]


def assert_sound(timeline: Timeline) -> None:
    """What holds of every timeline: order, bounds, and positions that exist."""
    host, work = timeline.host, timeline.work
    assert (np.diff(host.thread) >= 0).all()
    same = np.diff(host.thread) == 0
    assert (np.diff(host.start)[same] >= 0).all()
    assert (np.diff(work.start) >= 0).all()
    for table in (host, work):
        assert (table.end >= table.start).all()
        assert ((table.name >= 0) & (table.name < len(timeline.names))).all()
    assert ((host.thread >= 0) & (host.thread < max(len(timeline.threads), 1))).all()
    assert (host.stack < len(timeline.stacks)).all()
    if len(host) or len(work):
        assert timeline.span[0] == 0
    parents = timeline.parents
    held = parents >= 0
    assert (parents < np.arange(len(host))).all()
    assert (host.thread[parents[held]] == host.thread[held]).all()
    assert (host.end[parents[held]] >= host.start[held]).all()
    assert len(timeline.links.forward) == len(timeline.links.backward)
    assert ((timeline.links.forward >= 0) & (timeline.links.backward < max(len(host), 1))).all()
    assert all((note and note[0].isupper()) or note[0].isdigit() for note in timeline.notes)
    timeline.thread_rows  # noqa: B018 - it must be computable

"""Launches that are gone here and there, and that something else in the file promises.

**Numbers of HIP's calls.** What records calls on AMD's GPUs is asked for some calls only, and numbers those
alone: none is left out. CUDA's numbers also count calls that are not recorded.

**Operators that did something on the device** and launched nothing, neither themselves nor in operators
within: they reserved memory there for what they would compute, asked how many blocks of a kernel fit, checked
for the error of a launch, or waited for their copy. Other operators of their names launch after that. Those
that only reserve (``aten::empty``) never do.
"""

from __future__ import annotations

import re

import numpy as np

from gapless.trace.timeline import Bools, Floats, HostKind, Ints, Timeline, distinct

_FOR_KERNELS = re.compile(r"^(?:cuda|hip)(?:Func[SG]et|Occupancy|PeekAtLastError|StreamSynchronize)")
"""Calls that come with a launch or a copy: before it, or after it."""
_SELDOM = 0.2
"""An operator that launches in a smaller part of the times it does something on the device need not, ..."""
_OFTEN = 0.5
"""... unless it launches in more than this part of all its runs."""
_ROW = 0.5
"""Where this part of the numbers follow each other they are HIP's row."""
_NUMBERS = 20
"""Fewer numbers are no row."""


def left_out(timeline: Timeline, calls: Ints) -> int:
    """How many launches the numbers of HIP's calls leave out, as many of the calls launch as `calls` do."""
    host = timeline.host
    hip = timeline.names_where(lambda name: name.startswith("hip"))
    numbers = distinct(host.correlation[(host.kind == HostKind.CALL) & hip[host.name]])
    numbers = numbers[numbers > 0]
    steps = np.diff(numbers)
    if len(numbers) < _NUMBERS or (steps == 1).mean() < _ROW:
        return 0
    wrong = steps > len(numbers)  # a number that is far from all others
    numbers = numbers[int(wrong[0]) : len(numbers) - int(wrong[-1])]
    known = distinct(np.concatenate([numbers, timeline.work.correlation]))
    known = known[(known >= numbers[0]) & (known <= numbers[-1])]
    gone = int(numbers[-1] - numbers[0]) + 1 - len(known)
    return round(gone * len(calls) / len(numbers))


def begun(timeline: Timeline, calls: Ints) -> Ints:
    """Operators that did something on the device and launched nothing, unlike others of their names.

    `calls` are the ones that launch.
    """
    host = timeline.host
    launching = _with_those_around(timeline, calls)
    often = _share(timeline, np.flatnonzero(host.kind == HostKind.OPERATOR), launching) > _OFTEN
    found = [np.empty(0, np.int64)]
    for some in (_reserving(timeline), _calling(timeline)):
        also = often | (_share(timeline, some, launching) >= _SELDOM)
        found.append(some[also[host.name[some]] & ~launching[some]])
    rows = distinct(np.concatenate(found))
    innermost: Ints = rows[~_with_those_around(timeline, rows)[rows]]
    return innermost


def _share(timeline: Timeline, rows: Ints, launching: Bools) -> Floats:
    """The part of these rows that launches, by name."""
    count = len(timeline.names)
    name = timeline.host.name[rows]
    found: Floats = np.bincount(name, launching[rows], count) / np.maximum(
        np.bincount(name, minlength=count), 1
    )
    return found


def _with_those_around(timeline: Timeline, rows: Ints) -> Bools:
    """Which rows of the host are around these, at any depth."""
    found = np.zeros(len(timeline.host), bool)
    while len(rows := distinct(timeline.parents[rows])) and rows[-1] >= 0:
        rows = rows[rows >= 0]
        rows = rows[~found[rows]]
        found[rows] = True
    return found


def _innermost(timeline: Timeline, rows: Ints) -> Ints:
    """The innermost operator around each of these rows or the row itself, where there is one."""
    kind = timeline.host.kind
    rows = rows.copy()
    while (other := (rows >= 0) & (kind[rows] != HostKind.OPERATOR)).any():
        rows[other] = timeline.parents[rows[other]]
    return distinct(rows[rows >= 0])


def _calling(timeline: Timeline) -> Ints:
    """Operators that make calls which come with launches."""
    host = timeline.host
    named = timeline.names_where(_FOR_KERNELS.match)
    return _innermost(timeline, np.flatnonzero((host.kind == HostKind.CALL) & named[host.name]))


def _reserving(timeline: Timeline) -> Ints:
    """Operators that reserve memory of a device themselves."""
    host, memory = timeline.host, timeline.memory
    held = np.flatnonzero((memory.device_type > 0) & (memory.bytes > 0))
    found = [np.empty(0, np.int64)]
    for thread in distinct(memory.thread[held]):
        own = np.flatnonzero((host.thread == thread) & (host.kind == HostKind.OPERATOR))  # by start
        time = memory.time[held[memory.thread[held] == thread]]
        at = np.searchsorted(host.start[own], time, side="right") - 1
        rows, time = own[at[at >= 0]], time[at >= 0]
        while (over := (rows >= 0) & (host.end[rows] < time)).any():
            rows[over] = timeline.parents[rows[over]]
        found.append(rows[rows >= 0])
    return _innermost(timeline, np.concatenate(found))

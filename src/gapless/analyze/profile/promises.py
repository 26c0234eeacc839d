"""Estimate launches that are missing here and there, from what else in the file announces them.

**Numbers of HIP's calls.** The recorder of calls on AMD's GPUs numbers only the calls that it records,
without gaps. CUDA's numbers also count calls that are not recorded.

**Operators that did something on the device** and launched nothing, neither themselves nor in operators
within: they reserved memory there for their result, asked how many blocks of a kernel fit, checked for a
launch error, or waited for their copy. Other operators of their names launch after that. Those that only
reserve (``aten::empty``) never do.
"""

from __future__ import annotations

import re

import numpy as np

from gapless.trace.timeline import Bools, Floats, HostKind, Ints, Timeline, distinct

_FOR_KERNELS = re.compile(r"^(?:cuda|hip)(?:Func[SG]et|Occupancy|PeekAtLastError|StreamSynchronize)")
"""Calls that accompany a launch or a copy, before or after it."""
_MIN_SHARE_OF_ACTIVE_RUNS = 0.2
"""Operators should launch if those of their name do in this share of their runs with device activity, ..."""
_MIN_SHARE_OF_RUNS = 0.5
"""... or in more than this share of all their runs."""
_MIN_SHARE_CONSECUTIVE = 0.5
"""Share of consecutive numbers from which on they are HIP's gapless count."""
_MIN_NUMBERS = 20
"""Fewer numbers do not show whether they are consecutive."""


def count_missing_numbers(timeline: Timeline, calls: Ints) -> int:
    """Estimate the missing launches from gaps in HIP's call numbers; `calls` are the launching ones."""
    host = timeline.host
    hip = timeline.names_where(lambda name: name.startswith("hip"))
    numbers = distinct(host.correlation[(host.kind == HostKind.CALL) & hip[host.name]])
    numbers = numbers[numbers > 0]
    steps = np.diff(numbers)
    if len(numbers) < _MIN_NUMBERS or (steps == 1).mean() < _MIN_SHARE_CONSECUTIVE:
        return 0
    wrong = steps > len(numbers)  # a number far from all others
    numbers = numbers[int(wrong[0]) : len(numbers) - int(wrong[-1])]
    present = distinct(np.concatenate([numbers, timeline.work.correlation]))
    present = present[(present >= numbers[0]) & (present <= numbers[-1])]
    gone = int(numbers[-1] - numbers[0]) + 1 - len(present)
    return round(gone * len(calls) / len(numbers))


def operators_without_launch(timeline: Timeline, calls: Ints) -> Ints:
    """Return operators that did something on the device but launched nothing, unlike others of their names.

    `calls` are the calls that launch.
    """
    host = timeline.host
    launching = _are_around(timeline, calls)
    often = (
        _launching_share(timeline, np.flatnonzero(host.kind == HostKind.OPERATOR), launching)
        > _MIN_SHARE_OF_RUNS
    )
    candidates = [np.empty(0, np.int64)]
    for rows_of_kind in (_operators_with_memory(timeline), _operators_with_calls(timeline)):
        also = often | (_launching_share(timeline, rows_of_kind, launching) >= _MIN_SHARE_OF_ACTIVE_RUNS)
        candidates.append(rows_of_kind[also[host.name[rows_of_kind]] & ~launching[rows_of_kind]])
    rows = distinct(np.concatenate(candidates))
    innermost: Ints = rows[~_are_around(timeline, rows)[rows]]
    return innermost


def _launching_share(timeline: Timeline, rows: Ints, launching: Bools) -> Floats:
    """Return by name the share of these rows that launch."""
    count = len(timeline.names)
    name = timeline.host.name[rows]
    shares: Floats = np.bincount(name, launching[rows], count) / np.maximum(
        np.bincount(name, minlength=count), 1
    )
    return shares


def _are_around(timeline: Timeline, rows: Ints) -> Bools:
    """Return which rows of the host are around these, at any depth."""
    is_around = np.zeros(len(timeline.host), bool)
    while len(rows := distinct(timeline.parents[rows])) and rows[-1] >= 0:
        rows = rows[rows >= 0]
        rows = rows[~is_around[rows]]
        is_around[rows] = True
    return is_around


def _innermost_operators(timeline: Timeline, rows: Ints) -> Ints:
    """Return the innermost operators around these rows, or the rows themselves if they are operators."""
    kind = timeline.host.kind
    rows = rows.copy()
    while (is_other := (rows >= 0) & (kind[rows] != HostKind.OPERATOR)).any():
        rows[is_other] = timeline.parents[rows[is_other]]
    return distinct(rows[rows >= 0])


def _operators_with_calls(timeline: Timeline) -> Ints:
    """Return operators that make calls which accompany launches."""
    host = timeline.host
    is_such_call = timeline.names_where(_FOR_KERNELS.match)
    return _innermost_operators(
        timeline, np.flatnonzero((host.kind == HostKind.CALL) & is_such_call[host.name])
    )


def _operators_with_memory(timeline: Timeline) -> Ints:
    """Return operators that reserve device memory themselves."""
    host, memory = timeline.host, timeline.memory
    held = np.flatnonzero((memory.device_type > 0) & (memory.bytes > 0))
    rows_found = [np.empty(0, np.int64)]
    for thread in distinct(memory.thread[held]):
        own = np.flatnonzero((host.thread == thread) & (host.kind == HostKind.OPERATOR))  # by start
        time = memory.time[held[memory.thread[held] == thread]]
        at = np.searchsorted(host.start[own], time, side="right") - 1
        rows, time = own[at[at >= 0]], time[at >= 0]
        while (over := (rows >= 0) & (host.end[rows] < time)).any():
            rows[over] = timeline.parents[rows[over]]
        rows_found.append(rows[rows >= 0])
    return _innermost_operators(timeline, np.concatenate(rows_found))

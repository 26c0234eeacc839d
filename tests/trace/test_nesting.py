"""Which span lies right inside which."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import Trace

from gapless.trace import nesting
from gapless.trace.nesting import find_parents
from gapless.trace.timeline import Timeline

Span = tuple[int, int, int]
spans = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 20)).map(
        lambda s: (s[0], s[1], s[1] + s[2])
    ),
    max_size=30,
)


def columns(drawn: list[Span], scale: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    ordered = sorted(drawn, key=lambda s: (s[0], s[1], -s[2]))
    table = np.array(ordered, np.int64).reshape(-1, 3)
    return table[:, 0].astype(np.int32), table[:, 1] * scale, table[:, 2] * scale


def reference(thread: np.ndarray, start: np.ndarray, end: np.ndarray) -> list[int]:  # type: ignore[type-arg]
    """The last earlier span of the thread that is open at the start; one of no length is, at its own time."""
    result = []
    for row in range(len(start)):
        around = [
            other
            for other in range(row)
            if thread[other] == thread[row]
            and (end[other] > start[row] or start[other] == end[other] == start[row])
        ]
        result.append(max(around, default=-1))
    return result


@settings(deadline=None)
@given(spans)
def test_the_innermost_open_span(drawn: list[Span]) -> None:
    """Any spans, crossing or not, of times that are not rounded."""
    thread, start, end = columns(drawn, scale=7_001)
    assert find_parents(thread, start, end).tolist() == reference(thread, start, end)


@settings(deadline=None)
@given(spans)
def test_one_by_one_says_the_same(drawn: list[Span]) -> None:
    thread, start, end = columns(drawn, scale=7_001)
    expected = find_parents(thread, start, end).tolist()
    work, nesting._MAX_COMPARISONS = nesting._MAX_COMPARISONS, -1
    rounds, nesting._MAX_ROUNDS = nesting._MAX_ROUNDS, 1
    try:
        assert find_parents(thread, start, end).tolist() == expected
    finally:
        nesting._MAX_COMPARISONS, nesting._MAX_ROUNDS = work, rounds


def around(timeline: Timeline) -> dict[str, str]:
    """For each name the name right around it."""
    names = [timeline.names[number] for number in timeline.host.name]
    return {
        name: names[parent] if parent >= 0 else ""
        for name, parent in zip(names, timeline.parents.tolist(), strict=True)
    }


def test_a_child_that_sticks_out_by_a_rounding_is_nobodys_uncle() -> None:
    trace = Trace("middle")
    trace.frame("outer", 0, 100)
    trace.operator("first", 10, 20)
    trace.operator("inside the first", 15, 16)  # to 31
    trace.operator("second", 30, 20)
    trace.operator("inside the second", 31, 5)
    assert around(trace.timeline()) == {
        "outer": "",
        "first": "outer",
        "inside the first": "first",
        "second": "outer",
        "inside the second": "second",
    }


def test_an_annotation_that_begins_inside_enter() -> None:
    """``with record_function``: it begins inside one function and ends inside another."""
    trace = Trace()
    trace.frame("train", 0, 100)
    trace.frame("__enter__", 10, 5)
    trace.annotation("forward", 12, 71)
    trace.frame("model", 20, 50)
    trace.operator("aten::mm", 30, 5)
    trace.frame("__exit__", 80, 10)
    trace.frame("inside exit", 84, 2)
    trace.frame("after", 92, 2)
    assert around(trace.timeline()) == {
        "train": "",
        "__enter__": "train",
        "forward": "__enter__",
        "model": "forward",
        "aten::mm": "model",
        "__exit__": "forward",
        "inside exit": "__exit__",
        "after": "train",
    }


def test_calls_hold_only_calls() -> None:
    """The clock of calls runs apart from that of operators."""
    trace = Trace("middle")
    trace.operator("aten::clone", 0, 50)
    trace.call("cudaLaunchKernel", 10, 10)
    trace.call("cuLaunchKernel", 12, 5, driver=True)
    trace.operator("aten::copy_", 15, 30)
    trace.call("cudaPeekAtLastError", 30, 0)
    trace.call("cudaGetLastError", 30, 0)
    assert around(trace.timeline()) == {
        "aten::clone": "",
        "cudaLaunchKernel": "aten::clone",
        "cuLaunchKernel": "cudaLaunchKernel",
        "aten::copy_": "aten::clone",
        "cudaPeekAtLastError": "aten::copy_",
        "cudaGetLastError": "aten::copy_",
    }


@pytest.mark.parametrize("dialect", ["middle", "new"])
def test_spans_with_the_same_times(dialect: str) -> None:
    """What opens first is the outer: frames and annotations, then operators by number, then calls."""
    trace = Trace(dialect)  # type: ignore[arg-type]
    trace.call("call", 5, 10)
    trace.operator("outer", 5, 10)
    trace.operator("inner", 5, 10)
    trace.events[1], trace.events[2] = trace.events[2], trace.events[1]
    trace.frame("frame", 5, 10)
    assert around(trace.timeline()) == {"frame": "", "outer": "frame", "inner": "outer", "call": "inner"}


def test_threads_are_apart() -> None:
    trace = Trace()
    trace.operator("a", 0, 100, thread=1)
    trace.operator("b", 10, 10, thread=2)
    trace.operator("c", 12, 2, thread=2)
    assert around(trace.timeline()) == {"a": "", "b": "", "c": "b"}


def test_nothing() -> None:
    empty = np.empty(0, np.int64)
    assert find_parents(empty.astype(np.int32), empty, empty).tolist() == []
    assert find_parents(empty.astype(np.int32), empty, empty, empty.astype(np.int8)).tolist() == []


def test_many_spans_that_cross() -> None:
    """A chain in which each one crosses the next."""
    count = 2000
    start = np.arange(count, dtype=np.int64) * 10_001
    end = start + 15_000
    result = find_parents(np.zeros(count, np.int32), start, end)
    assert result.tolist() == [-1, *range(count - 1)]

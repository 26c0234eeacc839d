"""The timeline thinned to be drawn: few boxes, and nothing lost."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_builder import Trace, training

from gapless.analyze.profile.building import build_profile
from gapless.analyze.profile.thin import Bars, make_bars, merge_bars, thin_bars, thin_within_names, within
from gapless.model import Profile
from gapless.model.lanes import Boxes, Lanes
from gapless.model.profile import decode, encode


def spans(lines: int = 3, kinds: int = 4) -> st.SearchStrategy[Bars]:
    """Spans on a few lines, in any order."""
    pairs = st.tuples(
        st.integers(0, lines - 1), st.integers(0, 5000), st.integers(0, 300), st.integers(0, kinds - 1)
    )
    return st.lists(pairs, min_size=1, max_size=80).map(
        lambda rows: make_bars(*(np.array(column, np.int64) for column in _columns(rows)))
    )


def _columns(rows: list[tuple[int, int, int, int]]) -> tuple[list[int], ...]:
    line, start, length, name = (list(column) for column in zip(*rows, strict=True))
    return line, start, [a + b for a, b in zip(start, length, strict=True)], name


def ordered(bars: Bars) -> bool:
    keys = list(zip(bars.line.tolist(), bars.start.tolist(), strict=True))
    return keys == sorted(keys)


@given(spans(), st.integers(1, 4000))
def test_merging_loses_nothing(bars, resolution):
    merged = merge_bars(bars, resolution)
    assert ordered(merged)
    assert merged.count.sum() == len(bars)
    assert merged.busy.sum() == bars.busy.sum()
    for line in np.unique(bars.line):
        before, after = bars.take(bars.line == line), merged.take(merged.line == line)
        assert after.start.min() == before.start.min()
        assert after.end.max() == before.end.max()
        assert after.count.sum() == len(before)


@given(spans(), st.integers(1, 4000))
def test_long_bars_are_not_merged(bars, resolution):
    merged = merge_bars(bars, resolution)
    long = bars.end - bars.start >= resolution
    alone = merged.take(merged.count == 1)
    kept = set(zip(alone.line.tolist(), alone.start.tolist(), alone.end.tolist(), strict=True))
    for row in np.flatnonzero(long):
        assert (bars.line[row], bars.start[row], bars.end[row]) in kept


@given(spans(), st.integers(1, 60), st.integers(1, 50))
def test_the_budget_holds(bars, budget, finest):
    thinned, resolution = thin_bars(bars, budget, finest)
    assert len(thinned) <= len(bars)
    if len(bars) <= budget:
        assert resolution == 0
        assert thinned is bars
    else:
        assert resolution >= finest
    assert thinned.count.sum() == len(bars)


@given(spans(), st.integers(1, 60))
def test_equals_alone_are_merged(bars, budget):
    merged = thin_within_names(bars, budget)
    for line in np.unique(bars.line):
        for name in np.unique(bars.name[bars.line == line]):
            before = (bars.line == line) & (bars.name == name)
            after = (merged.line == line) & (merged.name == name)
            assert merged.count[after].sum() == before.sum()
            assert merged.busy[after].sum() == bars.busy[before].sum()


@given(spans(), st.integers(0, 5000), st.integers(1, 600))
def test_a_window_has_what_reaches_into_it(bars, low, length):
    window = within(bars, low, low + length)
    assert len(window) == ((bars.end > low) & (bars.start < low + length)).sum()


def drawn(trace: Trace, boxes: int = 4000) -> Profile:
    return build_profile(trace.timeline(), max_boxes=boxes)


@pytest.fixture(scope="module")
def profile() -> Profile:
    return drawn(training(steps=5))


def box_spans(lanes: Lanes, window: int, row: Boxes) -> list[tuple[int, int, int]]:
    """Start, end and what of each box."""
    starts = np.cumsum(row.start) + lanes.windows[window].start
    return [(int(a), int(a) + b, c) for a, b, c in zip(starts, row.length, row.what, strict=True)]


def rows(lanes: Lanes, kind: str, window: int = 0) -> list[Boxes]:
    return [row for row in lanes.windows[window].boxes if lanes.lanes[row.lane].kind == kind]


def test_nothing_is_drawn_unasked():
    assert build_profile(training().timeline()).lanes is None


def test_a_small_profile_is_drawn_in_full(profile):
    lanes, timeline = profile.lanes, training(steps=5).timeline()
    assert lanes is not None
    assert [window.finest for window in lanes.windows] == [0]
    streams = rows(lanes, "stream")
    assert sum(len(row.start) for row in streams) == len(timeline.work)
    boxes = sorted(box[:2] for row in streams for box in box_spans(lanes, 0, row))
    assert boxes == sorted(zip(timeline.work.start.tolist(), timeline.work.end.tolist(), strict=True))


def test_every_wait_is_drawn(profile):
    lanes = profile.lanes
    assert lanes is not None
    waits = [box for row in rows(lanes, "waits") for box in box_spans(lanes, 0, row)]
    expected = {number for number, cost in enumerate(profile.costs) if cost.cause == "wait" and cost.calls}
    assert {content for _, _, content in waits} == expected
    blocked = sum(cost.blocked for cost in profile.costs if cost.cause == "wait")
    assert sum(end - start for start, end, _ in waits) == blocked


def test_idleness_is_drawn_by_cause(profile):
    lanes = profile.lanes
    assert lanes is not None
    sums: dict[str, int] = {}
    for row in rows(lanes, "idle"):
        for start, end, content in box_spans(lanes, 0, row):
            sums[lanes.kinds[content]] = sums.get(lanes.kinds[content], 0) + end - start
    assert sums == {
        cause: idle
        for cause in {cost.cause for cost in profile.costs}
        if (idle := sum(cost.idle for cost in profile.costs if cost.cause == cause))
    }


def test_spans_lie_within_those_around_them(profile):
    lanes = profile.lanes
    assert lanes is not None
    threads = {number for number, lane in enumerate(lanes.lanes) if lane.kind == "thread"}
    for lane in threads:
        by_row = {row.row: box_spans(lanes, 0, row) for row in rows(lanes, "thread") if row.lane == lane}
        assert sorted(by_row) == list(range(lanes.lanes[lane].rows))
        for deep in range(1, len(by_row)):
            for start, end, _ in by_row[deep]:
                assert any(a <= start and end <= b for a, b, _ in by_row[deep - 1])


def test_libraries_frames_are_not_drawn():
    trace = training()
    trace.frame("/work/train.py(12): train", 100, 50)
    trace.frame("torch/nn/modules/module.py(1500): _call_impl", 105, 40)
    trace.frame("nn.Module: Linear_0", 110, 30)
    trace.frame("<built-in method linear of type object at 0x7f>", 115, 20)
    lanes = drawn(trace).lanes
    assert lanes is not None
    frames = {name for name, kind in zip(lanes.names, lanes.kinds, strict=True) if kind == "frame"}
    assert "nn.Module: Linear_0" in frames
    assert "/work/train.py(12): train" in frames
    assert not any("module.py" in name or "built-in" in name for name in frames)


def test_many_spans_become_few_boxes_and_places_worth_a_look_stay_fine():
    profile = drawn(training(steps=120), boxes=300)
    lanes = profile.lanes
    assert lanes is not None
    assert lanes.windows[0].finest > 0
    assert len(lanes.windows) > 1
    lengths = [window.end - window.start for window in lanes.windows]
    assert lengths == sorted(lengths, reverse=True)
    assert all(
        lanes.windows[0].start <= window.start < window.end <= lanes.windows[0].end
        for window in lanes.windows
    )
    waits = sum(len(row.start) for at in range(len(lanes.windows)) for row in rows(lanes, "waits", at))
    lines = sum(lane.rows for lane in lanes.lanes)
    assert lanes.boxes - waits <= 300 + len(lanes.windows) * lines
    work = len(training(steps=120).timeline().work)
    assert sum(sum(row.count) for row in rows(lanes, "stream")) == work


def test_utilization_is_drawn_in_intervals(profile):
    lanes = profile.lanes
    assert lanes is not None
    assert all(0 <= busy <= 100 for busy in lanes.busy)
    length = lanes.windows[0].end - lanes.windows[0].start
    assert sum(lanes.busy) / len(lanes.busy) / 100 * length == pytest.approx(
        sum(profile.steps.busy), rel=0.02
    )


def test_lanes_are_saved_with_the_profile(profile):
    assert decode(encode([profile]))[0] == profile
    bare = msgspec.structs.replace(profile, lanes=None)
    assert b"lanes" not in encode([bare])


def test_launches_lead_to_the_calls_that_the_trace_ties_to_them():
    """Every single box of a stream names the call of its correlation, and its thread's lane."""
    timeline = training(steps=4).timeline()
    lanes = build_profile(timeline, max_boxes=100_000).lanes
    assert lanes is not None
    work, host = timeline.work, timeline.host
    began = {
        (int(work.start[row]), int(work.end[row])): int(host.start[call])
        for row, call in enumerate(timeline.launchers.tolist())
        if call >= 0
    }
    checked = 0
    for window in lanes.windows:
        for boxes in window.boxes:
            if lanes.lanes[boxes.lane].kind != "stream":
                assert boxes.launch == boxes.thread == ()
                continue
            at = window.start
            for row in range(len(boxes.launch)):
                at += boxes.start[row]
                if boxes.thread[row] < 0:
                    continue
                assert boxes.count[row] == 1
                assert lanes.lanes[boxes.thread[row]].kind == "thread"
                assert at - boxes.launch[row] == began[at, at + boxes.length[row]]
                checked += 1
    assert checked >= len(began) > 0

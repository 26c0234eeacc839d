"""What is drawn of a run's memory agrees with its replay, however much it is thinned."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_runs import remembered, trained

from gapless.memory import tracking
from gapless.memory.recorder import Recorder
from gapless.memory.report import ReportOptions, report
from gapless.memory.simulate import Simulation
from gapless.memory.sizes import MIB
from gapless.memory.snapshot import read
from gapless.memory.tracking import build_track
from gapless.memory.trials import TrialConditions
from gapless.model.memory import MemoryRun
from gapless.model.memory_report import MemoryReport
from gapless.model.track import Track


def assert_agrees(track: Track, memory_report: MemoryReport, run: MemoryRun) -> None:
    """The laws that hold for every track."""
    base = memory_report.baseline
    whole = track.windows[0]
    assert max(whole.allocated) == base.peak_allocated
    assert max(whole.reserved) == base.peak_reserved
    assert whole.event[0] == -1
    for window in track.windows:
        assert (
            len({len(column) for column in (window.event, window.allocated, window.reserved, *window.layers)})
            == 1
        )
        assert len(window.layers) == len(track.layers)
        assert all(a <= b for a, b in zip(window.event, window.event[1:], strict=False))
        assert whole.event[0] <= window.event[0]
        assert window.event[-1] <= whole.event[-1]
        assert all(a <= r for a, r in zip(window.allocated, window.reserved, strict=True))
        held = np.sum(window.layers, axis=0)
        assert (held <= np.array(window.allocated)).all()
        assert (np.array(window.layers) >= 0).all()
    counts: Counter[str] = Counter()
    for call, count in zip(track.calls.what, track.calls.count, strict=True):
        counts[call] += count
    assert (counts["malloc"], counts["free"]) == (base.mallocs, base.frees)
    assert (counts["map"], counts["unmap"]) == (base.maps, base.unmaps)
    assert counts["retry"] == base.retries
    assert all(-1 <= at < max(len(run), 1) for at in track.calls.event)
    assert all(-1 <= place < len(track.places) for place in track.calls.place)


@pytest.mark.parametrize("steps", [0, 1, 6])
def test_every_event_is_present(steps):
    run = trained(steps)
    memory_result = remembered(run)
    track = memory_result.track
    assert track is not None
    assert_agrees(track, memory_result, run)
    assert len(track.windows) == 1
    assert track.windows[0].event == tuple(range(-1, len(run)))
    assert len(track.steps) == steps
    assert [layer.kind for layer in track.layers if layer.kind] == (
        ["parameter", "batch", "temporary", "unknown"] if steps else ["parameter", "unknown"]
    )


def test_layers_hold_what_was_asked_for():
    memory_result = remembered(trained(2))
    assert memory_result.track is not None
    whole = memory_result.track.windows[0]
    at = whole.event.index(memory_result.peak.event)
    held = {
        report.kind: layer[at] for report, layer in zip(memory_result.track.layers, whole.layers, strict=True)
    }
    assert {kind: size for kind, size in held.items() if size} == memory_result.peak.kinds
    assert whole.time[at] == memory_result.peak.time


def test_without_kinds_lines_are_distinguished():
    run = trained(3)
    bare = msgspec.structs.replace(
        run, places=tuple(msgspec.structs.replace(place, kind="unknown") for place in run.places)
    )
    track = remembered(bare).track
    assert track is not None
    assert [layer.line.line if layer.line else None for layer in track.layers] == [10, 20, None]
    assert max(track.windows[0].layers[-1]) == 0


def test_a_run_that_ends_for_lack_of_memory():
    run = trained(6)
    options = ReportOptions(capacity=120 * MIB)
    memory_result = remembered(run, options)
    assert memory_result.baseline.shortage is not None
    assert memory_result.track is not None
    assert_agrees(memory_result.track, memory_result, run)
    assert memory_result.track.windows[0].event[-1] < len(run) - 1
    assert {"retry", "failed"} <= set(memory_result.track.calls.what)
    nothing = remembered(run, ReportOptions(capacity=1 * MIB)).track
    assert nothing is not None
    assert nothing.windows[0].allocated[-1] == 0


@pytest.fixture
def small(monkeypatch):
    """As if a few events were very many."""
    monkeypatch.setattr(tracking, "MAX_CELLS", 200)
    monkeypatch.setattr(tracking, "MAX_CELLS_WITHOUT_THINNING", 60)
    monkeypatch.setattr(tracking, "OVERVIEW_POINTS", 20)
    monkeypatch.setattr(tracking, "WINDOW_CELLS", 8)
    monkeypatch.setattr(tracking, "MAX_MARKS", 30)
    monkeypatch.setattr(tracking, "_MAX_STEPS_DRAWN", 10)


def test_long_runs_are_thinned(small):
    run = trained(60)
    memory_result = remembered(run)
    track = memory_result.track
    assert track is not None
    assert_agrees(track, memory_result, run)
    assert len(track.windows[0].event) <= 21
    assert 1 < len(track.windows) <= 1 + tracking.MAX_WINDOWS
    assert track.finest == -(-len(run) // 200)
    assert len(track.calls.event) <= 30
    assert len(track.steps) <= 10
    near = [
        window
        for window in track.windows[1:]
        if window.event[0] <= memory_result.peak.event <= window.event[-1]
    ]
    assert max(max(window.allocated) for window in near) == memory_result.baseline.peak_allocated


sizes = st.integers(1, 40 * MIB)
moves = st.lists(
    st.tuples(st.integers(0, 5), sizes, st.sampled_from(["get", "free", "wait", "empty"])), max_size=60
)


@settings(max_examples=40, deadline=None)
@given(moves, st.sampled_from([-1, 60 * MIB]))
def test_any_run(moves, capacity):
    recorder = Recorder()
    for name, size, action in moves:
        if action == "get":
            recorder.alloc(name, size)
        elif action == "empty":
            recorder.empty_cache()
        else:
            recorder.free(name, waits=action == "wait")
    run = recorder.run()
    memory_report = report(run, ReportOptions(capacity=capacity))
    assert_agrees(build_track(run, memory_report, TrialConditions(capacity)), memory_report, run)


def test_other_settings_are_drawn_beside_it():
    run = trained(6)
    options = ReportOptions(
        tried=("expandable_segments:True", "roundup_power2_divisions:4", "backend:cudaMallocAsync")
    )
    memory_result = remembered(run, options)
    assert memory_result.track is not None
    outcomes = [trial for trial in memory_result.trials if trial.outcome is not None]
    assert [settings.name for settings in memory_result.track.others] == [
        settings.settings for settings in outcomes
    ]
    for course, trial in zip(memory_result.track.others, outcomes, strict=True):
        assert trial.outcome is not None
        assert max(course.reserved) == trial.outcome.peak_reserved
        assert len(course.event) == len(course.reserved)


def test_what_a_profile_recorded_is_drawn_as_it_is():
    run = trained(4)
    replay = Simulation(run).go(points=len(run))
    totals = {"allocated": replay.curve.allocated[1:], "reserved": replay.curve.reserved[1:]}
    profiled = msgspec.structs.replace(run, **totals)
    memory_report = msgspec.structs.replace(report(run), replayed=False)
    track = build_track(profiled, memory_report)
    assert track.windows[0].reserved[1:] == totals["reserved"]
    assert track.windows[0].allocated[1:] == totals["allocated"]
    taken = sum(
        size for call, size in zip(track.calls.what, track.calls.size, strict=True) if call == "malloc"
    )
    assert taken == totals["reserved"][-1] - totals["reserved"][0]


@pytest.mark.parametrize("name", ["select_n-thrashing.pickle", "fullstep-ctx128-frees.pickle", "tiny.pickle"])
def test_real_snapshots(snapshot, name):
    for run in read(str(snapshot(name))):
        memory_report = report(run)
        assert_agrees(build_track(run, memory_report), memory_report, run)

"""What is drawn of a run's memory agrees with its replay, however much it is thinned."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from remembering import remembered, trained

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


def assert_agrees(found: Track, made: MemoryReport, run: MemoryRun) -> None:
    """The laws that hold for every track."""
    base = made.baseline
    whole = found.windows[0]
    assert max(whole.allocated) == base.peak_allocated
    assert max(whole.reserved) == base.peak_reserved
    assert whole.event[0] == -1
    for one in found.windows:
        assert len({len(column) for column in (one.event, one.allocated, one.reserved, *one.layers)}) == 1
        assert len(one.layers) == len(found.layers)
        assert all(a <= b for a, b in zip(one.event, one.event[1:], strict=False))
        assert whole.event[0] <= one.event[0]
        assert one.event[-1] <= whole.event[-1]
        assert all(a <= r for a, r in zip(one.allocated, one.reserved, strict=True))
        held = np.sum(one.layers, axis=0)
        assert (held <= np.array(one.allocated)).all()
        assert (np.array(one.layers) >= 0).all()
    counts: Counter[str] = Counter()
    for what, count in zip(found.calls.what, found.calls.count, strict=True):
        counts[what] += count
    assert (counts["malloc"], counts["free"]) == (base.mallocs, base.frees)
    assert (counts["map"], counts["unmap"]) == (base.maps, base.unmaps)
    assert counts["retry"] == base.retries
    assert all(-1 <= at < max(len(run), 1) for at in found.calls.event)
    assert all(-1 <= place < len(found.places) for place in found.calls.place)


@pytest.mark.parametrize("steps", [0, 1, 6])
def test_every_event_is_there(steps):
    run = trained(steps)
    made = remembered(run)
    found = made.track
    assert found is not None
    assert_agrees(found, made, run)
    assert len(found.windows) == 1
    assert found.windows[0].event == tuple(range(-1, len(run)))
    assert len(found.steps) == steps
    assert [one.kind for one in found.layers if one.kind] == (
        ["parameter", "batch", "temporary", "unknown"] if steps else ["parameter", "unknown"]
    )


def test_layers_hold_what_was_asked_for():
    made = remembered(trained(2))
    assert made.track is not None
    whole = made.track.windows[0]
    at = whole.event.index(made.peak.event)
    held = {one.kind: layer[at] for one, layer in zip(made.track.layers, whole.layers, strict=True)}
    assert {kind: size for kind, size in held.items() if size} == made.peak.kinds
    assert whole.time[at] == made.peak.time


def test_without_kinds_lines_are_told_apart():
    run = trained(3)
    bare = msgspec.structs.replace(
        run, places=tuple(msgspec.structs.replace(one, kind="unknown") for one in run.places)
    )
    found = remembered(bare).track
    assert found is not None
    assert [one.line.line if one.line else None for one in found.layers] == [10, 20, None]
    assert max(found.windows[0].layers[-1]) == 0


def test_a_run_that_ends_for_lack_of_memory():
    run = trained(6)
    wishes = ReportOptions(capacity=120 * MIB)
    made = remembered(run, wishes)
    assert made.baseline.shortage is not None
    assert made.track is not None
    assert_agrees(made.track, made, run)
    assert made.track.windows[0].event[-1] < len(run) - 1
    assert {"retry", "failed"} <= set(made.track.calls.what)
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
    made = remembered(run)
    found = made.track
    assert found is not None
    assert_agrees(found, made, run)
    assert len(found.windows[0].event) <= 21
    assert 1 < len(found.windows) <= 1 + tracking.MAX_WINDOWS
    assert found.finest == -(-len(run) // 200)
    assert len(found.calls.event) <= 30
    assert len(found.steps) <= 10
    near = [one for one in found.windows[1:] if one.event[0] <= made.peak.event <= one.event[-1]]
    assert max(max(one.allocated) for one in near) == made.baseline.peak_allocated


sizes = st.integers(1, 40 * MIB)
moves = st.lists(
    st.tuples(st.integers(0, 5), sizes, st.sampled_from(["get", "free", "wait", "empty"])), max_size=60
)


@settings(max_examples=40, deadline=None)
@given(moves, st.sampled_from([-1, 60 * MIB]))
def test_any_run(moves, capacity):
    recorder = Recorder()
    for name, size, what in moves:
        if what == "get":
            recorder.alloc(name, size)
        elif what == "empty":
            recorder.empty_cache()
        else:
            recorder.free(name, waits=what == "wait")
    run = recorder.run()
    made = report(run, ReportOptions(capacity=capacity))
    assert_agrees(build_track(run, made, TrialConditions(capacity)), made, run)


def test_other_settings_are_drawn_beside_it():
    run = trained(6)
    wishes = ReportOptions(
        tried=("expandable_segments:True", "roundup_power2_divisions:4", "backend:cudaMallocAsync")
    )
    made = remembered(run, wishes)
    assert made.track is not None
    told = [one for one in made.trials if one.outcome is not None]
    assert [one.name for one in made.track.others] == [one.settings for one in told]
    for one, trial in zip(made.track.others, told, strict=True):
        assert trial.outcome is not None
        assert max(one.reserved) == trial.outcome.peak_reserved
        assert len(one.event) == len(one.reserved)


def test_what_a_profile_recorded_is_drawn_as_it_is():
    run = trained(4)
    replay = Simulation(run).go(points=len(run))
    totals = {"allocated": replay.curve.allocated[1:], "reserved": replay.curve.reserved[1:]}
    seen = msgspec.structs.replace(run, **totals)
    made = msgspec.structs.replace(report(run), replayed=False)
    found = build_track(seen, made)
    assert found.windows[0].reserved[1:] == totals["reserved"]
    assert found.windows[0].allocated[1:] == totals["allocated"]
    taken = sum(
        size for what, size in zip(found.calls.what, found.calls.size, strict=True) if what == "malloc"
    )
    assert taken == totals["reserved"][-1] - totals["reserved"][0]


@pytest.mark.parametrize("name", ["select_n-thrashing.pickle", "fullstep-ctx128-frees.pickle", "tiny.pickle"])
def test_real_snapshots(snapshot, name):
    for run in read(str(snapshot(name))):
        made = report(run)
        assert_agrees(build_track(run, made), made, run)

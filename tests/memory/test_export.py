"""A replay written as a snapshot, and read again."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gapless.errors import UnreadableInput
from gapless.memory.export import ExportingSimulation, export
from gapless.memory.recorder import Recorder
from gapless.memory.report import compare_with_recording
from gapless.memory.simulate import Simulation
from gapless.memory.sizes import MIB
from gapless.memory.snapshot import read, read_value
from gapless.model.memory import MemoryRun
from gapless.model.source import SourceLine

LINE = SourceLine("/home/me/model.py", 3, "forward")
SETTINGS = (
    "",
    "expandable_segments:True",
    "roundup_power2_divisions:4",
    "max_split_size_mb:24",
    "expandable_segments:True,roundup_power2_divisions:8",
)
sizes = st.one_of(st.integers(1, 5000), st.integers(MIB - 600, 12 * MIB), st.integers(10 * MIB, 60 * MIB))
moves = st.lists(
    st.one_of(
        st.tuples(st.just("alloc"), sizes, st.integers(0, 2)),
        st.tuples(st.just("alloc"), sizes, st.just(0)),
        st.tuples(st.just("free"), st.integers(0, 30)),
        st.tuples(st.just("free"), st.integers(0, 30)),
        st.tuples(st.just("defer"), st.integers(0, 30)),
        st.tuples(st.just("done"), st.integers(0, 30)),
        st.tuples(st.just("empty")),
    ),
    min_size=6,
    max_size=50,
)


def recorded(program: list, conf: str = "") -> MemoryRun:
    """A run of `program`, moves that are drawn."""
    recorder = Recorder()
    live: list[int] = []
    waiting: list[int] = []
    for number, (name, *values) in enumerate(program):
        if name == "alloc":
            recorder.alloc(number, values[0], values[1], [LINE])
            live.append(number)
        elif name in ("free", "defer") and live:
            row = live.pop(values[0] % len(live))
            recorder.free(row, waits=name == "defer")
            waiting += [row] if name == "defer" else []
        elif name == "done" and waiting:
            recorder.done(waiting.pop(values[0] % len(waiting)))
        elif name == "empty":
            recorder.empty_cache()
    return recorder.run(settings=conf)


def exported(run: MemoryRun, **options) -> dict:
    replay = ExportingSimulation(run, **options)
    replay.go()
    return replay.snapshot()


@settings(max_examples=200, deadline=None)
@given(moves, st.sampled_from(SETTINGS))
def test_an_exported_replay_is_replayed_exactly(program, conf):
    run = recorded(program, conf)
    snapshot = exported(run)
    assume(snapshot["segments"] or snapshot["device_traces"][0])
    (again,) = read_value(snapshot, "it")
    replay = Simulation(again).go()
    comparison = compare_with_recording(again, replay)
    assert comparison.misses == ()
    assert comparison.addresses == comparison.allocations
    own = Simulation(run).go()
    assert replay.outcome().peak_allocated == own.outcome().peak_allocated
    assert replay.outcome().peak_reserved == own.outcome().peak_reserved


@settings(max_examples=200, deadline=None)
@given(moves, st.sampled_from([120 * MIB, 60 * MIB]))
def test_so_is_one_that_ran_into_the_end_of_memory(program, capacity):
    run = recorded(program)
    full = ExportingSimulation(run, capacity=capacity)
    full.go()
    snapshot = full.snapshot()
    assume(snapshot["segments"] or snapshot["device_traces"][0])
    (again,) = read_value(snapshot, "it")
    replay = Simulation(again, capacity=capacity).go()
    assert replay.outcome().retries == full.allocator.retries
    assert replay.outcome().mallocs == full.allocator.mallocs
    assert replay.outcome().frees == full.allocator.frees
    assert (replay.outcome().failures == 1) == (full.shortage is not None)


@settings(max_examples=200, deadline=None)
@given(moves, st.sampled_from(["", "expandable_segments:True"]), st.floats(0, 1))
def test_a_recording_that_begins_later_leads_to_the_same_end(program, conf, dropped):
    snapshot = exported(recorded([("alloc", MIB, 0), *program], conf))
    trace = snapshot["device_traces"][0]
    snapshot["device_traces"][0] = trace[int(dropped * len(trace)) :]
    assume(snapshot["segments"] or snapshot["device_traces"][0])
    (again,) = read_value(snapshot, "it")
    replay = Simulation(again).go()
    assert replay.allocator.allocated <= replay.allocator.reserved
    # What the blocks of the beginning had of slack is not to be seen: what is in use is as it was.
    final = sum(segment["requested_size"] for segment in snapshot["segments"])
    waiting = sum(block.requested for queue in replay.allocator.events.values() for block, _ in queue)
    assert replay.allocator.requested + waiting == final


def test_a_file_of_plain_values_that_torch_reads(tmp_path):
    viewer = pytest.importorskip("torch.cuda._memory_viz")
    run = recorded([("alloc", 30 * MIB, 0), ("alloc", 100, 0), ("free", 0), ("empty",)])
    path = tmp_path / "out.pickle"
    export(run, path)
    with path.open("rb") as file:
        value = pickle.load(file)
    text = viewer.trace(value)
    assert "cudaMalloc" in text
    assert "cudaFree" in text
    assert "Device 0" in text
    assert viewer.segsum(value)
    assert viewer.trace_plot(value)
    assert read(str(path))[0].lines == (LINE,)


def test_the_first_that_does_not_fit_is_an_entry(tmp_path):
    run = recorded([("alloc", 30 * MIB, 0), ("alloc", 40 * MIB, 0), ("alloc", 5, 0)])
    snapshot = exported(run, capacity=50 * MIB)
    assert [entry["action"] for entry in snapshot["device_traces"][0]] == ["segment_alloc", "alloc", "oom"]
    assert snapshot["device_traces"][0][-1]["device_free"] == 20 * MIB


def test_other_settings_are_in_the_file(tmp_path):
    run = recorded([("alloc", 30 * MIB, 0)])
    path = tmp_path / "out.pickle"
    export(run, path, "expandable_segments:True")
    (again,) = read(str(path))
    assert again.settings == "expandable_segments:True"
    assert again.recorded.maps == 1
    assert Simulation(again).go().outcome().maps == 1


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(UnreadableInput, match="cannot write"):
        export(recorded([]), tmp_path / "none" / "out.pickle")

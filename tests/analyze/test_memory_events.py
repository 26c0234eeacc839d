"""``[memory]`` events: what a profile saw is told as it was, and replayed where that is enough."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from gapless.analyze.memory_report import findings
from gapless.analyze.profile.memory_events import read_memory_runs
from gapless.errors import UnreadableInput
from gapless.memory.allocator import Allocator
from gapless.memory.driver import UNLIMITED, Driver
from gapless.memory.report import ReportOptions, report
from gapless.memory.settings import parse
from gapless.memory.simulate import simulate
from gapless.memory.sizes import MIB
from gapless.model.memory import ALLOC, FREE, STEP, check
from gapless.trace.read import read
from tests.trace_builder import Trace

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
LINES = ("/work/train.py(12): train", "/work/train.py(30): evaluate")


class Profiled:
    """A program on an allocator, and the profile of it: one operator for each request."""

    def __init__(self, settings: str = "", capacity: int = UNLIMITED) -> None:
        self.trace = Trace()
        self.allocator = Allocator(parse(settings), Driver(capacity))
        self.time = 10.0
        self.recording = True
        self.blocks = {}
        self.peaks = (0, 0)

    def alloc(self, name: object, size: int, operator: str = "aten::empty", line: int = 0) -> None:
        block = self.blocks[name] = self.allocator.malloc(size)
        self.trace.operator(operator, self.time - 1, 2, stack=LINES[line])
        self._event(block.size, block.address)

    def free(self, name: object) -> None:
        block = self.blocks.pop(name)
        size, address = block.size, block.address
        self.allocator.free(block)
        self._event(-size, address)

    def _event(self, size: int, address: int) -> None:
        now = self.allocator.allocated, self.allocator.reserved
        if self.recording:
            self.trace.memory(self.time, size, address=address, allocated=now[0], reserved=now[1])
            self.peaks = tuple(map(max, self.peaks, now))
        self.time += 10

    def step(self, number: int, began: float) -> None:
        self.trace.step(number, began, self.time - 5 - began)

    def run(self):
        self.trace.kernel("k", 1, 2)
        (memory_run,) = read_memory_runs(self.trace.timeline())
        assert check(memory_run) == ""
        return memory_run


def training(profiled: Profiled, steps: int, seed: int = 0) -> Profiled:
    """Steps of many lengths that keep and drop tensors of many sizes."""
    draw = random.Random(seed)
    profiled.alloc("weights", 64 * MIB)
    for step in range(steps):
        began = profiled.time - 5
        names = [(step, number) for number in range(12)]
        for name in names:
            profiled.alloc(name, draw.randrange(512, 24 * MIB), line=name[1] % 2)
        for name in reversed(names):
            profiled.free(name)
        profiled.step(step, began)
    return profiled


def test_totals_are_reported_unchanged():
    profiled = training(Profiled(), 6)
    memory_report = report(profiled.run())
    base = memory_report.baseline
    assert (base.peak_allocated, base.peak_reserved) == profiled.peaks
    assert base.final_reserved == profiled.allocator.reserved
    assert max(memory_report.curve.reserved) == base.peak_reserved
    assert (memory_report.steps, len(memory_report.ends), memory_report.origin) == (6, 6, "profile")
    assert base.mallocs == profiled.allocator.mallocs - 1  # the first event has none before it
    assert memory_report.replayed


def test_the_peaks_owners_are_those_that_are_alive():
    profiled = Profiled()
    profiled.alloc("weights", 64 * MIB, "aten::to", 0)
    profiled.alloc("gone", 32 * MIB, "aten::mm", 1)
    profiled.free("gone")
    for number in range(3):
        profiled.alloc(number, 20 * MIB, "aten::gelu", 1)
    profiled.free(0)
    memory_report = report(profiled.run())
    held = {(owner.line.line, owner.tensors): owner.bytes for owner in memory_report.peak.owners}
    assert held == {(12, 1): 64 * MIB, (30, 3): 60 * MIB}
    assert sum(memory_report.peak.kinds.values()) == memory_report.baseline.peak_allocated
    assert memory_report.peak.operator == "aten::gelu"


@pytest.mark.parametrize("seed", range(4))
def test_a_profile_from_the_beginning_is_replayed(seed):
    profiled = training(Profiled(), 8, seed)
    run = profiled.run()
    again = simulate(run)
    assert abs(again.peak_reserved - profiled.allocator.peak_reserved) <= 0.02 * profiled.peaks[1]
    memory_report = report(run, ReportOptions(tried=["expandable_segments:True"]))
    other = training(Profiled("expandable_segments:True"), 8, seed)
    (trial,) = memory_report.trials
    assert trial.outcome is not None
    assert abs(trial.outcome.peak_reserved - other.peaks[1]) <= 0.02 * other.peaks[1]
    assert "a replay of what the profile shows" in memory_report.notes[-1]


def test_memory_from_before_the_recording_stays_one_block():
    profiled = Profiled()
    profiled.recording = False
    for name, size in (("a", 30), ("b", 40), ("c", 50)):
        profiled.alloc(name, size * MIB)
    profiled.recording = True
    profiled.alloc("x", 60 * MIB)
    profiled.free("b")
    run = profiled.run()
    assert sorted(block.size for part in run.start for block in part.blocks) == [40 * MIB, 80 * MIB]
    memory_report = report(run)
    assert [owner.before for owner in memory_report.peak.owners] == [True, False]
    assert memory_report.baseline.peak_allocated == 180 * MIB
    assert memory_report.replayed


def test_a_cache_from_before_cannot_be_replayed():
    profiled = Profiled()
    profiled.recording = False
    profiled.alloc("early", 500 * MIB)
    profiled.free("early")
    profiled.recording = True
    profiled.alloc("x", 30 * MIB)
    profiled.alloc("y", 40 * MIB)
    options = ReportOptions(tried=["expandable_segments:True"], search=True)
    memory_report = report(profiled.run(), options)
    assert (memory_report.replayed, memory_report.trials, memory_report.expandable) == (False, (), None)
    assert memory_report.notes[-1].startswith(
        "other settings cannot be tried: replaying what the profile shows "
    )
    assert "reserves 70 MiB instead of the recorded 500 MiB" in memory_report.notes[-1]
    assert memory_report.advice == ""
    # Whether it fits is said where the tensors alone decide it.
    assert report(profiled.run(), ReportOptions(capacity=600 * MIB)).baseline.shortage is None
    short = report(profiled.run(), ReportOptions(capacity=50 * MIB)).baseline.shortage
    assert (short.size, short.allocated, short.line.line) == (40 * MIB, 30 * MIB, 12)
    between = report(profiled.run(), ReportOptions(capacity=100 * MIB))
    assert between.baseline.shortage is None
    assert "its tensors fit in 100 MiB; whether the run fits depends" in between.notes[-1]


def test_calls_of_the_trace_and_what_they_took():
    profiled = training(Profiled(), 2)
    for number in range(12):
        profiled.trace.call("cudaMalloc", 5000 + 100 * number, 40)
    profiled.trace.call("cudaFree", 9000, 70)
    run = profiled.run()
    assert [(call.name, call.count, call.time) for call in run.calls] == [
        ("cudaFree", 1, 70_000),
        ("cudaMalloc", 12, 480_000),
    ]
    base = report(run).baseline
    assert (base.mallocs, base.frees, base.price) == (12, 1, 550_000)
    assert (run.times.malloc, run.times.source) == (40_000, "measured")


def test_churn_of_a_loop_that_empties_its_cache():
    profiled = Profiled()
    for step in range(12):
        began = profiled.time - 5
        profiled.alloc("x", 40 * MIB)
        profiled.free("x")
        profiled.allocator.empty_cache()
        profiled.alloc("y", 512)
        profiled.free("y")
        profiled.step(step, began)
    codes = [finding.code for finding in findings(report(profiled.run()))]
    assert codes == ["GAP401"]
    steady = Profiled()
    for step in range(12):
        began = steady.time - 5
        steady.alloc("x", 40 * MIB)
        steady.free("x")
        steady.step(step, began)
    assert findings(report(steady.run())) == ()


def test_a_leak_has_its_line():
    profiled = Profiled()
    for step in range(10):
        began = profiled.time - 5
        profiled.alloc(("kept", step), 2 * MIB, line=1)
        profiled.alloc("x", 8 * MIB)
        profiled.free("x")
        profiled.step(step, began)
    (finding,) = findings(report(profiled.run()))
    assert (finding.code, finding.line.line) == ("GAP405", 30)


def test_a_tensor_whose_beginning_or_end_was_lost():
    trace = Trace()
    trace.memory(10, 1024, address=1, allocated=1024, reserved=2 * MIB)
    trace.memory(20, 2048, address=1, allocated=3072, reserved=2 * MIB)
    trace.memory(30, -2048, address=1, allocated=1024, reserved=2 * MIB)
    trace.memory(40, -2048, address=1, allocated=1024, reserved=2 * MIB)
    (run,) = read_memory_runs(trace.timeline())
    assert check(run) == ""
    assert Counter(run.action) == {ALLOC: 2, FREE: 2}


def test_the_cpu_replaces_a_gpu():
    trace = Trace()
    trace.memory(10, 40 * MIB, address=1 << 30, device_type=0)
    trace.memory(20, 4, address=2 << 30, device_type=0)
    trace.memory(30, 30 * MIB, address=3 << 30, device_type=0)
    trace.memory(40, -40 * MIB, address=1 << 30, device_type=0)
    trace.memory(50, 35 * MIB, address=4 << 30, device_type=0)
    (run,) = read_memory_runs(trace.timeline())
    assert run.action == (ALLOC, ALLOC, FREE, ALLOC)
    memory_report = report(run, ReportOptions(tried=["max_split_size_mb:32"]))
    # 35 MiB are cut from the 40, unless blocks of over 32 are never cut: then they are taken whole.
    assert memory_report.baseline.peak_reserved == 70 * MIB == memory_report.trials[0].outcome.peak_reserved
    assert any("as if they were on a GPU" in note for note in memory_report.notes)


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ((), "is a profile without [memory] events: record it with profile_memory=True"),
        (
            ({"device_type": 0, "address": -1},),
            "has [memory] events of the CPU only, and these have no addresses",
        ),
        (
            ({"allocated": -1},),
            "as written by torch before 1.12: they only show that at least 4.1 kB were allocated",
        ),
    ],
)
def test_what_tells_too_little(events, said):
    trace = Trace()
    trace.kernel("k", 1, 2)
    for more in events:
        trace.memory(10, 4096, **more)
    with pytest.raises(UnreadableInput) as caught:
        read_memory_runs(trace.timeline())
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


KNOWN = {
    "particle_transformer-gpu_working_chrome_trace-7e36.json.gz": (77, 13_155_807_744, 13_356_761_088, True),
    "TraceLens-mi300-gaunernst_bert-small-uncased-1016001-02df.json.gz": (0, 146_394_112, 224_395_264, False),
    "ao-trace-f42b.json.gz": (0, 10_620_928, 262_144_000, False),
}
"""Steps of the reserved memory, most allocated, most reserved (read in the files); replayable."""


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_real_profiles(name):
    if not (TRACES / name).exists():
        pytest.skip("no real profiles here")
    (run,) = read_memory_runs(read(str(TRACES / name)))
    assert check(run) == ""
    memory_report = report(run)
    base = memory_report.baseline
    assert (base.mallocs, base.peak_allocated, base.peak_reserved, memory_report.replayed) == KNOWN[name]
    assert STEP not in run.action


def test_a_profile_of_old_is_refused_with_what_it_tells():
    path = TRACES / "kineto-resnet50_num_workers_4-worker0.1623212756351-288e.json.gz"
    if not path.exists():
        pytest.skip("no real profiles here")
    with pytest.raises(UnreadableInput, match=r"at least 2\.\d+ GB were allocated at once"):
        read_memory_runs(read(str(path)))

"""Runs that end out of memory: device, shortfall and settings, against a second allocator."""

from __future__ import annotations

import copy
import json
import pickle
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.analyze.memory_report import findings
from gapless.analyze.verdicts.memory_verdict import verdict
from gapless.commands import main
from gapless.memory.report import ReportOptions, report
from gapless.memory.sentence import format_different_sizes
from gapless.memory.snapshot import read_value
from gapless.memory.timing import call_times
from gapless.model.memory_calls import CallTimes
from gapless.model.memory_report import MemoryReport, Trial
from gapless.model.wording import binary_size, count
from tests.memory.second import MIB, Conf, Device, Op, fails, snapshot

GIB = 1 << 30
SIZES = [
    300,
    4096,
    MIB // 2,
    MIB,
    MIB + 512,
    3 * MIB,
    5 * MIB,
    9 * MIB,
    11 * MIB,
    17 * MIB,
    33 * MIB,
    50 * MIB,
]
OWN = ["", "", "expandable_segments:True", "max_split_size_mb:32"]
KNOWN = ("max_split_size_mb", "roundup_power2_divisions", "expandable_segments")


def program(rng: random.Random, length: int) -> list[Op]:
    """Requests and returns, no two requests of one size: among equal blocks addresses decide.

    The cache is never emptied: where that gives nothing back, no snapshot shows it.
    """
    live: list[int] = []
    operations: list[Op] = []
    for name in range(length):
        chance = rng.random()
        if live and chance < 0.42:
            operations.append(("free", live.pop(rng.randrange(len(live))), 0, 0))
        else:
            size = rng.choice(SIZES) + 512 * rng.randrange(2000) + name
            operations.append(("alloc", name, size, rng.randrange(2)))
            live.append(name)
    return operations


class Failed:
    """A run that fails on a device of its own: what was recorded, and what it had."""

    def __init__(self, seed: int, number: int = 0, own: str | None = None, *, stops: bool = True) -> None:
        rng = random.Random(seed)
        conf = Conf.of(rng.choice(OWN) if own is None else own)
        ops = program(rng, rng.randrange(20, 100))
        free = Device(1 << 50, conf)
        most = 0
        for op in ops:
            free.run([op])
            most = max(most, free.reserved)
        self.device = Device(int(most * rng.uniform(0.5, 0.97)), conf, number)
        self.ops: list[Op] = []
        self.starts: list[Device] = []
        self.asked = self.failures = self.allocated = self.reserved = 0
        self._play(ops, stops)

    def _play(self, ops: list[Op], stops: bool) -> None:
        device, gone = self.device, set()
        for op in ops:
            if op[0] == "free" and op[1] in gone:
                continue
            if not device.run([op]):
                self.ops.append(op)
                continue
            gone.add(op[1])
            self.asked = device.rounded(op[2])
            self.ops.append(("probe", op[1], self.asked, op[3]))
            self.failures += 1
            self.allocated, self.reserved = device.allocated, device.reserved
            if stops:
                return

    def report(self, **options: Any) -> MemoryReport:
        (run,) = read_value(snapshot([self.device]), "s.pickle")
        return report(run, ReportOptions(**options))


def fits_under(failed_run: Failed, text: str) -> bool:
    return not fails(failed_run.ops, failed_run.device.capacity, text)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 1 << 32), st.booleans())
def test_shortfall_and_settings_by_a_second_reckoning(seed, stops):
    failed_run = Failed(seed, stops=stops)
    if not failed_run.failures:
        return
    memory_report = failed_run.report()
    lack, capacity, own = memory_report.lack, failed_run.device.capacity, failed_run.device.conf.text
    assert memory_report.fidelity.exact
    assert lack is not None
    assert (lack.asked, lack.free, lack.has) == (failed_run.asked, capacity - failed_run.reserved, capacity)
    assert (lack.allocated, lack.reserved) == (failed_run.allocated, failed_run.reserved)
    assert (lack.recorded, memory_report.baseline.failures) == (True, failed_run.failures)
    assert fails(failed_run.ops, lack.has, own)
    assert not fails(failed_run.ops, lack.needs, own)
    assert lack.needs <= lack.unlimited
    failing_settings = [
        trial
        for trial in memory_report.trials
        if all(part.split(":")[0] in KNOWN for part in settings_of(trial))
    ]
    assert len(failing_settings) > 15
    for trial in failing_settings:
        assert comes_through(trial) == fits_under(failed_run, trial.settings), trial.settings
    if memory_report.best >= 0:
        assert memory_report.trials[memory_report.best].outcome.failures == 0
        assert (
            memory_report.trials[memory_report.best].outcome.failures == 0
            if memory_report.best >= 0
            else True
        )
    else:
        assert not any(map(comes_through, memory_report.trials))
        assert memory_report.advice.startswith("No allocator setting helps (")
    check_words(memory_report)
    assert memory_report.handled == (0 if lack.ended else failed_run.failures)
    errors = count(failed_run.failures, "out-of-memory error")
    carries_on = f"; the run handled {errors} itself and carried on"
    memory_verdict = verdict(memory_report)
    assert memory_verdict.sentence == memory_report.sentence + (carries_on if memory_report.handled else "")
    assert (memory_verdict.level == "failed") == lack.ended


def comes_through(trial: Trial) -> bool:
    return trial.outcome is not None and trial.outcome.shortage is None and not trial.outcome.failures


def settings_of(trial: Any) -> list[str]:
    return [part for part in trial.settings.split(",") if "[" not in trial.settings] or ["other"]


def check_words(memory_report: MemoryReport) -> None:
    """The first line has the numbers; what rules advise is what the report advises."""
    lack = memory_report.lack
    needs, has = format_different_sizes(lack.needs, lack.has)
    at_least = "at least " if lack.open else ""
    assert memory_report.sentence == (
        f"Out of memory on GPU {memory_report.device}: asked for {binary_size(lack.asked)} at train.py:12 "
        "with "
        f"{binary_size(lack.free)} free; {binary_size(lack.short)} short (needs {at_least}{needs}, has {has})"
    )
    assert needs != has
    for finding in findings(memory_report):
        if "CUDA_ALLOC_CONF" in finding.remedy:
            assert f"CUDA_ALLOC_CONF={memory_report.advised}`" in finding.remedy


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(0, 1 << 32), st.integers(1, 40), st.sampled_from(["", "expandable_segments:True"]))
def test_a_history_that_was_cut(seed, last, own):
    """What a block has beyond its tensor is not in a trace; with ``max_split_size_mb`` it may be much."""
    failed_run = Failed(seed, 0, own)
    if not failed_run.failures:
        return
    (run,) = read_value(snapshot([failed_run.device], last), "s.pickle")
    memory_report = report(run)
    lack = memory_report.lack
    assert (lack.asked, lack.free, lack.has) == (
        failed_run.asked,
        failed_run.device.capacity - failed_run.reserved,
        failed_run.device.capacity,
    )
    assert (lack.allocated, lack.open, lack.ended) == (failed_run.allocated, True, True)
    # As memory lay, what was in use and what was asked for are needed in any case.
    assert lack.needs > lack.has
    assert "needs at least" in memory_report.sentence


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 1 << 32), min_size=2, max_size=4))
def test_the_device_that_failed_comes_first(seeds):
    from gapless.memory.devices import choose_main, summarize_others
    from gapless.memory.trials import TrialConditions

    runs = [Failed(seed, number, "") for number, seed in enumerate(seeds)]
    read = read_value(snapshot([run.device for run in runs]), "s.pickle")
    if len(read) < 2:
        return
    main_run = choose_main(read, TrialConditions())
    failed = [run for run in runs if run.failures]
    if failed:
        last = max(run.device.clock for run in failed)
        assert main_run.device in [run.device.number for run in failed if run.device.clock == last]
    rest = summarize_others(read, main_run, TrialConditions())
    assert {run.device: run.failures for run in rest} == {
        run.device: runs[run.device].failures for run in read if run is not main_run
    }


# What a user sees ---------------------------------------------------------------------------------


def full(number: int = 0, capacity: int = GIB) -> Device:
    """Tensors fill the device; the last does not fit."""
    device = Device(capacity, number=number)
    device.run([("alloc", name, 139 * MIB, 0) for name in range(capacity // (140 * MIB) + 1)])
    return device


def saved(tmp_path: Any, *devices: Device, last: int = 1 << 30) -> str:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot(devices, last)))
    return str(path)


def test_the_first_lines(capsys, tmp_path):
    other = Device(8 * GIB)
    other.run([("alloc", name, 100 * MIB, 0) for name in range(40)])
    assert main(["memory", saved(tmp_path, other, full(1))]) == 0
    lines = " ".join(capsys.readouterr().out.split())
    assert lines.startswith(
        "Out of memory on GPU 1: asked for 139 MiB at train.py:12 with 44 MiB free; 96 MiB short "
        "(needs at least 1.09 GiB, has 1 GiB). "
    )
    assert "No allocator setting helps (31 tried). What would help: 96 MiB less" in lines
    assert "GPU 0: at most 3.91 GiB reserved, no request failed (--device 0)" in lines
    assert "out of memory, 1 request failed" in lines
    assert "PYTORCH_CUDA_ALLOC_CONF" not in lines


def test_a_device_that_is_asked_for_tells_of_the_one_that_failed(capsys, tmp_path):
    other = Device(8 * GIB)
    other.run([("alloc", 0, 100 * MIB, 0)])
    main(["memory", "--device", "0", saved(tmp_path, other, full(1))])
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("At most 100 MiB reserved")
    assert "GPU 1: at most 980 MiB reserved, 1 request failed (--device 1)" in out


@pytest.mark.parametrize(("limit", "status"), [(["--gpu", "t4"], 0), (["--limit", "1100MiB"], 1)])
def test_what_a_truncated_run_needs(capsys, tmp_path, limit, status):
    path = saved(tmp_path, full())
    assert main(["memory", *limit, path]) == status
    out = " ".join(capsys.readouterr().out.split())
    assert main(["memory", *limit, "-f", "json", path]) == status
    (memory,) = json.loads(capsys.readouterr().out)["memory"]
    assert memory["needs"] == 1120 * MIB
    assert (memory["at_least"], memory["ended"]) == (True, True)
    assert "needs at least 1.09 GiB" in out.lower().replace("gib", "GiB")
    assert "it fits" not in out.lower()
    if status:
        assert memory["lack"]["needs"] - memory["lack"]["has"] == 20 * MIB
        assert out.startswith("Does not fit: needs at least 1.09 GiB, there are 1.07 GiB: 20 MiB short.")
    else:
        assert "the recorded run ended out of memory, and what it needs after that is not known" in out


def test_a_recording_that_begins_late_is_a_lower_bound(capsys, tmp_path):
    device = Device(8 * GIB)
    device.run([("alloc", name, 100 * MIB, 0) for name in range(10)])
    path = saved(tmp_path, device, last=4)
    assert main(["memory", "--gpu", "a10", path]) == 0
    assert capsys.readouterr().out.startswith(
        "Needs at least 1,000 MiB of 21.5 GiB on the NVIDIA A10: memory was in "
    )


def test_a_setting_that_helps():
    """Gaps that a request does not fit into; expandable segments join them."""
    device = Device(1000 * MIB)
    ops: list[Op] = [("alloc", name, (40 + name) * MIB, 0) for name in range(17)]
    device.run([*ops, *(("free", name, 0, 0) for name in range(16))])
    device.run([("alloc", 100 + name, (31 + name) * MIB, 0) for name in range(10)])
    device.run([("alloc", 999, 500 * MIB, 0)])
    memory_report = report(read_value(snapshot([device]), "s.pickle")[0])
    assert memory_report.lack is not None
    assert (
        memory_report.advised
        == memory_report.trials[memory_report.best].settings
        == "expandable_segments:True"
    )
    assert memory_report.advice.startswith("with expandable_segments:True it would have run: at most ")
    advised = {finding.code: finding.remedy for finding in findings(memory_report)}
    assert "GAP408" in advised
    assert all("expandable_segments:True" in remedy for remedy in advised.values())


def test_pieces_from_before_the_recording_leave_it_open():
    device = Device(GIB)
    device.run([("alloc", name, 5 * MIB, 0) for name in range(190)])
    device.run([("free", name, 0, 0) for name in range(190) if name % 4])
    device.run([("alloc", 999, 300 * MIB, 0)])
    memory_report = report(read_value(snapshot([device], 100), "s.pickle")[0])
    assert memory_report.lack.afresh == "expandable_segments:True"
    assert memory_report.advised == ""
    assert "it is unknown" in memory_report.advice
    assert all("cannot show whether a setting helps" in finding.remedy for finding in findings(memory_report))


def test_a_process_that_was_limited_to_a_part():
    device = full()
    value = copy.deepcopy(snapshot([device]))
    value["device_traces"][0][-1]["device_free"] = 60 * GIB
    memory_report = report(read_value(value, "s.pickle")[0])
    assert memory_report.lack.free == 60 * GIB
    assert memory_report.lack.has < GIB + 140 * MIB
    assert any("this process was limited to less" in reason for reason in memory_report.answer.why)


def test_a_driver_that_does_not_tell_what_was_left():
    value = copy.deepcopy(snapshot([full()]))
    del value["device_traces"][0][-1]["device_free"]
    memory_report = report(read_value(value, "s.pickle")[0])
    assert memory_report.lack.free == -1
    assert memory_report.sentence.startswith(
        "Out of memory on GPU 0: asked for 139 MiB at train.py:12; up to 140 MiB short"
    )
    assert any("is known to within 140 MiB" in note for note in memory_report.notes)
    assert not any(
        "is known to within" in note for note in report(read_value(snapshot([full()]), "s")[0]).notes
    )


# Prices -------------------------------------------------------------------------------------------


def test_calls_cost_by_their_size():
    times = CallTimes()
    assert times.mallocs((1, 0, 0, 0)) < times.mallocs((0, 1, 0, 0)) < times.mallocs((0, 0, 1, 0))
    assert times.mallocs((2, 1, 1, 0)) == 2 * 113_000 + 495_000 + 4_071_000


def test_draining_is_measured_where_times_tell_it():
    trace: list[dict[str, Any]] = []
    now = 0

    def entry(action: str, size: int, after: int) -> None:
        nonlocal now
        now += after
        trace.append({"action": action, "size": size, "time_us": now})

    for _ in range(12):
        entry("alloc", 512, 10)
        entry("segment_free", 30 * MIB, 5_100)  # 5 ms until the GPU has drained
        for _ in range(3):
            entry("segment_free", 30 * MIB, 90)
        entry("segment_alloc", 200 * MIB, 500)
        entry("alloc", 200 * MIB, 10)
    times = call_times(trace)
    assert times.source == "measured"
    assert (times.free, times.drain) == (90_000, 5_000_000)
    assert (times.malloc, times.larger[0]) == (CallTimes().malloc, 490_000)
    assert call_times([entry for entry in trace if entry["action"] != "segment_free"]).drain == -1

"""What a report says of runs whose answers are known."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import wait

import msgspec
import pytest

from gapless.errors import UnreadableInput, UsageError
from gapless.memory.moment import moment
from gapless.memory.recorder import Recorder
from gapless.memory.report import ReportOptions, report
from gapless.memory.settings import InvalidSettings
from gapless.memory.simulate import Simulation, simulate
from gapless.memory.sizes import MIB
from gapless.memory.trials import (
    TrialConditions,
    attempt,
    attempt_all,
    candidates,
    improves,
    lowers_peak,
    rank,
)
from gapless.model import memory as model
from gapless.model.memory import MemoryRun, StartBlock, StartSegment
from gapless.model.memory_calls import CallTimes
from gapless.model.memory_report import Outcome, Shortage, Trial
from gapless.model.source import SourceLine

MODEL = SourceLine("/home/me/model.py", 10, "forward")
HEAD = SourceLine("/home/me/model.py", 20, "head")
TRAIN = SourceLine("/home/me/train.py", 5, "<module>")


def training(steps: int = 3) -> MemoryRun:
    """Weights stay; each step has activations of its own size, the largest in the second."""
    recorder = Recorder()
    recorder.alloc("weights", 100 * MIB, stack=[TRAIN], kind="parameter")
    for step in range(steps):
        size = (20, 60, 40)[step % 3] * MIB
        recorder.alloc("x", size, stack=[MODEL, TRAIN], kind="activation")
        recorder.alloc("y", size // 2, stack=[HEAD, TRAIN], kind="activation")
        recorder.free("y")
        recorder.free("x")
        recorder.step()
    return recorder.run()


def growing() -> MemoryRun:
    """Each tensor is a little larger than the one before: no cached block ever fits."""
    recorder = Recorder()
    for number in range(20):
        recorder.alloc(number, (20 + 2 * number) * MIB, stack=[MODEL])
        recorder.free(number)
    return recorder.run()


def test_the_peak_and_its_owners():
    memory_report = report(training())
    assert memory_report.peak.event == 7
    assert memory_report.peak.step == 1
    assert memory_report.peak.allocated == memory_report.baseline.peak_allocated == 190 * MIB
    assert [
        (owner.line, owner.bytes // MIB, owner.tensors, owner.kind) for owner in memory_report.peak.owners
    ] == [
        (TRAIN, 100, 1, "parameter"),
        (MODEL, 60, 1, "temporary"),
        (HEAD, 30, 1, "temporary"),
    ]
    assert memory_report.peak.kinds == {"parameter": 100 * MIB, "temporary": 90 * MIB}
    assert (memory_report.steps, memory_report.allocations, memory_report.events) == (3, 7, len(training()))


def test_what_lies_idle():
    run = growing()
    memory_report = report(run)
    # 20 to 58 MiB are all kept, and the last alone is in use.
    assert (
        memory_report.height.reserved == memory_report.baseline.peak_reserved == sum(range(20, 60, 2)) * MIB
    )
    assert memory_report.height.free == memory_report.height.reserved - 58 * MIB
    assert (memory_report.height.free_blocks, memory_report.height.largest) == (19, 56 * MIB)
    assert (memory_report.height.large, memory_report.height.small) == (memory_report.height.free, 0)


def test_curves_keep_the_peaks():
    run = training(400)
    memory_report = report(run)
    assert max(memory_report.curve.allocated) == memory_report.baseline.peak_allocated
    assert max(memory_report.curve.reserved) == memory_report.baseline.peak_reserved
    assert len(memory_report.curve.event) <= 402
    assert memory_report.curve.event[-1] == len(run) - 1


def test_no_events_at_all():
    memory_report = report(MemoryRun())
    assert memory_report.baseline == Outcome()
    assert memory_report.sentence == "At most 0 B reserved, 0 B allocated"


def test_a_run_that_begins_with_memory():
    start = StartSegment(
        address=0x7F00_0000_0000,
        size=20 * MIB,
        blocks=(StartBlock(12 * MIB, 0, 12 * MIB), StartBlock(8 * MIB)),
    )
    memory_report = report(MemoryRun(start=(start,)))
    assert (memory_report.baseline.peak_reserved, memory_report.baseline.peak_allocated) == (
        20 * MIB,
        12 * MIB,
    )
    assert memory_report.peak.event == -1
    assert memory_report.peak.owners[0].before
    fresh = report(MemoryRun(start=(start,)), ReportOptions(begin="fresh"))
    assert fresh.baseline.mallocs == 1
    assert fresh.baseline.peak_reserved == 12 * MIB


def test_calls_are_priced():
    times = CallTimes(malloc=10, free=100, map=1000, unmap=10_000)
    run = growing()
    assert Simulation(run).go().outcome(times).price == 20 * 10
    outcome = Simulation(run, "expandable_segments:True").go().outcome(times)
    # Up to 60 MiB in pages of 20, which stay: pages are priced by their number.
    assert (outcome.maps, outcome.price) == (3, 3000)


def test_memory_that_is_mapped_at_once_costs_by_its_pages():
    recorder = Recorder()
    recorder.alloc(0, 100 * MIB)
    outcome = Simulation(recorder.run(), "expandable_segments:True").go().outcome(CallTimes(map=1000))
    assert (outcome.maps, outcome.price) == (1, 5000)


# Out of memory ------------------------------------------------------------------------------------


def test_out_of_memory_and_what_would_have_fitted():
    recorder = Recorder()
    recorder.alloc(0, 30 * MIB)
    for number in range(1, 5):
        recorder.alloc(number, 5 * MIB)
    recorder.free(2)
    recorder.free(4)
    recorder.alloc(5, 12 * MIB, stack=[HEAD, MODEL])
    memory_report = report(recorder.run(), ReportOptions(capacity=55 * MIB, gpu="Tiny"))
    shortage = memory_report.baseline.shortage
    assert shortage is not None
    assert (shortage.event, shortage.size, shortage.line) == (7, 12 * MIB, HEAD)
    assert shortage.allocated == 40 * MIB
    assert (shortage.cached, shortage.largest) == (10 * MIB, 5 * MIB)
    assert shortage.unreserved == 5 * MIB
    assert memory_report.sentence == "Does not fit: needs 62 MiB, the Tiny has 55 MiB: 7 MiB short"
    assert memory_report.answer.why[0] == (
        "40 MiB of 50 MiB reserved were in use; 10 MiB were cached and unused, in pieces too small for the "
        f"12 MiB requested at {HEAD.short} (the largest 5 MiB)"
    )
    assert 0 < memory_report.baseline.done < 1


def test_it_fits():
    memory_report = report(training(), ReportOptions(capacity=300 * MIB, total=320 * MIB, gpu="Small"))
    assert memory_report.baseline.shortage is None
    assert " of 300 MiB on the Small" in memory_report.sentence


def test_retries_are_in_the_sentence():
    memory_report = report(growing(), ReportOptions(capacity=100 * MIB))
    assert memory_report.baseline.retries > 0
    assert "found the GPU full and emptied the cache first" in memory_report.sentence


def test_a_start_above_the_limit_is_laid_out_again():
    used = StartBlock(12 * MIB, 0, 12 * MIB)
    held = tuple(
        StartSegment(address=0x7F00_0000_0000 + n * 64 * MIB, size=40 * MIB, blocks=blocks)
        for n, blocks in enumerate([(StartBlock(40 * MIB),), (used, StartBlock(28 * MIB))])
    )
    memory_report = report(MemoryRun(start=held), ReportOptions(capacity=50 * MIB))
    assert memory_report.baseline.shortage is None
    assert memory_report.baseline.peak_reserved == 12 * MIB
    assert "laid out again" in memory_report.notes[0]
    short = report(MemoryRun(start=held), ReportOptions(capacity=10 * MIB)).baseline.shortage
    assert short is not None
    assert short.event == -1


# Other settings -----------------------------------------------------------------------------------


def test_the_better_settings_are_advised_with_numbers():
    memory_report = report(
        growing(), ReportOptions(tried=["max_split_size_mb:512", "expandable_segments:True"])
    )
    assert memory_report.best == 0
    assert memory_report.trials[0].settings == "expandable_segments:True"
    assert memory_report.trials[0].outcome.peak_reserved == 60 * MIB
    assert memory_report.advice.startswith("Better with expandable_segments:True: ")
    assert "less reserved" in memory_report.advice


def test_a_report_says_when_no_setting_helps():
    recorder = Recorder()
    recorder.alloc(0, 40 * MIB)
    memory_report = report(recorder.run(), ReportOptions(search=True))
    assert memory_report.best == -1
    assert memory_report.advice.startswith("None of ")
    short = report(recorder.run(), ReportOptions(search=True, capacity=30 * MIB))
    assert short.best == -1
    assert short.advice == "No allocator setting helps (31 tried). What would help: 10 MiB less at the peak"


def test_all_candidates_are_settings_that_torch_takes():
    from gapless.memory.settings import parse

    for limited in (False, True):
        settings_tried = candidates(limited)
        assert len(set(settings_tried)) == len(settings_tried)
        for text in settings_tried:
            parse(text)
    assert 28 <= len(candidates(True)) <= 40


def test_invalid_settings_are_refused_before_anything_is_tried():
    tried: list[int] = []
    with pytest.raises(InvalidSettings):
        report(
            growing(),
            ReportOptions(tried=["", "expandable_segments:yes"]),
            lambda done, of: tried.append(done),
        )
    assert tried == []


def test_ineffective_settings_are_reported():
    run, where = growing(), TrialConditions()
    assert "has no effect" in attempt(run, "garbage_collection_threshold:0.5", where).note
    assert "no effect" in attempt(run, "pinned_use_background_threads:True", where).note
    other = attempt(run, "backend:cudaMallocAsync", where)
    assert other.outcome is None
    assert "not simulated" in other.note


def test_a_fraction_needs_a_device():
    with pytest.raises(UsageError, match="needs the device"):
        attempt(growing(), "per_process_memory_fraction:0.5", TrialConditions())
    assert (
        attempt(growing(), "per_process_memory_fraction:0.5", TrialConditions(total=400 * MIB)).outcome
        is not None
    )


def test_so_does_a_run_that_has_one():
    run = msgspec.structs.replace(
        growing(), settings="per_process_memory_fraction:0.5", recorded=model.Recorded()
    )
    with pytest.raises(UsageError, match="needs the device"):
        report(run)
    memory_report = report(run, ReportOptions(total=2000 * MIB, capacity=1500 * MIB))
    assert memory_report.baseline.peak_reserved <= 1000 * MIB
    assert memory_report.fidelity is not None


def test_ranking():
    def outcome(**fields) -> Outcome:
        return Outcome(**{"peak_reserved": 1000, "price": 10_000_000, **fields})

    short = Shortage(event=1, size=1)
    base = outcome(retries=2)
    named = {
        "no retry": outcome(),
        "a retry": outcome(retries=1, peak_reserved=10),
        "fails later": outcome(shortage=short, done=0.9),
        "fails": outcome(shortage=short, done=0.1),
        "unknown": None,
    }
    trials = [Trial(settings=name, outcome=trial) for name, trial in named.items()]
    assert [trial.settings for trial in rank(trials[::-1], base)] == list(named)
    assert improves(named["no retry"], base)
    assert improves(named["a retry"], base)
    assert not improves(named["fails"], base)
    assert not improves(None, base)
    assert improves(outcome(peak_reserved=3000), outcome(shortage=short))


def test_what_is_an_improvement():
    base = Outcome(peak_reserved=1000, price=20_000_000)
    assert improves(Outcome(peak_reserved=970, price=90_000_000), base)
    assert not improves(Outcome(peak_reserved=990, price=20_000_000), base)
    assert improves(Outcome(peak_reserved=1000, price=10_000_000), base)
    assert not improves(Outcome(peak_reserved=1100, price=10_000_000), base)
    assert not improves(Outcome(peak_reserved=1000, price=19_500_000), base)
    assert not improves(Outcome(peak_reserved=900, price=0, retries=1), base)


def test_trials_on_several_processes_are_the_same():
    run = training(20_000)
    progress: list[tuple[int, int]] = []
    wanted = ["expandable_segments:True", "max_split_size_mb:32", "roundup_power2_divisions:4", ""]
    where = TrialConditions(capacity=150 * MIB)
    apart = attempt_all(run, wanted, where, 2, lambda done, of: progress.append((done, of)))
    assert apart == attempt_all(run, wanted, where, 1)
    assert apart[0].outcome.shortage.line == MODEL
    assert sorted(progress) == [(number, 4) for number in range(1, 5)]


def test_trials_that_are_interrupted_leave_no_process_behind():
    started = []

    def stop(done: int, of: int) -> None:
        started.extend(multiprocessing.active_children())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attempt_all(training(20_000), ["max_split_size_mb:32", *[""] * 5], TrialConditions(), 2, stop)
    assert started
    assert all(wait([process.sentinel], 30) for process in started)  # ready once the process has ended


def test_trials_of_a_process_that_was_killed_are_made_here():
    def kill(done: int, of: int) -> None:
        for process in multiprocessing.active_children() if done == 1 else ():
            process.kill()

    run, wanted = training(20_000), ["max_split_size_mb:32", "expandable_segments:True", "", ""]
    assert attempt_all(run, wanted, TrialConditions(), 2, kill) == attempt_all(run, wanted, TrialConditions())


# Runs ---------------------------------------------------------------------------------------------


def test_a_recorder_forgives():
    recorder = Recorder()
    recorder.free("never seen")
    recorder.done("never deferred")
    recorder.alloc("nothing", 0)
    recorder.alloc("x", 100)
    recorder.alloc("x", 200)  # the first was freed unseen
    recorder.free("x", waits=True)
    recorder.done("x")
    recorder.empty_cache()
    run = recorder.run(gpu="A10")
    assert run.action == (model.ALLOC, model.FREE, model.ALLOC, model.DEFER, model.DONE, model.EMPTY)
    assert model.check(run) == ""
    assert simulate(run).final_allocated == 0
    assert run.gpu == "A10"


def test_the_kind_is_what_the_stack_tells():
    recorder = Recorder()
    optimizer = SourceLine("/x/site-packages/torch/optim/adam.py", 1, "step", library="torch")
    recorder.alloc(0, 512, stack=[optimizer, TRAIN])
    recorder.alloc(1, 512, stack=[optimizer, TRAIN], kind="parameter")
    run = recorder.run()
    assert [run.places[place].kind for place in run.place] == ["optimizer", "parameter"]


def test_saved_and_read_again(tmp_path):
    run = training()
    path = tmp_path / "run.json"
    model.save([run], path)
    assert model.load(path) == (run,)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{", "is not a saved memory run"),
        (b"{}", 'is JSON but not a saved memory run (no "format": "gapless-memory")'),
        (b'{"format":"gapless-memory","version":99}', "of version 99, but this Gapless reads only up to 1"),
        (
            b'{"format":"gapless-memory","version":1,"runs":[{"action":[0]}]}',
            "0 entries in ident for 1 events",
        ),
    ],
)
def test_other_files_are_refused_as_saved_runs(data, said):
    with pytest.raises(UnreadableInput) as caught:
        model.decode(data, "it")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([(9, 0, 1)], "an unknown action"),
        ([(model.ALLOC, 0, 0)], "allocation 0 of 0 bytes"),
        ([(model.ALLOC, 0, 5), (model.ALLOC, 0, 5)], "allocation 0 of 5 bytes"),
        ([(model.FREE, 0, 0)], "0 is freed but is not allocated"),
        ([(model.DONE, 3, 0)], "3 is finished but was never allocated"),
        ([(model.ALLOC, 0, 5), (model.FREE, 0, 0), (model.FREE, 0, 0)], "0 is freed but is not allocated"),
    ],
)
def test_a_run_that_cannot_be_is_found_out(rows, said):
    action, ident, size = zip(*rows, strict=True)
    none = (0,) * len(rows)
    run = MemoryRun(action=action, ident=ident, size=size, stream=none, place=none, places=(model.Place(),))
    assert model.check(run) == said
    with pytest.raises(UnreadableInput, match="is a damaged memory run"):
        model.decode(model.encode([run]), "it")


def test_a_moment_in_the_middle():
    run = training()
    assert moment(run, 2).allocated == 130 * MIB
    assert moment(run, 3).allocated == 120 * MIB
    assert moment(run, -1).allocated == 0


def test_a_snapshot_without_a_history_tells_of_a_moment_and_not_of_a_peak():
    start = StartSegment(
        address=0x7F00_0000_0000,
        size=20 * MIB,
        blocks=(StartBlock(12 * MIB, 0, 12 * MIB), StartBlock(8 * MIB)),
    )
    answer = report(MemoryRun(start=(start,))).answer
    assert answer.sentence.startswith("20 MiB reserved and 12 MiB allocated when the snapshot was taken")
    assert "replay" not in answer.confidence


@pytest.mark.parametrize("again", [False, True])
def test_calls_to_the_driver_are_a_reason_for_a_setting_where_they_are_made_again(again: bool):
    """Holes of 40 MiB that what comes later does not fit, whatever the setting; a call takes 40 ms."""
    recorder = Recorder()
    for number in range(20):
        recorder.alloc(number, 40 * MIB)
    for number in range(0, 20, 2):
        recorder.free(number)
    for number in range(20, 30):
        recorder.alloc(number, 42 * MIB)
    if again:
        recorder.empty_cache()
    run = msgspec.structs.replace(recorder.run(), times=CallTimes(malloc=40_000_000, free=40_000_000))
    memory_report = report(run)
    assert memory_report.expandable is not None
    assert improves(memory_report.expandable, memory_report.baseline)
    assert not lowers_peak(memory_report.expandable, memory_report.baseline)
    (todo,) = memory_report.answer.do_first or (None,)
    assert (todo is not None) == again
    if todo is not None:
        assert (todo.unit, todo.before, todo.after) == (
            "ns",
            memory_report.baseline.price,
            memory_report.expandable.price,
        )

"""Rules over what a run asked of the GPU's memory: what makes them speak, and what must leave them silent."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from gapless.analyze.memory_report import findings
from gapless.memory.recorder import Recorder
from gapless.memory.report import ReportOptions, report
from gapless.memory.sizes import MIB
from gapless.model import Finding
from gapless.model.memory import MemoryRun
from gapless.model.memory_report import Fidelity, MemoryReport
from gapless.model.profile import MemoryUse, Profile, Steps
from gapless.model.source import SourceLine
from gapless.rules import rule

LINE = SourceLine("/home/me/train.py", 7, "train")
GIB = 1 << 30
Step = Callable[[Recorder, int], None]


def run(step: Step, steps: int = 12, settings: str = "", limit: int = 8 * GIB) -> MemoryRun:
    recorder = Recorder()
    recorder.alloc("weights", 30 * MIB, stack=[LINE], kind="parameter")
    for number in range(steps):
        step(recorder, number)
        recorder.step()
    return recorder.run(
        settings=settings, total_memory=limit, limit=limit, gpu="NVIDIA A10", origin="emulated"
    )


def findings_by_code(memory: MemoryReport) -> dict[str, Finding]:
    return {finding.code: finding for finding in findings(memory)}


def findings_of(step: Step, **options: object) -> dict[str, Finding]:
    return findings_by_code(report(run(step, **options)))  # type: ignore[arg-type]


def steady(recorder: Recorder, step: int) -> None:
    """The same in each step."""
    for size in (30, 12, 5):
        recorder.alloc(size, size * MIB, stack=[LINE])
    for size in (30, 12, 5):
        recorder.free(size)


def growing(recorder: Recorder, step: int) -> None:
    """Never a size that is cached."""
    recorder.alloc("x", (30 + 4 * step) * MIB, stack=[LINE])
    recorder.free("x")


def leaking(recorder: Recorder, step: int) -> None:
    steady(recorder, step)
    recorder.alloc(("kept", step), 25 * MIB, stack=[LINE])


def emptying(recorder: Recorder, step: int) -> None:
    steady(recorder, step)
    recorder.empty_cache()


@pytest.mark.parametrize("settings", ["", "expandable_segments:True", "max_split_size_mb:128"])
def test_training_that_repeats_itself_says_nothing(settings: str) -> None:
    assert findings_of(steady, settings=settings) == {}


def test_saw() -> None:
    (code,) = text = findings_of(emptying)
    assert code == "GAP401"
    assert (
        text[code]
        .evidence[0]
        .startswith("memory is returned to the driver and requested again in 10 of 10 steady steps: ")
    )
    assert "empty_cache" in text[code].remedy
    assert text[code].frequency.waits == 0


def test_a_cache_that_is_emptied_once_is_no_saw() -> None:
    def once(recorder: Recorder, step: int) -> None:
        steady(recorder, step)
        if step == 6:
            recorder.empty_cache()

    assert findings_of(once) == {}


def test_churn() -> None:
    text = findings_of(growing)
    assert set(text) == {"GAP402"}
    assert "10 of 10 steady steps ask the driver for memory, 10 calls in all" in text["GAP402"].evidence[0]


def test_a_cache_that_fills_is_no_churn() -> None:
    def fills(recorder: Recorder, step: int) -> None:
        recorder.alloc("x", (30 + 4 * min(step, 5)) * MIB)
        recorder.free("x")

    assert findings_of(fills, steps=20) == {}


def test_the_best_of_a_search_is_the_remedy() -> None:
    memory_report = report(run(growing), ReportOptions(search=True))
    assert memory_report.best >= 0
    assert (
        memory_report.trials[memory_report.best].settings in findings_by_code(memory_report)["GAP402"].remedy
    )


def test_out_of_memory_in_fragments() -> None:
    def fragments(recorder: Recorder, step: int) -> None:
        for part in range(4):
            recorder.alloc((step, part), 5 * MIB, stack=[LINE])
        if step == 11:
            for number in range(12):
                recorder.free((number, 0))
                recorder.free((number, 2))
            recorder.alloc("large", 8 * MIB, stack=[LINE])

    text = findings_of(fragments, limit=280 * MIB)
    assert text["GAP403"].line == LINE
    assert "although 120 MiB are cached, in pieces of at most 5 MiB" in text["GAP403"].evidence[0]
    assert "GAP404" not in text


def test_out_of_memory_with_nothing_cached() -> None:
    def fills(recorder: Recorder, step: int) -> None:
        for number in range(6):
            recorder.alloc((step, number), 64 * MIB, stack=[LINE])
        for number in range(6):
            recorder.free((step, number))

    text = findings_of(fills, limit=300 * MIB)
    assert text["GAP404"].line == LINE
    assert "GAP403" not in text
    assert "GAP408" not in text


def test_growth_explains_a_full_gpu() -> None:
    def fills(recorder: Recorder, step: int) -> None:
        recorder.alloc(step, 64 * MIB, stack=[LINE])

    text = findings_of(fills, limit=300 * MIB)
    assert text["GAP405"].line == LINE
    assert "GAP404" not in text


def test_a_leak_of_every_third_step() -> None:
    def seldom(recorder: Recorder, step: int) -> None:
        steady(recorder, step)
        if step % 3 == 0:
            recorder.alloc(("kept", step), 25 * MIB, stack=[LINE])

    text = findings_of(seldom)
    assert set(text) == {"GAP405"}
    finding = text["GAP405"]
    assert finding.evidence[0].startswith(
        "25 MiB in 1 tensor remain every 3 steps (4 times); the GPU is full"
    )
    assert (finding.frequency.when, finding.frequency.every) == ("some-steps", 3)


def test_models_that_stay_are_not_to_be_detached() -> None:
    def folds(recorder: Recorder, step: int) -> None:
        steady(recorder, step)
        if step % 4 == 0:
            recorder.alloc(("weights", step), 25 * MIB, stack=[LINE], kind="parameter")

    (finding,) = findings_of(folds).values()
    assert "detach" not in finding.remedy + finding.change
    assert "del model" in finding.remedy


def test_nearly_full() -> None:
    def most(recorder: Recorder, step: int) -> None:
        recorder.alloc("x", 900 * MIB, stack=[LINE])
        recorder.free("x")

    text = findings_of(most, limit=960 * MIB)
    assert set(text) == {"GAP404"}
    assert text["GAP404"].line == LINE
    assert "GAP404" not in findings_of(most, limit=4 * GIB)


def test_a_leak() -> None:
    text = findings_of(leaking)
    assert set(text) == {"GAP405"}
    finding = text["GAP405"]
    assert finding.line == LINE
    assert finding.evidence[0].startswith(
        "25 MiB in 1 tensor remain from each of 9 steps; the GPU is full after "
    )
    assert "detach" in finding.remedy


def test_a_number_kept_for_the_log_is_no_leak() -> None:
    def logs(recorder: Recorder, step: int) -> None:
        steady(recorder, step)
        recorder.alloc(("loss", step), 4, stack=[LINE])

    assert findings_of(logs) == {}


def test_retries() -> None:
    text = findings_of(growing, steps=20, limit=150 * MIB)
    assert "GAP406" in text
    assert "GAP401" not in text
    assert "requests find the GPU full and empty the cache" in text["GAP406"].evidence[0]
    assert "with expandable segments 0 requests instead of" in text["GAP408"].evidence[0]


class TestGarbageCollectionOff:
    def test_a_threshold_alone(self) -> None:
        text = findings_of(steady, settings="garbage_collection_threshold:0.8")
        assert set(text) == {"GAP407"}
        assert "set_per_process_memory_fraction" in text["GAP407"].remedy

    def test_with_a_fraction(self) -> None:
        settings = "garbage_collection_threshold:0.8,per_process_memory_fraction:0.9"
        assert findings_of(steady, settings=settings) == {}

    def test_with_a_fraction_that_is_all_of_it(self) -> None:
        settings = "garbage_collection_threshold:0.8,per_process_memory_fraction:1.0"
        assert set(findings_of(steady, settings=settings)) == {"GAP407"}

    def test_a_snapshot_that_does_not_show_it(self) -> None:
        memory_report = report(run(steady, settings="garbage_collection_threshold:0.8"))
        assert findings_by_code(msgspec.structs.replace(memory_report, origin="snapshot")) == {}

    def test_a_snapshot_that_does(self) -> None:
        memory_report = report(
            run(growing, steps=20, limit=150 * MIB, settings="garbage_collection_threshold:0.8")
        )
        memory_report = msgspec.structs.replace(
            memory_report, origin="snapshot", fidelity=Fidelity(exact=True)
        )
        assert "GAP407" in findings_by_code(memory_report)


def test_fragments_on_a_gpu_with_room_are_nobodys_business() -> None:
    assert "GAP408" not in findings_of(growing, limit=8 * GIB)


def test_expandable_segments_where_they_are_in_use() -> None:
    assert "GAP408" not in findings_of(growing, limit=1 * GIB, settings="expandable_segments:True")


class TestGrowthInAProfile:
    @staticmethod
    def of(lows: list[int]) -> list[str]:
        """What the rule says of a profile whose steps allocate at least that many MiB."""
        times, allocated = [], []
        for step, low in enumerate(lows):
            times += [step * 100 + 10, step * 100 + 50]
            allocated += [low * MIB, (low + 500) * MIB]
        marked = Steps(
            source="ProfilerStep",
            start=tuple(100 * step for step in range(len(lows))),
            end=tuple(100 * step + 90 for step in range(len(lows))),
        )
        use = MemoryUse(time=tuple(times), allocated=tuple(allocated), reserved=tuple(allocated))
        hits = rule("GAP405").of_profile(Profile(steps=marked, memory=use))
        return [hit.evidence[0] for hit in hits]

    @pytest.mark.parametrize("allocated", [(MIB, MIB), ()])
    @pytest.mark.parametrize("end", [(180, 400), (100, 0)])
    def test_steps_without_a_curve(self, allocated: tuple[int, ...], end: tuple[int, int]) -> None:
        marked = Steps(source="ProfilerStep", start=(110, 300), end=end)
        use = MemoryUse(time=(120, 310), allocated=allocated, reserved=(MIB, MIB))
        assert not list(rule("GAP405").of_profile(Profile(steps=marked, memory=use)))

    def test_even_growth(self) -> None:
        (said,) = self.of([100, 300, 310, 320, 331, 340, 350])
        assert said == (
            "in each of 4 steps the minimum of allocated memory is 10.5 MB higher than in the step before"
        )

    @pytest.mark.parametrize(
        "lows",
        [
            [100, 300, 300, 300, 300, 300, 300],
            [100, 300, 310, 320, 315, 330, 340],
            [100, 300, 310, 311, 340, 350, 360],
            [100, 300, 310, 320, 330],
        ],
        ids=["steady", "falls", "uneven", "few"],
    )
    def test_no_growth(self, lows: list[int]) -> None:
        assert self.of(lows) == []

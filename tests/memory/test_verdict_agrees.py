"""The verdict on a run's memory never contradicts its own findings and tables, whatever the run does."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.analyze.memory_report import findings
from gapless.analyze.memory_report import report as document
from gapless.analyze.verdicts.memory_verdict import fit_facts, with_worst_clause
from gapless.memory.recorder import Recorder
from gapless.memory.report import ReportOptions, report
from gapless.memory.sizes import MIB
from gapless.memory.snapshot import read
from gapless.model import Report, Verdict
from gapless.model.memory import MemoryRun
from gapless.model.memory_report import MemoryReport
from gapless.model.source import SourceLine
from gapless.model.wording import binary_size

LINES = [SourceLine("/home/me/train.py", number, "train") for number in (3, 7, 9, 12)]
SIZES = st.sampled_from([512, MIB // 2, MIB, 3 * MIB, 11 * MIB, 21 * MIB, 40 * MIB])


@st.composite
def programs(draw: st.DrawFn) -> tuple[MemoryRun, ReportOptions]:
    """A training of some steps: weights, tensors of many sizes, what is left behind, and a cache emptied."""
    recorder = Recorder()
    recorder.alloc("weights", draw(SIZES) * 4, stack=[LINES[0]], kind="parameter")
    steps = draw(st.integers(1, 14))
    leak, empties, vary = (
        draw(st.sampled_from([0, 0, 700, 2 * MIB, 30 * MIB])),
        draw(st.booleans()),
        draw(st.booleans()),
    )
    shapes = draw(st.lists(SIZES, min_size=1, max_size=6))
    for step in range(steps):
        names = []
        for number, size in enumerate(shapes):
            grown = size * (1 + (step * 7 + number) % 5) // 2 if vary else size
            recorder.alloc((step, number), max(grown, 1), stack=[LINES[1 + number % 3]], kind="activation")
            names.append((step, number))
        for name in reversed(names):
            recorder.free(name)
        if leak:
            recorder.alloc(("kept", step), leak, stack=[LINES[2]], kind="activation")
        if empties:
            recorder.empty_cache()
        recorder.step()
    gpu = draw(st.sampled_from(["", "NVIDIA A10"]))
    total = draw(st.sampled_from([-1, 150 * MIB, 400 * MIB, 2048 * MIB]))
    run = recorder.run(gpu=gpu, total_memory=total, limit=total)
    capacity = draw(st.sampled_from([-1, -1, 100 * MIB, 500 * MIB]))
    options = ReportOptions(
        capacity=capacity, total=capacity, search=draw(st.sampled_from([False, False, True]))
    )
    return run, options


def build_report(run: MemoryRun, options: ReportOptions) -> MemoryReport:
    result = report(run, options)
    return msgspec.structs.replace(result, findings=findings(result))


def contradictions(memory: MemoryReport) -> Iterator[str]:
    """What the verdict says against findings, tables and numbers of `memory`."""
    whole = document(memory)
    verdict, codes = whole.verdict, {finding.code for finding in memory.findings}
    text = " ".join((verdict.sentence, *verdict.why, *verdict.facts))
    room = " ".join(fit_facts(Report(verdict=Verdict(sentence=""), memory=(memory,))))
    if memory.lack is not None:
        if verdict.level != "failed" or room:
            yield f"it does not fit, and the verdict is {verdict.level}: {room}"
        if not verdict.sentence.startswith(("Does not fit", "Out of memory")):
            yield f"it does not fit: {verdict.sentence}"
    elif re.search(r"[Dd]oes not fit|short\b", text):
        yield f"nothing fails: {text}"
    if "GAP405" in codes:
        if re.search(r"\bfits\b", f"{room} {verdict.sentence}"):
            yield f"it grows, and fits: {room}"
        if "grows" not in text:
            yield f"it grows: {text}"
        if memory.lack is None and (not verdict.do_first or "GAP405" not in verdict.do_first[0].codes):
            yield "it grows, and that is not the first to mend"
    if unfounded := {code for change in verdict.do_first for code in change.codes} - codes:
        yield f"{unfounded} are to be mended, and were not found"
    if codes and (
        verdict.level == "fine" or "Nothing" in with_worst_clause([memory], "Nothing worth fixing: no syncs")
    ):
        yield f"{codes}, and all is fine"
    yield from _against_changes(memory, verdict)
    base = memory.baseline
    if (
        memory.lack is None
        and not memory.at_least
        and binary_size(base.peak_reserved) not in verdict.sentence
    ):
        yield f"{binary_size(base.peak_reserved)} are reserved: {verdict.sentence}"
    if base.retries and memory.lack is None and f"{base.retries} request" not in verdict.sentence:
        yield f"{base.retries} retries: {verdict.sentence}"


def _against_changes(memory: MemoryReport, verdict: Verdict) -> Iterator[str]:
    base, lack = memory.baseline, memory.lack
    outcomes = {trial.settings: trial.outcome for trial in memory.trials}
    if memory.expandable is not None:
        outcomes.setdefault("expandable_segments:True", memory.expandable)
    for change in verdict.do_first:
        if change.unit and not change.after < change.before and "retries" not in change.what:
            yield f"{change.what} is no gain: {change.before} to {change.after}"
        if change.unit == "retries" and change.after < change.before:
            outcome = outcomes.get(change.what.partition("=")[2])
            if outcome is not None and memory.time_of(outcome) > memory.time_of(base):
                yield f"{change.what} takes more time, and is told as a gain"
        if change.what.startswith("PYTORCH_CUDA_ALLOC_CONF="):
            setting = change.what.partition("=")[2].partition(" (")[0]
            outcome = outcomes.get(setting)
            if outcome is None or outcome.shortage is not None or outcome.failures:
                yield f"{setting} is advised, and does not come through"
            if setting != memory.advised:
                yield f"{setting} is advised, and {memory.advised} as well"
    advises = [
        sentence for sentence in verdict.do_first if sentence.what.startswith("PYTORCH_CUDA_ALLOC_CONF=")
    ]
    refuses = [
        sentence
        for sentence in (memory.advice, *verdict.why)
        if sentence.startswith(("None of", "No allocator setting"))
    ]
    if advises and refuses:
        yield f"{advises[0].what} and: {refuses[0]}"
    if lack is not None and lack.needs <= lack.has:
        yield f"short of nothing: {lack.needs} of {lack.has}"


@settings(max_examples=60, deadline=None)
@given(programs())
def test_the_verdict_agrees_with_the_report_below_it(case: tuple[MemoryRun, ReportOptions]) -> None:
    assert list(contradictions(build_report(*case))) == []


@pytest.mark.parametrize("part", [0.0, 0.5, 0.97, 2.0])
@pytest.mark.parametrize(
    "name",
    [
        "2.7b-forward-frees.pickle",
        "forward-fp32.pickle",
        "ftcourse.pickle",
        "select_n-thrashing.pickle",
        "tiny.pickle",
    ],
)
def test_the_verdict_on_a_real_run_agrees(snapshot, name: str, part: float) -> None:
    (run,) = read(str(snapshot(name)))
    assert run.recorded is not None
    capacity = int(part * run.recorded.peak_reserved) if part else -1
    assert list(contradictions(build_report(run, ReportOptions(capacity=capacity, total=capacity)))) == []


def test_settings_that_all_fail_are_one_row() -> None:
    recorder = Recorder()
    recorder.alloc("large", 300 * MIB, stack=[LINES[0]])
    memory_report = build_report(recorder.run(limit=200 * MIB, total_memory=200 * MIB), ReportOptions())
    assert len(memory_report.trials) > 20
    (table,) = (table for table in document(memory_report).tables if table.title == "Settings")
    assert [row.cells[0] for row in table.rows] == [
        "as in the run",
        f"{len(memory_report.trials)} other settings: out of memory at 0 %",
    ]


def test_a_setting_that_takes_more_of_the_drivers_time_says_so(snapshot) -> None:
    """Fewer retries for more time in calls are told as that time, and are not marked as a gain."""
    (run,) = read(str(snapshot("select_n-thrashing.pickle")))
    memory_report = build_report(run, ReportOptions())
    best = memory_report.trials[memory_report.best].outcome
    assert best is not None
    assert best.price > memory_report.baseline.price
    (change,) = document(memory_report).verdict.do_first
    assert (change.unit, change.before, change.after) == ("ns", memory_report.baseline.price, best.price)
    assert "39 → 0 retries" in change.what
    (table,) = (table for table in document(memory_report).tables if table.title == "Settings")
    assert {row.tone for row in table.rows[: table.shown] if "other settings" not in str(row.cells[0])} == {
        ""
    }

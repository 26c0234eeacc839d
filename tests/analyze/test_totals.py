"""No wait vanishes: what findings and summaries tell of is what was recorded, whatever the run."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sessions import Simulation

from gapless.analyze import report
from gapless.model import Ending, Session
from gapless.render import Style, text

SOURCE = "\n" * 9 + "for batch in loader:\n" + "    work()\n" * 90 + "\n"
"""A loop from line 10 to 100; everything else is outside of it."""
LOOP = range(10, 101)
LINES = st.sampled_from([5, 6, 20, 50, 97, 150])


def read(file: str) -> str:
    return SOURCE


def unreadable(file: str) -> str:
    raise OSError


PARTS = {
    "set-up": "in set-up",
    "first step": "in the first step",
    "after": "after the last step",
    "whole run": "in the whole run",
}
WAITS = st.tuples(LINES, st.integers(1, 300), st.sampled_from(["train", "train", "eval"]))
RUNS = st.lists(st.lists(WAITS, max_size=4), max_size=16)
"""For each step what waits in it, and behind the last one."""


def run_of(steps: list[list[tuple[int, int, str]]], how: str = "finished") -> Session:
    run = Simulation()
    for number, waits in enumerate(steps):
        for line, times, phase in waits:
            run.phase = phase
            run.wait(line, times)
        if number < len(steps) - 1:
            run.mark("backward", 90)
            run.step(95)
    return run.session(ending=Ending(how=how))  # type: ignore[arg-type]


@given(RUNS, st.sampled_from([read, unreadable]))
def test_each_wait_is_in_one_finding(steps, source):
    session = run_of(steps)
    document = report(session, source)
    assert sum(finding.frequency.total for finding in document.findings) == sum(
        event.waits for event in session.events
    )
    each = sum(finding.frequency.per_step for finding in document.findings)
    assert each == pytest.approx(document.steps.waits_per_step)


@given(RUNS)
def test_of_a_run_that_was_stopped_all_until_then_is(steps):
    session = run_of(steps, "enough-steps")
    counts = [event.waits for event in session.events if event.tick < len(steps) - 1 or len(steps) == 1]
    assert sum(finding.frequency.total for finding in report(session, read).findings) == sum(counts)


@given(RUNS)
def test_what_is_shown_is_all_there_was_in_each_part_of_the_run(steps):
    steps = [[(line, times, "train") for line, times, _ in waits] for waits in steps]
    document = report(run_of(steps), read)
    shown = text.render(document, Style(width=200, unfold=True))
    shown_counts = {}
    for place, words in PARTS.items():
        often = re.findall(rf" (once|\d+×) {words}$", shown, re.MULTILINE)
        shown_counts[place] = sum(1 if word == "once" else int(word[:-1]) for word in often)
    inside = sum(
        finding.frequency.total
        for finding in document.findings
        if finding.frequency.when in ("every-step", "some-steps")
    )
    waits = sum(times for step in steps for _, times, _ in step)
    assert sum(shown_counts.values()) + inside == waits
    if len(steps) > 1:
        again = {line for step in steps[1:-1] for line, _, _ in step} | {*LOOP}
        assert shown_counts["set-up"] == sum(times for line, times, _ in steps[0] if line not in again)
        folded = text.render(document, Style(width=200))
        for place in ("set-up", "first step", "after"):
            (waits,) = re.findall(rf"^  {PARTS[place]} +(\d+) ", folded, re.MULTILINE) or ["0"]
            assert int(waits) == shown_counts[place]


@given(RUNS)
def test_the_table_tells_of_all_that_is_in_no_step(steps):
    session = run_of(steps)
    document = report(session, read)
    total = sum(
        finding.frequency.total
        for finding in document.findings
        if finding.frequency.when in ("every-step", "some-steps", "no-steps") and not finding.frequency.rare
    )
    for table in document.tables:
        for row in table.rows if table.title == "Not in every step" else ():
            name, syncs, _ = row.cells
            times = re.search(r", (\d+) seen", str(name))
            whole = re.search(r"every \d+ steps \((\d+) in all\): fine", str(name))
            total += int(whole[1]) if whole else float(str(syncs)) * (int(times[1]) if times else 1)
    # Syncs of each phase are a mean with two digits.
    assert total == pytest.approx(sum(event.waits for event in session.events), rel=0.06)


def test_what_comes_before_the_first_step_and_again_is_no_set_up():
    """A rollout before each round of updates: the first one comes before the first step."""
    run = Simulation()
    run.wait(5, 532)
    for step in range(33):
        if step % 16 == 0:
            run.wait(8, 256)
        run.mark("backward", 90)
        run.step(95)
    results = [
        (finding.line.line, finding.frequency.when, finding.frequency.waits, finding.frequency.every)
        for finding in report(run.session(), read).findings
    ]
    assert results == [(8, "some-steps", 256, 16), (5, "set-up", 532, 0)]


def test_extra_waits_of_the_first_steps_are_reported():
    run = Simulation()
    for step in range(12):
        run.wait(50, 40 if step == 0 else 2)
        run.mark("backward", 90)
        run.step(95)
    results = [
        (finding.frequency.when, finding.frequency.waits) for finding in report(run.session(), read).findings
    ]
    assert results == [("every-step", 2), ("first-step", 38)]


@pytest.mark.parametrize("every", [2, 3, 10])
@pytest.mark.parametrize("behind", [False, True])
@given(step_count=st.integers(1, 14), first=st.integers(0, 9))
def test_no_cut_makes_every_step_of_every_tenth(every, behind, step_count, first):
    run = Simulation()
    for step in range(step_count):
        if not behind and step % every == first % every:
            run.wait(50)
        run.mark("backward", 90)
        run.step(95)
        if behind and step % every == first % every:
            run.wait(97)
    for finding in report(run.session(), read).findings:
        assert finding.frequency.when != "every-step"
        assert finding.frequency.every in (0, every)


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("step_count", [2, 3, 4, 12])
def test_what_comes_in_each_of_few_steps_comes_in_every_step(behind, step_count):
    run = Simulation()
    for _ in range(step_count):
        run.wait(50)
        run.mark("backward", 90)
        run.step(95)
        if behind:
            run.wait(97)
    assert {finding.frequency.when for finding in report(run.session(), read).findings} == {"every-step"}

"""What grows from step to step."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.memory.growth import find_growth
from gapless.memory.recorder import Recorder
from gapless.memory.report import ReportOptions, report
from gapless.memory.sizes import MIB
from gapless.model.memory import Holder
from gapless.model.pace import growth_interval, steady_steps
from gapless.model.source import SourceLine

KEPT = SourceLine("/home/me/train.py", 7, "train")
OTHER = SourceLine("/home/me/train.py", 9, "train")


def run(steps: int, keep, size: int = MIB):
    """`keep(step)` tensors of each step stay; another one ends with the following step."""
    recorder = Recorder()
    recorder.alloc("weights", 4 * MIB, stack=[OTHER])
    for step in range(steps):
        for number in range(keep(step)):
            recorder.alloc((step, number), size, stack=[KEPT], kind="activation")
        recorder.free(("loss", step - 1))
        recorder.alloc(("loss", step), 512, stack=[OTHER])
        recorder.step()
    return recorder.run()


def test_a_leak_has_its_line_and_its_size_per_step():
    (growth,) = find_growth(run(12, lambda step: 2))
    assert (growth.line, growth.bytes, growth.tensors, growth.steps) == (KEPT, 2 * MIB, 2.0, 9)


def test_what_the_last_step_holds_is_no_growth():
    assert find_growth(run(12, lambda step: 0)) == ()


def test_a_single_allocation_is_no_growth():
    assert find_growth(run(12, lambda step: 5 if step < 2 else 0)) == ()


def test_what_every_third_step_leaves_is_growth():
    (growth,) = find_growth(run(12, lambda step: step % 3 == 0))
    assert (growth.line, growth.bytes, growth.tensors, growth.steps, growth.every) == (KEPT, MIB, 1.0, 4, 3)


def test_growth_every_few_steps_lasts_as_long_as_growth_every_step():
    seldom = report(
        run(12, lambda step: step % 3 == 0, 3 * MIB), ReportOptions(capacity=1024 * MIB, total=1024 * MIB)
    )
    always = report(run(12, lambda step: 1), ReportOptions(capacity=1024 * MIB, total=1024 * MIB))
    assert (seldom.grows_by, seldom.grows_every) == (3 * MIB, 3)
    assert abs(seldom.lasts - always.lasts) <= 3


@pytest.mark.parametrize(
    "steps",
    [(0, 1, 5, 11), (3, 4, 9), (2, 3), (9, 11), (2, 6), (4,), (0, 4), (0, 2, 4), (1, 2, 3)],
    ids=str,
)
def test_irregular_or_ended_allocations_are_no_growth(steps: tuple[int, ...]):
    assert find_growth(run(12, lambda step: step in steps)) == ()


def test_two_ends_of_an_epoch_are_growth_only_where_a_name_keeps_both():
    twice = run(12, lambda step: step in (4, 8))
    assert find_growth(twice) == ()
    named = msgspec.structs.replace(twice, holders=(Holder(name="outputs", kind="dict", every=4),))
    assert [(growth.every, growth.steps) for growth in find_growth(named)] == [(4, 2)]


@given(every=st.integers(1, 9), first=st.integers(0, 8), steps=st.integers(7, 60))
def test_a_rhythm_is_recognized_wherever_it_begins(every: int, first: int, steps: int) -> None:
    left = range(first % every, steps, every)
    if len(left) >= 3:
        assert growth_interval(left, steps) == every
    kept = [*left][-3:]  # a window of the last ones, in a run that is long enough to tell
    if every > 1 and steps > 6 * every:
        assert growth_interval(kept, steps) == 0


@given(left=st.sets(st.integers(0, 40)), steps=st.integers(0, 40))
def test_a_pace_is_that_of_the_steps(left: set[int], steps: int) -> None:
    numbers = {step for step in left if step <= steps}
    every = growth_interval(numbers, steps)
    if every > 1:
        assert len(steady_steps(numbers, steps, every)) >= 2
        assert (max(numbers) - min(numbers)) <= every * (len(numbers) - 1) + len(numbers)
    elif every == 1:
        assert len(steady_steps(numbers, steps, every)) == steps - 3


def test_a_list_that_ends_with_the_epoch_is_no_growth():
    recorder = Recorder()
    for step in range(12):
        recorder.alloc(step, MIB, stack=[KEPT])
        recorder.step()
    for step in range(12):
        recorder.free(step)
    assert find_growth(recorder.run()) == ()


def test_few_steps_tell_nothing():
    assert find_growth(run(6, lambda step: 1)) == ()
    assert find_growth(run(7, lambda step: 1)) != ()


def test_the_ends_of_steps_count_calls_since_the_beginning():
    memory_report = report(run(12, lambda step: 1, size=30 * MIB))
    assert len(memory_report.ends) == 12
    assert [end.taken for end in memory_report.ends] == [3 + step for step in range(12)]
    assert memory_report.ends[-1].allocated == 12 * 30 * MIB + 4 * MIB + 512
    assert memory_report.ends[-1].given == 0

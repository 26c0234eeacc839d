"""Which recorded steps are run."""

from __future__ import annotations

import pytest
from programmes import MS, add, read, session

from gapless.analyze import report
from gapless.analyze.estimate import programme_steps
from gapless.analyze.estimate.programme_steps import ENOUGH_ITEMS, MAX_ITEMS, MIN_STEPS, choose_steps

LONG = 1_000


def step(number: int, length: int = LONG):
    """A step of so many entries, unlike those of other numbers."""
    return (add(number), *(length - 1) * [add()])


def test_steps_that_repeat_are_run_until_they_are_enough():
    chosen = choose_steps([step(1)] * 15)
    assert chosen == [step(1)] * (ENOUGH_ITEMS // LONG)
    assert choose_steps([step(1, 4 * LONG)] * 4) == [step(1, 4 * LONG)] * 2
    assert choose_steps([step(1, 2 * MAX_ITEMS)]) == [step(1, 2 * MAX_ITEMS)] * 2


def test_what_recurs_every_few_steps_keeps_its_share():
    cycle = [step(1), step(1), step(2)]
    assert choose_steps(cycle * 5) == cycle * 2
    assert choose_steps([*cycle * 4, step(1)]) == [*(cycle * 3)[1:4], *(cycle * 3)[1:4]]


def test_steps_that_differ_are_all_run():
    steps = [step(number) for number in range(15)]
    assert choose_steps(steps) == steps


def test_few_short_steps_are_all_run_and_repeated():
    assert choose_steps([step(1, 100)] * 10) == [step(1, 100)] * 10
    assert choose_steps([step(1, 100)]) == [step(1, 100)] * MIN_STEPS


@pytest.mark.parametrize("device", [0.0, 0.02])
def test_leaving_repeated_steps_out_changes_no_price(device, monkeypatch):
    run = session(*12 * [[*700 * [add(device)], read(0), *300 * [add(device)], read(1)]])
    shorter = report(run).estimate
    monkeypatch.setattr(programme_steps, "ENOUGH_ITEMS", MAX_ITEMS)
    longer = report(run).estimate
    assert shorter.step.likely == pytest.approx(longer.step.likely, rel=0.005)
    assert shorter.blocked.likely == pytest.approx(longer.blocked.likely, rel=0.02)
    for price, other in zip(shorter.prices.each, longer.prices.each, strict=True):
        assert price.alone == pytest.approx(other.alone, rel=0.02, abs=0.001 * MS)

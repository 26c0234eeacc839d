"""A sweep: its words, and where one overtakes the other."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from prove.clocks import FakeMeter

from gapless.errors import UsageError
from gapless.model.proof import Duration, Interval, SweepRow, Timing
from gapless.prove import compare
from gapless.prove.options import CompareOptions
from gapless.prove.proving import prove
from gapless.prove.sweep import find_crossings, make_sweep, parse_sweep_option
from gapless.prove.timing import faster_side


def row(value, ratio: float, spread: float = 0.02) -> SweepRow:
    around = Interval(median=ratio, low=ratio * (1 - spread), high=ratio * (1 + spread))
    total = Duration(total=Interval(median=1.0, low=1.0, high=1.0))
    time = Timing(
        before=total,
        after=total,
        ratio=around,
        faster=faster_side(around),
        clock="CPU",
        calls=(1, 1),
        rounds=9,
    )
    return SweepRow(value=value, same=True, time=time)


def test_the_crossing_is_where_the_line_through_the_logarithms_is_zero():
    (crossing,) = find_crossings([row(0.01, 0.5), row(1.0, 2.0)])
    assert crossing.value == pytest.approx(0.1)
    assert (crossing.low, crossing.high, crossing.faster) == (0.01, 1.0, "after")


@given(st.floats(-3, 3), st.floats(0.2, 3), st.lists(st.floats(-4, 4), min_size=2, max_size=8, unique=True))
def test_power_laws_cross_where_they_do(at, slope, exponents):
    """The quotient is (value / crossing) ** slope: between sure neighbours the line is exact."""
    rows = [row(10**exponent, 10 ** (slope * (exponent - at))) for exponent in sorted(exponents)]
    crossings = find_crossings(rows)
    sure = [row.time.faster for row in rows if row.time.faster != "neither"]
    assert len(crossings) == (1 if len(set(sure)) == 2 else 0)
    for crossing in crossings:
        assert math.log10(crossing.value) == pytest.approx(at, abs=1e-6)
        assert crossing.low <= crossing.value <= crossing.high


def test_rows_in_doubt_tell_nothing():
    assert find_crossings([row(0.1, 0.95, spread=0.2), row(1.0, 1.05, spread=0.2)]) == ()
    (crossing,) = find_crossings([row(0.01, 0.5), row(0.1, 1.0, spread=0.3), row(1.0, 2.0)])
    assert (crossing.low, crossing.high) == (0.01, 1.0)


def test_zero_has_no_logarithm():
    (crossing,) = find_crossings([row(0.0, 0.5), row(1.0, 2.0)])
    assert crossing.value == pytest.approx(0.5)


def test_rows_are_put_in_order_and_words_stay():
    assert [kept.value for kept in make_sweep("n", [row(3, 2.0), row(1, 2.0)]).rows] == [1, 3]
    sweep = make_sweep("kind", [row("b", 0.5), row("a", 2.0)])
    assert [row.value for row in sweep.rows] == ["b", "a"]
    assert sweep.crossings == ()


def test_words():
    assert parse_sweep_option("density=0.001, 0.5,1e2") == ("density", (0.001, 0.5, 100.0))
    assert parse_sweep_option("n=1,2") == ("n", (1, 2))
    assert parse_sweep_option("kind=a,b") == ("kind", ("a", "b"))


@pytest.mark.parametrize("text", ["density", "density=", "density=1", "=1,2", "two words=1,2"])
def test_words_that_are_none(text):
    with pytest.raises(UsageError, match="give a keyword of the inputs and at least two values"):
        parse_sweep_option(text)


class TheClock(FakeMeter):
    """There is one clock, whoever copies what refers to it."""

    def __deepcopy__(self, memo):
        return self


def test_from_the_inputs_to_the_crossing():
    """Cost of one side grows with the value, of the other it does not; they cross at 8."""
    meter = TheClock()

    def growing(x):
        meter.passes(1e-3 * len(x))
        return x.sum()

    def constant(x):
        meter.passes(8e-3)
        return x.sum()

    options = CompareOptions(
        lambda n: torch.ones(n, requires_grad=True), sweep=("n", (2, 4, 16, 64)), seconds=0.5
    )
    result = prove(growing, constant, options, meter)
    assert result.same
    assert result.time is None
    assert result.sweep is not None
    assert [row.value for row in result.sweep.rows] == [2, 4, 16, 64]
    assert result.sweep.rows[0].time.ratio.median == pytest.approx(0.25)
    (crossing,) = result.sweep.crossings
    assert crossing.value == pytest.approx(8, rel=0.01)
    assert (crossing.low, crossing.high, crossing.faster) == (4, 16, "after")


def test_inputs_that_cannot_be_swept():
    def f(x):
        return x

    with pytest.raises(UsageError, match="a sweep needs inputs from a function"):
        compare(f, f, torch.ones(2), sweep={"n": [1, 2]})
    with pytest.raises(UsageError, match=r"have no keyword 'n' to sweep \(their parameters: size\)"):
        compare(f, f, lambda size=1: torch.ones(size), sweep={"n": [1, 2]})
    with pytest.raises(UsageError, match="one keyword and at least two values"):
        compare(f, f, lambda n=1: torch.ones(n), sweep={"n": [1]})

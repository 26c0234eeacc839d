"""The measuring loop, on a clock that is told what passes; and what samples say."""

from __future__ import annotations

import gc
import math
import random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prove.clocks import FakeMeter, FakeRunner

from gapless.prove.timing import MIN_ROUNDS, Sample, Stopwatch, median_interval, summarize_samples

NUMBERS = st.floats(1e-6, 1e3)


def measured(before, after, seconds=60.0, clock="CPU", **more):
    meter = FakeMeter(clock)
    runners = FakeRunner(meter, "A", before, **more), FakeRunner(meter, "B", after, **more)
    return Stopwatch(meter, seconds).measure(*runners), meter, runners


def test_a_call_that_takes_three_times_as_long():
    result, _, _ = measured([3e-3], [1e-3])
    assert result.ratio.median == pytest.approx(3)
    assert (result.faster, result.clock) == ("after", "CPU")
    assert result.before.total.median == pytest.approx(3e6)
    assert result.after.total.median == pytest.approx(1e6)
    assert result.before.device is None


def test_the_other_way_round():
    assert measured([1e-3], [1.5e-3])[0].faster == "before"


def test_equal_ones():
    assert measured([1e-3], [1e-3])[0].faster == "neither"


def test_a_difference_nobody_cares_for():
    assert measured([1.004e-3], [1e-3])[0].faster == "neither"


def test_noise_larger_than_the_difference():
    noisy = [1e-3, 3e-3, 1.1e-3, 0.9e-3, 2.3e-3, 1.4e-3, 0.7e-3]
    result = measured(noisy, [1.2 * seconds for seconds in reversed(noisy)], most=1)[0]
    assert result.ratio.low < 1 < result.ratio.high
    assert result.faster == "neither"


def test_equal_ones_under_noise_are_called_so():
    """Blocks that are now and then held up, on either side alike: one in a hundred may be taken in."""
    draw = random.Random(7)
    wrong = 0
    for _ in range(1000):
        noise = [[1 + draw.expovariate(3) * (draw.random() < 0.4) for _ in range(20)] for _ in range(2)]
        samples = [[Sample(seconds, 0, None) for seconds in side] for side in noise]
        wrong += summarize_samples((samples[0], samples[1]), (1, 1), "CPU").faster != "neither"
    assert wrong <= 10


def test_a_drift_of_the_machine_falls_out_of_the_quotient():
    """It gets twice as slow in the course of it: medians move, the quotient of neighbours hardly does."""
    result, _, _ = measured(lambda n: 2e-3 * (1 + n / 5000), lambda n: 1e-3 * (1 + n / 10000))
    assert result.ratio.low > 1.9
    assert result.ratio.high < 2.1


def test_they_take_turns_after_each_has_warmed_up():
    _, meter, runners = measured([1e-3], [1e-3])
    order = "".join(meter.log)
    warm = order.rstrip("AB").join(["", ""]) or order
    first = warm.index("B")
    assert first >= 3
    turns = order[order.rindex("BB") + 2 :] if "BB" in order else order
    assert turns == "AB" * (len(turns) // 2)
    assert len(turns) // 2 >= MIN_ROUNDS
    assert runners[0].calls >= 200


def test_slow_calls_get_eight_rounds_whatever_the_budget():
    result, _, runners = measured([2.0], [1.0], seconds=1.0)
    assert (result.rounds, result.calls) == (MIN_ROUNDS, (1, 1))
    assert runners[0].calls == MIN_ROUNDS + 3


def test_a_first_call_that_compiles_does_not_count():
    result, _, _ = measured(lambda n: 30.0 if n == 0 else 1e-3, [1e-3])
    assert result.faster == "neither"
    assert result.before.total.high == pytest.approx(1e6)


def test_the_number_of_calls_suits_each_side_and_what_fits():
    result, _, _ = measured([1e-2], [1e-4])
    assert result.calls == (2, 200)
    result, _, runners = measured([1e-4], [1e-4], most=7)
    assert result.calls == (7, 7)
    assert max(runners[0].prepared) == 7


def test_a_device_that_works_on_after_the_host():
    result, _, _ = measured([1e-5], [1e-5], clock="GPU", device=1e-3)
    assert result.clock == "GPU"
    assert result.before.total.median == pytest.approx(1e6, rel=0.05)
    assert result.before.host is not None
    assert result.before.host.median == pytest.approx(1e4)
    assert result.before.device is not None
    assert result.before.device.median == pytest.approx(1e6, rel=0.05)


def test_the_garbage_collector_rests_meanwhile():
    states = []
    measured(lambda n: states.append(gc.isenabled()) or 1e-3, [1e-3])
    assert set(states) == {False}
    assert gc.isenabled()


class TestIntervals:
    @given(st.lists(NUMBERS, min_size=1, max_size=60))
    def test_the_median_lies_in_it(self, values):
        result = median_interval(values)
        assert result.median == median(values)
        assert min(values) <= result.low <= result.median <= result.high <= max(values)

    @given(st.lists(NUMBERS, min_size=1, max_size=40), st.floats(0.1, 10))
    def test_the_timing_interval_scales_with_the_unit(self, values, factor):
        plain, other = median_interval(values), median_interval([factor * value for value in values])
        assert other.low == pytest.approx(factor * plain.low)
        assert other.high == pytest.approx(factor * plain.high)

    @pytest.mark.parametrize("allowed", [0.05, 0.01])
    @pytest.mark.parametrize("count", [8, 9, 20, 51, 100, 400])
    def test_the_timing_interval_has_its_coverage_and_is_minimal(self, count, allowed):
        result = median_interval([float(value) for value in range(count)], allowed)
        left = int(result.low)
        assert result.high == count - 1 - left

        def miss(k: int) -> float:  # fewer than k+1 of them below the true median, or above it
            return 2 * sum(math.comb(count, i) for i in range(k + 1)) / 2**count

        assert miss(left) <= allowed < miss(left + 1)

    def test_few_values_cannot_tell(self):
        assert median_interval([3.0, 1.0, 2.0]).low == 1.0
        assert median_interval([5.0]).high == 5.0


def test_the_quotient_is_taken_round_by_round():
    pairs = ([Sample(2.0 * n, 0, None) for n in range(1, 9)], [Sample(1.0 * n, 0, None) for n in range(1, 9)])
    result = summarize_samples(pairs, (1, 1), "CPU")
    assert (result.ratio.low, result.ratio.median, result.ratio.high) == (2.0, 2.0, 2.0)
    assert result.before.total.high > result.before.total.low

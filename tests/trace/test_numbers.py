"""`distinct`, `among` and `percentile` say what NumPy says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gapless.trace.timeline import distinct, is_among, percentile

numbers = st.lists(st.integers(-5, 5) | st.integers(-(2**62), 2**62)).map(
    lambda some: np.array(some, np.int64)
)


@given(numbers)
def test_distinct_numbers_are_the_unique_ones(some):
    np.testing.assert_array_equal(distinct(some), np.unique(some))


@given(numbers, numbers)
def test_among_is_membership(some, members):
    np.testing.assert_array_equal(is_among(some, members), np.isin(some, members))


@example(np.array([0, -23_368_776]), 99.99609375)
@given(numbers.filter(len), st.floats(0, 100))
def test_a_percentile_is_numpys(some, percent):
    assert percentile(some, percent) == pytest.approx(np.percentile(some, percent), rel=1e-12, abs=1e-9)

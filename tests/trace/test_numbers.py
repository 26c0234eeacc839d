"""`distinct` and `among` say what NumPy says."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gapless.trace.timeline import among, distinct

numbers = st.lists(st.integers(-5, 5) | st.integers(-(2**62), 2**62)).map(
    lambda some: np.array(some, np.int64)
)


@given(numbers)
def test_distinct_numbers_are_the_unique_ones(some):
    np.testing.assert_array_equal(distinct(some), np.unique(some))


@given(numbers, numbers)
def test_among_is_membership(some, others):
    np.testing.assert_array_equal(among(some, others), np.isin(some, others))

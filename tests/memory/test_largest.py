"""The search for the largest value that fits, against trying them all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gapless.memory.largest import LargestSearch
from gapless.model.attempt import Attempt

HAS = 1_000


def search(needs, least: int, most: int, by: int = 1) -> tuple[int, LargestSearch]:
    def attempt(value: int) -> Attempt:
        needed = needs(value)
        return Attempt(what="", value=value, fits=0 <= needed <= HAS, needs=needed, has=HAS)

    largest_search = LargestSearch(attempt, least, most, by)
    return largest_search.run(), largest_search


monotone = st.builds(
    lambda fixed, each, square: lambda value: fixed + each * value + square * value * value // 50,
    st.integers(0, 1_100),
    st.integers(0, 40),
    st.integers(0, 3),
)


@given(monotone, st.integers(0, 60), st.integers(0, 300), st.integers(1, 9))
def test_the_largest_fitting_value_is_found_if_memory_rises_with_it(needs, least, more, by) -> None:
    values = range(least, least + more + 1, by)
    fitting = [value for value in values if needs(value) <= HAS]
    largest_value, search_result = search(needs, least, least + more, by)
    assert largest_value == (max(fitting) if fitting else -1)
    assert search_result.holes == ()
    assert set(search_result.attempts) <= set(values)


@given(st.lists(st.integers(0, 2 * HAS), min_size=1, max_size=40), st.integers(1, 5))
def test_whatever_values_need_the_answer_fits_and_its_neighbours_were_tried(needs, least) -> None:
    last = least + len(needs) - 1
    largest_value, search_result = search(lambda value: needs[value - least], least, last)
    if largest_value < 0:
        assert needs[0] > HAS
        return
    assert needs[largest_value - least] <= HAS
    for near in (largest_value - 1, largest_value + 1, largest_value + 2):
        assert near in search_result.attempts or not least <= near <= last
    assert all(not attempt.fits for value, attempt in search_result.attempts.items() if value > largest_value)
    assert set(search_result.holes) == {
        value
        for value, attempt in search_result.attempts.items()
        if value < largest_value and not attempt.fits
    }


@given(st.integers(1, 900), st.integers(1, 60))
def test_a_straight_line_needs_few_attempts(fixed, each) -> None:
    """The smallest, its double, where the line meets, the next one, and the neighbours of that."""
    _, search_result = search(lambda value: fixed + each * value, 1, 4096)
    assert (
        len(search_result.attempts) <= 8 + 4
    )  # as far as it can reach, a search goes up in steps of four times


def test_what_failed_for_other_reasons_does_not_fit_and_tells_no_size() -> None:
    def attempt(value: int) -> Attempt:
        if value > 20:
            return Attempt(what="", value=value, failed="the script took no step")
        return Attempt(what="", value=value, fits=True, needs=10 * value, has=HAS)

    largest_search = LargestSearch(attempt, 1, 64)
    assert largest_search.run() == 20

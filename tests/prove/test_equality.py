"""Two values side by side, against `torch.testing`."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.prove.equality import ResultComparison

FLOATS = st.floats(-1e4, 1e4, width=32) | st.sampled_from([math.nan, math.inf, -math.inf, 0.0])
TYPES = st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16])


def differs(old, new, **more) -> bool:
    comparison = ResultComparison(**more)
    comparison.compare_values("output", old, new)
    return bool(comparison.differences)


@settings(deadline=None)
@given(st.lists(FLOATS, min_size=1, max_size=12), TYPES)
def test_everything_is_itself(values, dtype):
    tensor = torch.tensor(values, dtype=dtype)
    assert not differs(tensor, tensor.clone())
    assert not differs([{"a": tensor}, 1.5, None], [{"a": tensor.clone()}, 1.5, None])


@settings(deadline=None)
@given(
    st.lists(st.tuples(FLOATS, st.sampled_from([0.0, 1e-8, 1e-6, 1e-4, 1e-2])), min_size=1, max_size=8), TYPES
)
def test_what_torch_testing_finds_different_is_different(values, dtype):
    """The absolute tolerance shrinks with the values, so more may be different, and never less."""
    old = torch.tensor([value for value, _ in values], dtype=torch.float64).to(dtype)
    new = torch.tensor([value * (1 + far) for value, far in values], dtype=torch.float64).to(dtype)
    try:
        torch.testing.assert_close(new, old, equal_nan=True)
    except AssertionError:
        assert differs(old, new)


@given(st.integers(0, 7), st.floats(0.1, 10))
def test_the_largest_difference_is_named(place, far):
    old = torch.zeros(2, 4)
    new = old.clone()
    new.view(-1)[place] = far
    new.view(-1)[(place + 1) % 8] = far / 2
    comparison = ResultComparison()
    comparison.compare_values("output", old, new)
    (difference,) = comparison.differences
    assert difference.at == divmod(place, 4)
    assert difference.largest == pytest.approx(far)
    assert difference.share == 0.25


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (torch.tensor([1, 2]), torch.tensor([1, 3])),
        (torch.tensor([True]), torch.tensor([False])),
        (torch.tensor([1.0]), torch.tensor([math.nan])),
        (torch.tensor([math.nan, math.inf]), torch.tensor([math.nan, -math.inf])),
        (torch.tensor([1 + 1j]), torch.tensor([1 - 1j])),
        ({"a": 1}, {"b": 1}),
        ([1, 2], [1, 2, 3]),
        (1, 1.0),
        (True, 1),
        (1.0, 1.1),
        ("a", None),
        (torch.zeros(2), torch.zeros(2).to_sparse()),
        (torch.zeros(1), 0.0),
    ],
)
def test_differences(old, new):
    assert differs(old, new)
    assert differs(new, old)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 2}),
        ((1, 2), [1, 2]),
        (math.nan, math.nan),
        (torch.zeros(()), 0.0),
        (3, torch.tensor(3)),
        (torch.zeros(0, 3), torch.zeros(0, 3)),
        (torch.eye(2), torch.eye(2).T.contiguous()),
        (print, print),
    ],
    ids=[
        "dict",
        "tuple-and-list",
        "nan",
        "number-and-tensor",
        "tensor-and-number",
        "empty",
        "strides",
        "built-in",
    ],
)
def test_what_is_none(old, new):
    assert not differs(old, new)


def test_tolerances_of_the_users():
    assert differs(torch.tensor(1.0), torch.tensor(1.01))
    assert not differs(torch.tensor(1.0), torch.tensor(1.01), rtol=0.02)
    assert not differs(torch.tensor(1.0), torch.tensor(1.01), atol=0.02)
    assert differs(torch.tensor(1.0), torch.tensor(1.00001), rtol=0.0, atol=0.0)


class TestRounding:
    """What is no nearer to the truth than the original is told by the same value in double precision."""

    old = torch.tensor([1.0, 2.0])
    exact = torch.tensor([1.0001, 2.0], dtype=torch.float64)

    def with_truth(self, new) -> bool:
        return differs(self.old, torch.tensor(new), reference=lambda where: self.exact)

    def test_as_far_as_the_original(self):
        assert differs(self.old, torch.tensor([1.0002, 2.0]))
        assert not self.with_truth([1.0002, 2.0])
        assert not self.with_truth([1.0001, 2.0])

    def test_further_than_that(self):
        assert self.with_truth([1.01, 2.0])

    def test_not_where_one_is_not_finite(self):
        assert self.with_truth([math.nan, 2.0])

    def test_not_where_the_user_has_said_how_near(self):
        assert differs(self.old, torch.tensor([1.0002, 2.0]), rtol=1e-6, reference=lambda where: self.exact)


def test_incomparable_parts_are_reported():
    comparison = ResultComparison()
    comparison.compare_values("output", object(), object())
    assert comparison.differences == []
    assert comparison.notes == ["output is not compared (object)"]

"""Assignments equal those through masks and indices."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ops.drawing import Masked, gradient, leaf, masked
from torch.autograd import gradcheck

from gapless import ops


@settings(max_examples=100, deadline=None)
@given(drawn=masked(shape=(3, 4)), rows=st.booleans(), accumulate=st.booleans(), kind=st.integers(0, 3))
def test_through_a_mask(drawn: Masked, rows: bool, accumulate: bool, kind: int) -> None:
    mask = drawn.mask[:, 0] if rows else drawn.mask
    x, y = leaf(drawn.x), leaf(drawn.x)
    base = drawn.x.flip(0) * 3
    value = [2.5, leaf(base[0, 0]), leaf(base[:1] if rows else base[0, :1]), leaf(base)][kind]
    same = leaf(value) if isinstance(value, torch.Tensor) else value
    actual = ops.assign(x, mask, value, accumulate=accumulate)
    wanted = y.clone()
    chosen = same[mask] if kind == 3 else same
    wanted[mask] = wanted[mask] + chosen if accumulate else chosen
    torch.testing.assert_close(actual, wanted)
    torch.testing.assert_close(gradient(actual, x), gradient(wanted, y))
    if isinstance(value, torch.Tensor):
        torch.testing.assert_close(gradient(actual, value), gradient(wanted, same))


@settings(max_examples=50, deadline=None)
@given(at=st.lists(st.integers(-4, 3), max_size=6, unique_by=lambda i: i % 4), twice=st.booleans())
def test_through_indices(at: list[int], twice: bool) -> None:
    x = torch.arange(12.0).view(4, 3)
    index = torch.tensor(at, dtype=torch.long)
    wanted = x.clone()
    wanted[index] = 7
    assert torch.equal(ops.assign(x, index, 7), wanted)
    values = torch.arange(float(len(at))).unsqueeze(1)
    index = torch.cat([index, index]) if twice else index
    values = torch.cat([values, values]) if twice else values
    added = ops.assign(x, index, values, accumulate=True)
    assert torch.equal(added, x.index_put((index,), values.expand(-1, 3), accumulate=True))


@settings(max_examples=80, deadline=None)
@given(
    ids=st.lists(st.integers(-2, 5), max_size=6),
    size=st.integers(6, 9),
    fill=st.integers(-1, 5),
    accumulate=st.booleans(),
)
def test_nothing_is_written_for_padding(ids: list[int], size: int, fill: int, accumulate: bool) -> None:
    """Rows that are read, changed and written back: with distinct ids of a fixed size as without."""
    table, index = leaf(torch.arange(12.0, dtype=torch.float64).view(6, 2)), torch.tensor(ids).long() % 8 - 2
    wanted, unique_ids = torch.unique(index), ops.unique(index, size=size, fill_value=fill)
    same = leaf(table)
    expected = same.index_put((wanted,), same[wanted] * 3 - 1, accumulate)
    assigned = ops.assign(table, unique_ids, table[unique_ids.values] * 3 - 1, accumulate=accumulate)
    if (index < 0).any() and (index == index.min() + 6).any():
        return  # one row under two names: either may be written last
    assert torch.equal(assigned, expected)
    torch.testing.assert_close(gradient(assigned, table), gradient(expected, same))


@settings(max_examples=50, deadline=None)
@given(drawn=masked(shape=(3, 4)), rows=st.booleans())
def test_through_positions(drawn: Masked, rows: bool) -> None:
    mask = drawn.mask[:, 0] if rows else drawn.mask
    places = ops.nonzero(mask, size=mask.numel(), fill_value=-1)
    wanted = drawn.x.clone()
    wanted[mask] = 5
    assert torch.equal(ops.assign(drawn.x, places, 5.0), wanted)
    kept = ops.compact(torch.arange(3), drawn.mask[:, 0], fill_value=0)
    wanted = drawn.x.clone()
    wanted[drawn.mask[:, 0]] = drawn.x.flip(1)[drawn.mask[:, 0]]
    assert torch.equal(ops.assign(drawn.x, kept, drawn.x.flip(1)[kept.values]), wanted)


def test_positions_fit_the_tensor() -> None:
    places = ops.nonzero(torch.ones(2, 3), size=6, fill_value=-1)
    with pytest.raises(ValueError, match="positions in 2 dimensions do not fit a tensor of 1"):
        ops.assign(torch.zeros(2), places, 1.0)
    assert ops.assign(torch.zeros(0, 3), places, 1.0).shape == (0, 3)


def test_several_indices_and_dtypes() -> None:
    x = torch.zeros(3, 4, dtype=torch.float16)
    rows, columns = torch.tensor([0, 2]), torch.tensor([1, 3])
    wanted = x.clone()
    wanted[rows, columns] = 0.5
    actual = ops.assign(x, (rows, columns), torch.tensor([0.5, 0.5], dtype=torch.float64))
    assert torch.equal(actual, wanted)
    assert actual.dtype == torch.float16
    assert ops.assign(torch.zeros(2, dtype=torch.long), torch.tensor([True, False]), 3).tolist() == [3, 0]
    assert x.sum() == 0


def test_what_is_not_assigned_reaches_nothing() -> None:
    x = torch.tensor([1.0, torch.nan, 3.0], requires_grad=True)
    value = torch.tensor([torch.inf, 2.0, torch.nan], requires_grad=True)
    mask = torch.tensor([False, True, False])
    result = ops.assign(x, mask, value)
    assert result.tolist() == [1, 2, 3]
    assert gradient(result, x).tolist() == [1, 0, 3]
    assert gradient(result, value).tolist() == [0, 2, 0]


@settings(max_examples=80, deadline=None)
@given(drawn=masked(shape=(3, 4)), more=st.integers(0, 4))
def test_masked_scatter(drawn: Masked, more: int) -> None:
    number = int(drawn.mask.sum())
    values = torch.arange(number + more, dtype=torch.float64)
    x, y = leaf(drawn.x), leaf(drawn.x)
    source, same = leaf(values), leaf(values)
    actual, wanted = ops.masked_scatter(x, drawn.mask, source), y.masked_scatter(drawn.mask, same)
    torch.testing.assert_close(actual, wanted)
    torch.testing.assert_close(gradient(actual, x), gradient(wanted, y))
    torch.testing.assert_close(gradient(actual, source), gradient(wanted, same))


def test_masked_scatter_broadcasts_and_runs_out() -> None:
    x, rows = torch.zeros(2, 3), torch.tensor([[True], [False]])
    source = torch.arange(1.0, 4.0)
    assert torch.equal(ops.masked_scatter(x, rows, source), x.masked_scatter(rows, source))
    assert ops.masked_scatter(x, rows, source[:2]).tolist() == [[1, 2, 0], [0, 0, 0]]
    assert torch.equal(ops.masked_scatter(x, rows, source[:0]), x)


def test_derivatives() -> None:
    x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    y = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, False], [False, True], [True, True]])
    for accumulate in (False, True):
        assert gradcheck(lambda a, b: ops.assign(a, mask, b, accumulate=accumulate), (x, y))  # noqa: B023
    assert gradcheck(lambda a, b: ops.masked_scatter(a, mask, b), (x, y))


def test_mistakes_are_reported() -> None:
    x = torch.zeros(3, 2)
    rows = torch.tensor([True, False, True])
    with pytest.raises(
        ValueError, match=r"value of shape \(2, 2\) is neither one element of shape \(2,\) nor the full"
    ):
        ops.assign(x, rows, torch.ones(2, 2))
    with pytest.raises(IndexError, match=r"shape \(2,\) does not match the leading dimensions of \(3, 2\)"):
        ops.assign(x, rows[:2], 1.0)
    with pytest.raises(ValueError, match="several indices with a mask among them"):
        ops.assign(x, (rows, torch.tensor([0])), 1.0)
    with pytest.raises(ValueError, match=r"source of dtype torch\.float32, but got torch\.int64"):
        ops.masked_scatter(x, rows.unsqueeze(1), torch.arange(4))

"""Bounded selections hold what the unbounded ones give, then fill; and tell how many there are."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ops.drawing import Masked, gradient, leaf, masked
from torch import Tensor
from torch.autograd import gradcheck

from gapless import ops

SIZES = st.integers(0, 70)


def bounded(wanted: Tensor, size: int, fill: float) -> Tensor:
    """`wanted`, cut or filled up to `size` rows."""
    out = torch.full((size, *wanted.shape[1:]), fill, dtype=wanted.dtype)
    rows = min(size, wanted.shape[0])
    out[:rows] = wanted[:rows]
    return out


@settings(max_examples=100, deadline=None)
@given(drawn=masked(), data=st.data())
def test_compact(drawn: Masked, data: st.DataObject) -> None:
    dims = data.draw(st.integers(0, drawn.x.dim()))
    mask = drawn.mask[(...,) + (0,) * (drawn.x.dim() - dims)] if 0 not in drawn.x.shape[dims:] else drawn.mask
    size = data.draw(st.none() | SIZES)
    chosen = mask.reshape(mask.shape + (1,) * (drawn.x.dim() - mask.dim()))
    x, y = leaf(torch.where(chosen, drawn.x, torch.nan)), leaf(drawn.x)
    actual, number = ops.compact(x, mask, size=size, fill_value=-3)
    wanted = bounded(y[mask], mask.numel() if size is None else size, -3)
    assert number == mask.sum()
    torch.testing.assert_close(actual, wanted)
    torch.testing.assert_close(gradient(actual, x), gradient(wanted, y))


@settings(max_examples=60, deadline=None)
@given(drawn=masked(), size=SIZES)
def test_nonzero_and_masked_select(drawn: Masked, size: int) -> None:
    actual, number = ops.nonzero(drawn.mask, size=size, fill_value=-1)
    wanted = drawn.mask.nonzero()
    assert number == wanted.shape[0]
    assert torch.equal(actual, bounded(wanted, size, -1))
    static = torch.nonzero_static(drawn.mask, size=size, fill_value=-1)
    assert torch.equal(actual, static)
    assert torch.equal(
        ops.argwhere(drawn.x, size=size, fill_value=9).values, bounded(drawn.x.argwhere(), size, 9)
    )
    values, number = ops.masked_select(drawn.x, drawn.mask, size=size)
    assert number == wanted.shape[0]
    assert torch.equal(values, bounded(drawn.x.masked_select(drawn.mask), size, 0))


def test_masked_select_broadcasts_both() -> None:
    x, mask = torch.arange(3.0), torch.tensor([[True], [False]])
    assert torch.equal(ops.masked_select(x, mask, size=3).values, x.masked_select(mask))


@settings(max_examples=100, deadline=None)
@given(
    data=st.data(),
    shape=st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple),
    size=st.integers(0, 40),
)
def test_repeat_interleave(data: st.DataObject, shape: tuple[int, ...], size: int) -> None:
    dim = data.draw(st.none() | st.integers(-len(shape), len(shape) - 1))
    length = torch.Size(shape).numel() if dim is None else shape[dim]
    kind = data.draw(st.sampled_from(["each", "one", "number"]))
    values = data.draw(st.lists(st.integers(0, 4), min_size=length, max_size=length))
    repeats = {"each": torch.tensor(values, dtype=torch.long), "one": torch.tensor(3), "number": 2}[kind]
    x = torch.randn(shape, dtype=torch.float64)
    y = leaf(x)
    x = leaf(x)
    actual, number = ops.repeat_interleave(x, repeats, dim, output_size=size, fill_value=5)
    wanted = y.repeat_interleave(repeats, dim)
    at = 0 if dim is None else dim
    assert number == wanted.shape[at]
    wanted = bounded(wanted.transpose(0, at), size, 5).transpose(0, at)
    torch.testing.assert_close(actual, wanted)
    torch.testing.assert_close(gradient(actual, x), gradient(wanted, y))


VALUES = st.lists(st.sampled_from([-2.0, 0.0, 0.5, 3.0, float("nan"), float("inf")]), max_size=12)


@settings(max_examples=100, deadline=None)
@given(values=VALUES, size=st.integers(0, 15), integers=st.booleans(), consecutive=st.booleans())
def test_unique(values: list[float], size: int, integers: bool, consecutive: bool) -> None:
    x = torch.tensor(values)
    x = x.nan_to_num(7, 8).long() if integers else x
    x = x.view(2, -1) if len(values) % 2 == 0 and values else x
    ours, theirs = (
        (ops.unique_consecutive, torch.unique_consecutive) if consecutive else (ops.unique, torch.unique)
    )
    actual = ours(x, size=size, fill_value=99, return_inverse=True, return_counts=True)
    wanted, inverse, counts = theirs(x, return_inverse=True, return_counts=True)
    assert actual.number == wanted.shape[0]
    torch.testing.assert_close(actual.values, bounded(wanted, size, 99), equal_nan=True)
    assert torch.equal(actual.counts, bounded(counts, size, 0))
    if not x.isnan().any():
        assert torch.equal(actual.inverse, inverse)
    plain = ours(x, size=size, fill_value=99)
    assert (plain.inverse, plain.counts) == (None, None)


def test_derivatives() -> None:
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    rows, mask = torch.tensor([True, False, True, True]), x.detach() > 0
    repeats = torch.tensor([2, 0, 1, 1])
    assert gradcheck(lambda x: ops.compact(x, rows, size=2).values, x)
    assert gradcheck(lambda x: ops.masked_select(x, mask, size=14).values, x)
    assert gradcheck(lambda x: ops.repeat_interleave(x, repeats, 0, output_size=6).values, x)


def test_fill_fits_the_dtype() -> None:
    mask = torch.tensor([False, True])
    assert ops.compact(torch.tensor([1, 2]), mask, fill_value=-1).values.tolist() == [2, -1]
    assert ops.compact(torch.tensor([True, True]), mask).values.tolist() == [True, False]
    assert ops.compact(torch.ones(2, dtype=torch.float16), mask).values.dtype == torch.float16


def test_padding_that_may_be_an_index_is_chosen_or_warned_of() -> None:
    ids, mask = torch.tensor([3, 5, 3]), torch.tensor([True, False, True])
    calls = [
        (lambda fill: ops.unique(ids, size=3, **fill).values, [3, 5, 0]),
        (lambda fill: ops.unique_consecutive(ids, size=4, **fill).values, [3, 5, 3, 0]),
        (lambda fill: ops.compact(ids, mask, **fill).values, [3, 3, 0]),
        (lambda fill: ops.masked_select(ids, mask, size=3, **fill).values, [3, 3, 0]),
        (lambda fill: ops.nonzero(mask, size=3, **fill).values.flatten(), [0, 2, -1]),
        (lambda fill: ops.argwhere(mask, size=3, **fill).values.flatten(), [0, 2, -1]),
        (lambda fill: ops.repeat_interleave(ids, 1, output_size=4, **fill).values, [3, 5, 3, 0]),
    ]
    for call, padded in calls:
        with pytest.warns(UserWarning, match="valid index: writing through it may overwrite") as warned:
            assert call({}).tolist() == padded  # as before, but not silently
        assert warned[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call({"fill_value": -7})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ops.unique(ids / 2, size=3)
        ops.compact(ids / 2, mask)


def test_mask_tells_values_from_padding() -> None:
    selected = ops.unique(torch.tensor([4, 4, 0]), size=3, fill_value=0)
    assert selected.mask.tolist() == [True, True, False]
    assert (
        ops.compact(torch.arange(3.0), torch.tensor([True, True, True]), size=2).mask.tolist() == [True] * 2
    )


def test_mistakes_are_reported() -> None:
    x = torch.zeros(3, 2)
    with pytest.raises(IndexError, match=r"shape \(2,\) does not match the leading dimensions of \(3, 2\)"):
        ops.compact(x, torch.ones(2, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"dtype torch\.bool, but got torch\.int64"):
        ops.compact(x, torch.ones(3).long())
    with pytest.raises(ValueError, match="a non-negative size, but got -1"):
        ops.nonzero(x, size=-1, fill_value=-1)
    with pytest.raises(ValueError, match=r"repeats of shape \(2,\) do not fit a dimension of length 3"):
        ops.repeat_interleave(x, torch.tensor([1, 2]), 0, output_size=9)

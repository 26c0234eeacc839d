"""Masked reductions equal the same reductions of what the mask selects."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ops.drawing import Masked, gradient, leaf, masked
from torch import Tensor
from torch.autograd import gradcheck

from gapless import ops

REDUCTIONS: dict[str, tuple[Callable[..., Tensor], Callable[[Tensor], Tensor], float]] = {
    "sum": (ops.masked_sum, torch.sum, 0.0),
    "mean": (ops.masked_mean, torch.mean, torch.nan),
    "var": (ops.masked_var, torch.var, torch.nan),
    "var of all": (
        lambda *a, **k: ops.masked_var(*a, correction=0, **k),
        lambda v: v.var(correction=0),
        torch.nan,
    ),
    "std": (ops.masked_std, torch.std, torch.nan),
    "min": (ops.masked_min, torch.amin, torch.inf),
    "max": (ops.masked_max, torch.amax, -torch.inf),
}


def by_slices(
    x: Tensor,
    mask: Tensor,
    dims: tuple[int, ...],
    reduce: Callable[[Tensor], Tensor],
    empty: float,
    keep: bool,
) -> Tensor:
    """The reference: each slice along `dims` selected and reduced by itself, `empty` if nothing is left."""
    dims = tuple(d % max(x.dim(), 1) for d in dims)
    indices = [range(length) if at not in dims else [slice(None)] for at, length in enumerate(x.shape)]
    results = []
    for place in itertools.product(*indices):
        chosen = x[place][mask[place]] if place else x[mask]
        results.append(reduce(chosen) if chosen.numel() else chosen.sum() + empty)
    shape = [length if at not in dims else 1 for at, length in enumerate(x.shape)]
    flat = torch.stack(results) if results else x.new_zeros(0)
    return flat.view(shape) if keep else flat.view([n for at, n in enumerate(shape) if at not in dims])


@pytest.mark.parametrize("name", REDUCTIONS)
@settings(max_examples=60, deadline=None)
@given(drawn=masked(), data=st.data())
def test_as_the_selection(name: str, drawn: Masked, data: st.DataObject) -> None:
    ours, theirs, empty = REDUCTIONS[name]
    dims = data.draw(st.sets(st.integers(0, max(drawn.x.dim() - 1, 0)), max_size=drawn.x.dim()).map(tuple))
    dims = dims or tuple(range(drawn.x.dim()))
    keep = data.draw(st.booleans())
    given_dim: Any = None if len(dims) == drawn.x.dim() else dims[0] if len(dims) == 1 else dims
    if 0 in [drawn.x.shape[d] for d in dims] and name in ("min", "max"):
        return  # torch refuses to reduce a dimension of length 0
    x, y = leaf(drawn.poisoned), leaf(drawn.x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.var of one element
        wanted = by_slices(y, drawn.mask, dims, theirs, empty, keep)
    actual = ours(x, drawn.mask, given_dim, keep)
    torch.testing.assert_close(actual, wanted, equal_nan=True)
    torch.testing.assert_close(gradient(actual, x), gradient(wanted, y), equal_nan=True)


@pytest.mark.parametrize(
    ("function", "torchs"), [(ops.masked_softmax, torch.softmax), (ops.masked_log_softmax, torch.log_softmax)]
)
@settings(max_examples=60, deadline=None)
@given(drawn=masked(shape=(3, 4)), dim=st.sampled_from([0, 1, -1]))
def test_softmax_of_the_selection(function: Any, torchs: Any, drawn: Masked, dim: int) -> None:
    outside = 0.0 if torchs is torch.softmax else -torch.inf
    x, y = leaf(drawn.poisoned), leaf(drawn.x)
    slices = []
    for values, chosen in zip(y.unbind(1 - dim % 2), drawn.mask.unbind(1 - dim % 2), strict=True):
        row = torch.full_like(values, outside)
        if chosen.any():
            row = row.masked_scatter(chosen, torchs(values[chosen], 0))
        slices.append(row)
    wanted = torch.stack(slices, 1 - dim % 2)
    actual = function(x, drawn.mask, dim)
    torch.testing.assert_close(actual, wanted)
    torch.testing.assert_close(gradient(actual, x), gradient(wanted, y))


@pytest.mark.parametrize("name", [name for name in REDUCTIONS if name not in ("min", "max")])
def test_derivatives(name: str) -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(3, 4, generator=random, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[1, 1, 0, 1], [0, 1, 1, 1], [1, 0, 1, 1]], dtype=torch.bool)
    assert gradcheck(lambda x: REDUCTIONS[name][0](x, mask, 1), x)
    assert gradcheck(lambda x: ops.masked_softmax(x, mask, 0), x)
    assert gradcheck(lambda x: ops.masked_log_softmax(x, mask, 0)[mask], x)


@pytest.mark.parametrize("name", [name for name in REDUCTIONS if name != "sum"])
def test_a_value_for_nothing(name: str) -> None:
    x = torch.full((2, 3), torch.nan, requires_grad=True)
    mask = torch.tensor([[False] * 3, [True] * 3])
    with torch.no_grad():
        x[1] = torch.arange(3.0)
    result = REDUCTIONS[name][0](x, mask, 1, empty=-7.0)
    assert result[0] == -7
    assert result[1] == REDUCTIONS[name][1](x[1])
    assert torch.equal(gradient(result, x)[0], torch.zeros(3))
    assert REDUCTIONS[name][0](x, mask & False, empty=0.0) == 0


def test_the_mask_broadcasts_from_the_right() -> None:
    x = torch.arange(24.0).view(2, 3, 4)
    columns = torch.tensor([True, False, True, False])
    assert ops.masked_sum(x, columns) == x[..., columns].sum()
    rows = torch.tensor([[True], [False], [True]])
    torch.testing.assert_close(
        ops.masked_mean(x, rows, (0, 2)), x.mean((0, 2)).where(rows[:, 0], torch.nan), equal_nan=True
    )
    assert ops.masked_mean(x, torch.tensor(True)) == x.mean()


def test_half_precision_is_added_up_in_single() -> None:
    x = torch.full((100, 100), 1000.0, dtype=torch.float16)
    mask = torch.ones_like(x, dtype=torch.bool)
    mean = ops.masked_mean(x, mask)
    assert (mean.dtype, mean.item()) == (torch.float16, 1000)
    assert ops.masked_sum(x, mask, dtype=torch.float32) == 1e7
    ramp = torch.arange(1000).to(torch.bfloat16)
    assert ops.masked_var(ramp, ramp >= 0).dtype == torch.bfloat16
    torch.testing.assert_close(ops.masked_std(ramp, ramp >= 0), ramp.std())


def test_integers_and_bools() -> None:
    x = torch.tensor([[1, 2], [3, 4]], dtype=torch.int32)
    mask = x != 4
    assert ops.masked_sum(x, mask).dtype == torch.int64
    assert ops.masked_mean(x, mask, dtype=torch.float32) == 2
    assert (ops.masked_max(x, mask), ops.masked_min(x, mask)) == (3, 1)
    assert ops.masked_min(x, mask & False) == torch.iinfo(torch.int32).max
    assert ops.masked_max(x, mask & False, empty=-1).dtype == torch.int32
    assert ops.masked_max(x > 2, mask)
    assert not ops.masked_max(x > 3, mask)
    assert ops.masked_sum(x > 2, mask) == 1
    with pytest.raises(
        RuntimeError, match=r"a mean needs floating point or complex values, but got torch.int32"
    ):
        ops.masked_mean(x, mask)
    with pytest.raises(RuntimeError, match="a variance needs real floating point values"):
        ops.masked_var(x, mask)


def test_softmax_of_integers_and_means_of_complex_numbers() -> None:
    x, mask = torch.tensor([[1, 2, 3]]), torch.tensor([[True, False, True]])
    wanted = torch.tensor([[1.0, 3.0]]).softmax(1)
    torch.testing.assert_close(ops.masked_softmax(x, mask, 1, dtype=torch.float32)[:, [0, 2]], wanted)
    torch.testing.assert_close(
        ops.masked_log_softmax(x, mask, 1, dtype=torch.float32)[:, [0, 2]], wanted.log()
    )
    assert ops.masked_mean(x * 1j, mask) == 2j


def test_masks_that_do_not_fit() -> None:
    x = torch.zeros(2, 3, 4)
    with pytest.raises(
        ValueError, match=r"shape \(2, 3\) does not broadcast to \(2, 3, 4\); for a mask of the lead"
    ):
        ops.masked_sum(x, torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"shape \(5,\) does not broadcast to \(2, 3, 4\)$"):
        ops.masked_sum(x, torch.ones(5, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"dtype torch.bool, but got torch.float32: compare first"):
        ops.masked_sum(x, torch.ones(4))


def test_what_does_not_count() -> None:
    labels = torch.tensor([0, 255, -1, 3])
    assert ops.not_ignored(labels, 255).tolist() == [True, False, True, True]
    assert ops.not_ignored(labels, (255, -1)).tolist() == [True, False, False, True]
    assert ops.not_ignored(labels, []).all()
    assert ops.not_ignored(labels, np.int64(255)).tolist() == [True, False, True, True]
    assert ops.not_ignored(torch.tensor([1.0, torch.nan]), torch.nan).tolist() == [True, False]
    assert ops.not_ignored(labels, torch.nan).all()
    narrow = torch.tensor([0, 255], dtype=torch.uint8)
    assert ops.not_ignored(narrow, [-1, 256]).tolist() == [True, True]
    assert ops.not_ignored(narrow, [-1, 255]).tolist() == [True, False]

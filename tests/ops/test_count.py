"""Counts of fixed size equal torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from gapless import ops

LABELS = st.lists(st.integers(-1, 6), max_size=14)


@settings(max_examples=100, deadline=None)
@given(labels=LABELS, chosen=st.integers(0, 2**14 - 1))
def test_count_unique(labels: list[int], chosen: int) -> None:
    x = torch.tensor(labels, dtype=torch.long)
    mask = torch.tensor([bool(chosen >> i & 1) for i in range(len(labels))], dtype=torch.bool)
    assert ops.count_unique(x) == len(set(labels))
    assert ops.count_unique(x, low=-1, high=7) == len(set(labels))
    some = set(x[mask].tolist())
    assert ops.count_unique(x, mask=mask) == len(some)
    assert ops.count_unique(x.to(torch.int8), low=-1, high=7, mask=mask) == len(some)
    assert ops.count_unique(x, high=5) == len({label for label in labels if 0 <= label < 5})
    assert ops.count_unique(x.double() / 3, mask=mask) == len(some)


def test_count_unique_of_other_values() -> None:
    x = torch.tensor([[torch.nan, torch.nan, 1.0], [torch.inf, torch.inf, 1.0]], requires_grad=True)
    assert ops.count_unique(x) == torch.unique(x).numel() == 4
    assert ops.count_unique(x, mask=x.detach() > 0) == 2
    assert ops.count_unique(torch.tensor([0, 255], dtype=torch.uint8), low=-1, high=256) == 2
    with pytest.raises(ValueError, match=r"expected integers, but got torch\.float32"):
        ops.count_unique(x, high=3)
    with pytest.raises(ValueError, match=r"a mask of shape \(2, 3\), but got \(3,\)"):
        ops.count_unique(x, mask=torch.ones(3, dtype=torch.bool))


@settings(max_examples=80, deadline=None)
@given(labels=st.lists(st.integers(0, 6), max_size=14), size=st.integers(7, 9))
def test_bincount(labels: list[int], size: int) -> None:
    x = torch.tensor(labels, dtype=torch.long)
    assert torch.equal(ops.bincount(x, size=size), torch.bincount(x, minlength=size))
    assert torch.equal(ops.bincount(x, size=3), torch.bincount(x[x < 3], minlength=3))
    random = torch.Generator().manual_seed(len(labels))
    for dtype in (torch.float32, torch.float64, torch.float16, torch.int64):
        weights = (torch.rand(len(labels), generator=random) * 4).to(dtype)
        actual, wanted = ops.bincount(x, weights, size=size), torch.bincount(x, weights, minlength=size)
        if labels:  # of nothing torch gives counts
            torch.testing.assert_close(actual, wanted)


def test_bincount_leaves_out_what_is_outside() -> None:
    x = torch.tensor([[-1, 0, 2], [255, 2, 1]], dtype=torch.int32)
    weights = torch.tensor([[torch.nan, 1.0, 2.0], [torch.inf, 3.0, 4.0]], requires_grad=True)
    assert ops.bincount(x, size=3).tolist() == [1, 1, 2]
    counts = ops.bincount(x, weights, size=3)
    assert counts.tolist() == [1, 4, 5]
    counts.sum().backward()
    assert weights.grad is not None
    assert weights.grad.tolist() == [[0, 1, 1], [0, 1, 1]]
    assert gradcheck(lambda w: ops.bincount(x, w, size=3), torch.rand(2, 3).double().requires_grad_())
    with pytest.raises(ValueError, match=r"weights of shape \(2, 3\), but got \(3,\)"):
        ops.bincount(x, torch.ones(3), size=3)
    with pytest.raises(ValueError, match="expected integers"):
        ops.bincount(weights, size=3)


@settings(max_examples=100, deadline=None)
@given(values=st.lists(st.integers(-50, 50), min_size=1, max_size=20), bins=st.integers(1, 9), data=st.data())
def test_histograms(values: list[int], bins: int, data: st.DataObject) -> None:
    # Multiples of 1/8, so that what lies on an edge does so in every arithmetic that is exact.
    x = torch.tensor(values, dtype=torch.float64) / 8
    weight = torch.arange(1, len(values) + 1, dtype=torch.float64)
    density = data.draw(st.booleans())
    counts, edges = ops.histogram(x, bins, weight=weight, density=density)
    wanted, wanted_edges = torch.histogram(x, bins, weight=weight, density=density)
    torch.testing.assert_close(edges, wanted_edges)
    inner = edges[1:-1]
    if not (x.unsqueeze(1) - inner).abs().lt(1e-9).any():
        torch.testing.assert_close(counts, wanted)
        torch.testing.assert_close(ops.histc(x, bins), torch.histc(x, bins))
    else:
        torch.testing.assert_close(
            (counts * edges.diff()).sum() if density else counts.sum(),
            (wanted * edges.diff()).sum() if density else wanted.sum(),
        )
    own = torch.tensor(sorted({-3.0, 0.0, *(value / 8 for value in values[:4])} | {7.0}), dtype=torch.float64)
    torch.testing.assert_close(ops.histogram(x, own)[0], torch.histogram(x, own)[0])
    low, high = -2.0, 2.0
    inside, edges = ops.histogram(x, 4, range=(low, high))
    torch.testing.assert_close(inside, torch.histogram(x, 4, range=(low, high))[0])
    torch.testing.assert_close(ops.histc(x, 4, low, high), torch.histc(x, 4, low, high))


def test_histograms_of_what_is_not_finite_or_not_there() -> None:
    x = torch.tensor([torch.nan, 0.0, 1.0, 4.0, torch.inf, -torch.inf])
    assert ops.histc(x, 4).tolist() == [1, 1, 0, 1]
    assert ops.histogram(x, 2)[1].tolist() == [0, 2, 4]
    assert ops.histc(torch.zeros(0), 3).tolist() == [0, 0, 0]
    torch.testing.assert_close(ops.histogram(torch.zeros(0), 3), tuple(torch.histogram(torch.zeros(0), 3)))
    assert ops.histc(torch.full((3,), torch.nan), 2).tolist() == [0, 0]
    assert torch.equal(ops.histc(torch.full((3,), 2.0), 5), torch.histc(torch.full((3,), 2.0), 5))
    with pytest.raises(ValueError, match=r"weights of shape \(6,\), but got \(2,\)"):
        ops.histogram(x, 3, weight=torch.ones(2))


@given(labels=st.lists(st.integers(0, 4), max_size=6))
@settings(max_examples=30, deadline=None)
def test_one_hot(labels: list[int]) -> None:
    x = torch.tensor(labels, dtype=torch.long)
    assert torch.equal(ops.one_hot(x, 5), F.one_hot(x, 5))
    assert torch.equal(ops.one_hot(x.view(-1, 1), 6), F.one_hot(x.view(-1, 1), 6))


def test_one_hot_of_labels_to_ignore() -> None:
    x = torch.tensor([1, -1, 255])
    assert ops.one_hot(x, 2).tolist() == [[0, 1], [0, 0], [0, 0]]
    assert ops.one_hot(x, 2, dtype=torch.bool).dtype == torch.bool
    assert ops.one_hot(torch.tensor(1), 2).tolist() == [0, 1]
    assert ops.one_hot(torch.tensor([200], dtype=torch.uint8), 300).argmax() == 200
    with pytest.raises(ValueError, match="expected integers"):
        ops.one_hot(x.float(), 2)
    with pytest.raises(ValueError, match="at least one class, but got 0"):
        ops.one_hot(x, 0)

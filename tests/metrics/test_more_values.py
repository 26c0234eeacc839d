"""Values of ranks and tokens, against SciPy and their definitions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import gapless.metrics as metrics

number = st.integers(-4, 4).map(float) | st.sampled_from([math.inf, -math.inf])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(number, number), min_size=3, max_size=20), st.sampled_from([None, 20, 64]))
def test_spearman_as_scipy(rows, capacity):
    metric = metrics.SpearmanCorrCoef(capacity=capacity)
    preds, target = (torch.tensor(column) for column in zip(*rows, strict=True))
    for low in range(0, len(rows), 7):
        metric.update(preds[low : low + 7], target[low : low + 7])
    x, y = stats.rankdata(preds), stats.rankdata(target)
    flat = x.std() == 0 or y.std() == 0
    assert metric.compute().item() == pytest.approx(0.0 if flat else stats.pearsonr(x, y)[0], abs=1e-4)


def test_rows_beyond_the_capacity_are_ignored_and_reported():
    metric = metrics.SpearmanCorrCoef(capacity=3)
    with pytest.raises(RuntimeError, match="Dropped 1 row beyond the capacity of 3"):
        metric.update(torch.tensor([1.0, 2.0, 3.0, 0.0]), torch.tensor([1.0, 2.0, 3.0, 9.0]))
    assert metric.compute().item() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("capacity", [None, 8])
def test_nan_has_no_rank(capacity):
    metric = metrics.SpearmanCorrCoef(2, capacity=capacity)
    metric.update(torch.tensor([[1.0, 1.0], [2.0, math.nan]]), torch.tensor([[1.0, 1.0], [2.0, 2.0]]))
    first, second = metric.compute().tolist()
    assert first == pytest.approx(1.0, abs=1e-4)
    assert math.isnan(second)


def test_spearman_says_what_it_expects():
    metric = metrics.SpearmanCorrCoef()
    with pytest.raises(TypeError, match=r"floating point tensors, but got torch\.int64 and torch\.float32"):
        metric.update(torch.tensor([1]), torch.tensor([1.0]))
    with pytest.raises(ValueError, match="`num_outputs` to match the second dimension"):
        metric.update(torch.zeros(3, 2), torch.zeros(3, 2))
    with pytest.raises(ValueError, match="1- or 2-dimensional"):
        metric.update(torch.zeros(3, 2, 1), torch.zeros(3, 2, 1))
    with pytest.raises(RuntimeError, match="same shape"):
        metric.update(torch.zeros(3), torch.zeros(2))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([None, -100, 2]), st.sampled_from([1, 2, 9]))
def test_token_accuracy_is_the_accuracy_of_its_tokens(seed, ignore, top_k):
    random = torch.Generator().manual_seed(seed)
    preds, target = torch.randn(2, 5, 7, generator=random), torch.randint(0, 7, (2, 5), generator=random)
    if ignore is not None:
        target = target.masked_fill(torch.rand(2, 5, generator=random) < 0.5, ignore)
    tokens = [
        (p, t) for p, t in zip(preds.reshape(-1, 7), target.flatten().tolist(), strict=True) if t != ignore
    ]
    right = sum(t in p.argsort(descending=True)[:top_k].tolist() for p, t in tokens)
    metric = metrics.TokenAccuracy(ignore_index=ignore, top_k=top_k)
    metric.update(preds, target)
    assert metric.compute().item() == pytest.approx(right / len(tokens) if tokens else 0.0)
    if top_k == 1:
        same = metrics.TokenAccuracy(ignore_index=ignore)
        assert same(preds.argmax(-1), target) == metric.compute()


def test_tokens_outside_the_vocabulary_count_as_wrong_and_are_reported():
    metric = metrics.TokenAccuracy(ignore_index=-100)
    with pytest.raises(RuntimeError, match="Detected 2 tokens in `target` outside the vocabulary"):
        metric.update(torch.zeros(1, 4, 3), torch.tensor([[0, 3, -1, -100]]))
    assert metric.compute().item() == pytest.approx(1 / 3)


def test_token_accuracy_says_what_it_expects():
    tokens = torch.zeros(2, 3, dtype=torch.long)
    for top_k in (0, True):
        with pytest.raises(ValueError, match="`top_k` to be an integer larger than 0"):
            metrics.TokenAccuracy(top_k=top_k)
    with pytest.raises(ValueError, match="`top_k` of 2, but got tokens"):
        metrics.TokenAccuracy(top_k=2).update(tokens, tokens)
    with pytest.raises(ValueError, match="same shape"):
        metrics.TokenAccuracy().update(tokens, tokens[:1])
    with pytest.raises(TypeError, match="integers"):
        metrics.TokenAccuracy().update(tokens.float(), tokens)

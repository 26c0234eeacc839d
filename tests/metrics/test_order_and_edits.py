"""Kendall's correlation, ensembles and edit distances: ties, infinities, NaN, refused inputs."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
import torchmetrics.regression as their_regression
import torchmetrics.text as their_text
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import gapless
import gapless.metrics as metrics

NUMBER = st.integers(-3, 3).map(float) | st.sampled_from([math.inf, -math.inf])
ROWS = st.lists(st.tuples(NUMBER, NUMBER, NUMBER, NUMBER), min_size=3, max_size=20)
TEXTS = st.lists(
    st.tuples(st.text("ab c", max_size=12), st.text("ab c", max_size=12)), min_size=1, max_size=5
)


@settings(max_examples=80, deadline=None)
@given(
    rows=ROWS,
    variant=st.sampled_from("abc"),
    t_test=st.booleans(),
    alternative=st.sampled_from(["two-sided", "less", "greater"]),
    outputs=st.sampled_from([1, 2]),
    split=st.integers(1, 20),
)
def test_kendall_as_torchmetrics(
    rows: list[Any], variant: str, t_test: bool, alternative: str, outputs: int, split: int
):
    values = torch.tensor(rows)
    preds, target = (values[:, :2], values[:, 2:]) if outputs == 2 else (values[:, 0], values[:, 2])
    results = []
    for home in (metrics, their_regression):
        metric = home.KendallRankCorrCoef(variant, t_test, alternative, outputs)
        for part in (slice(0, split), slice(split, None)):
            if len(preds[part]):
                metric.update(preds[part], target[part])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results.append(metric.compute())
    ours, theirs = results
    if t_test:  # without a correlation there is no p-value; there it is one or none, as rounding has it
        theirs = (theirs[0], theirs[1].masked_fill(theirs[0].isnan(), torch.nan))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(NUMBER, NUMBER), min_size=2, max_size=70))
def test_kendall_as_scipy(rows: list[Any]):
    preds, target = (torch.tensor(column) for column in zip(*rows, strict=True))
    for variant in "bc":
        metric = metrics.KendallRankCorrCoef(variant)
        metric.update(preds, target)
        ranked = [stats.rankdata(values) for values in (preds, target)]  # without infinities
        assert metric.compute().item() == pytest.approx(
            stats.kendalltau(*ranked, variant=variant).statistic, abs=1e-5, nan_ok=True
        )


def test_kendall_of_nan_is_nan():
    metric = metrics.KendallRankCorrCoef(num_outputs=2)
    metric.update(torch.tensor([[1.0, 1.0], [2.0, math.nan]]), torch.tensor([[1.0, 1.0], [2.0, 2.0]]))
    first, second = metric.compute().tolist()
    assert first == 1
    assert math.isnan(second)


def test_kendall_of_integers_beyond_two_to_the_24th():
    metric = metrics.KendallRankCorrCoef()
    metric.update(torch.tensor([2**24, 2**24 + 1, 2**24 + 2]), torch.tensor([1.5, 2.5, 2.0]))
    assert metric.compute().item() == pytest.approx(1 / 3)


OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"t_test": 1}, "`t_test` is expected to be of a type `bool`"),
    ({"t_test": True, "alternative": None}, "`alternative` is required"),
    ({"variant": "d"}, "`variant` to be one of"),
    ({"alternative": "more"}, "`alternative` to be one of"),
]


@pytest.mark.parametrize(("options", "words"), OPTIONS)
def test_kendall_refuses(options: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=words):
        metrics.KendallRankCorrCoef(**options)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 5),
    members=st.integers(2, 9),
    seed=st.integers(0, 2**31),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_ensembles_as_torchmetrics(rows: int, members: int, seed: int, dtype: torch.dtype):
    random = torch.Generator().manual_seed(seed)
    preds = torch.randn(rows, members, generator=random).mul(4).round().div(2).to(dtype)
    target = torch.randn(rows, generator=random).to(dtype)
    results = []
    for home in (metrics, their_regression):
        metric = home.ContinuousRankedProbabilityScore()
        wide = dtype if home is metrics or dtype != torch.bfloat16 else torch.float32
        metric.update(preds.to(wide), target.to(wide))
        results.append(metric.compute().float())
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_ensembles_refuse():
    metric = metrics.ContinuousRankedProbabilityScore()
    with pytest.raises(RuntimeError, match="to have the same shape but for the members"):
        metric.update(torch.rand(3, 2), torch.rand(2))
    with pytest.raises(ValueError, match="at least 2 ensemble members"):
        metric.update(torch.rand(3, 1), torch.rand(3))


@settings(max_examples=60, deadline=None)
@given(texts=TEXTS, cost=st.integers(0, 3), reduction=st.sampled_from(["mean", "sum", "none", None]))
def test_distances_as_torchmetrics(texts: list[tuple[str, str]], cost: int, reduction: str | None):
    preds, target = zip(*texts, strict=True)
    results = []
    for home in (metrics, their_text):
        metric = home.EditDistance(cost, reduction)
        metric.update(preds, target)
        metric.update("rain", "shine")
        results.append(metric.compute())
    torch.testing.assert_close(*results)


def test_each_distance_on_a_device_does_not_wait():
    with gapless.emulate() as emulator:
        metric = metrics.EditDistance(reduction="none").to("cuda")
        metric.update(["rain", "lasagna"], ["shine", "cat"])
        distances = metric.compute()
        assert emulator.waits == 0
        assert distances.tolist() == [3, 6]


def test_distances_refuse():
    with pytest.raises(ValueError, match="`substitution_cost` to be a positive integer"):
        metrics.EditDistance(substitution_cost=-1)
    with pytest.raises(ValueError, match="`reduction` to be one of"):
        metrics.EditDistance(reduction="median")
    with pytest.raises(ValueError, match="to have same length, but got 1 and 2"):
        metrics.EditDistance().update(["a"], ["b", "c"])
    with pytest.raises(ValueError, match="`target` to be string type"):
        metrics.EditDistance().update(["a"], ["b", 1])

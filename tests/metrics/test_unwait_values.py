"""`unwait`: the same values over random inputs and options."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchmetrics
from hypothesis import given, settings
from hypothesis import strategies as st
from metrics.unwaiting import QUIET, assert_same, assert_same_unwaited
from torchmetrics import classification as tc
from torchmetrics.aggregation import CatMetric, MaxMetric, MeanMetric, MinMetric, SumMetric
from torchmetrics.text import Perplexity

from gapless.metrics.torchmetrics import unwait

NAN = float("nan")

pytestmark = QUIET


sizes = st.integers(1, 20)


@settings(max_examples=60, deadline=None)
@given(
    cls=st.sampled_from(
        [tc.MulticlassAccuracy, tc.MulticlassF1Score, tc.MulticlassStatScores, tc.MulticlassSpecificity]
    ),
    average=st.sampled_from(["micro", "macro", "weighted", "none"]),
    ignore_index=st.sampled_from([None, 0, -1, 7]),
    kind=st.sampled_from(["logits", "labels", "top_k", "samplewise", "images"]),
    n=sizes,
    seed=st.integers(0, 1000),
)
def test_counts_of_classes(
    cls: Any, average: str, ignore_index: int | None, kind: str, n: int, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    extra = () if kind in ("logits", "labels", "top_k") else (3,)
    target = torch.randint(4, (n, *extra), generator=g)
    if ignore_index is not None:
        target[torch.rand(target.shape, generator=g) < 0.3] = ignore_index
    scores = torch.randn(n, 4, *extra, generator=g)
    preds = scores.argmax(1) if kind in ("labels", "samplewise") else scores
    options = {"top_k": 2} if kind in ("top_k", "images") else {}
    if kind == "samplewise":
        options["multidim_average"] = "samplewise"
    both = [cls(4, average=average, ignore_index=ignore_index, **options) for _ in range(2)]
    unwait(both[1])
    for metric in both:
        metric.update(preds, target)
        metric.update(preds, target)
    for name in ("tp", "fp", "tn", "fn"):
        expected, actual = getattr(both[0], name), getattr(both[1], name)
        assert type(actual) is type(expected)
        for a, b in (
            zip(expected, actual, strict=True) if isinstance(expected, list) else [(expected, actual)]
        ):
            assert torch.equal(a, b)
            assert a.dtype == b.dtype
    assert_same(both[0].compute(), both[1].compute())


@settings(max_examples=40, deadline=None)
@given(
    task=st.sampled_from(["binary", "multiclass", "multilabel"]),
    cls=st.sampled_from(
        [torchmetrics.ConfusionMatrix, torchmetrics.AUROC, torchmetrics.PrecisionRecallCurve]
    ),
    ignore_index=st.sampled_from([None, 0, -1]),
    thresholds=st.sampled_from([7, [0.9, 0.1, 0.5]]),
    logits=st.booleans(),
    n=sizes,
    seed=st.integers(0, 1000),
)
def test_matrices_and_curves(
    task: str, cls: Any, ignore_index: int | None, thresholds: Any, logits: bool, n: int, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    shape = (n,) if task == "binary" else (n, 4)
    scores = torch.randn(shape, generator=g) if logits else torch.rand(shape, generator=g)
    target = (
        torch.randint(4, (n,), generator=g) if task == "multiclass" else torch.randint(2, shape, generator=g)
    )
    if ignore_index is not None:
        target[torch.rand(target.shape, generator=g) < 0.3] = ignore_index
    options = {} if cls is torchmetrics.ConfusionMatrix else {"thresholds": thresholds}
    both = [cls(task, num_classes=4, num_labels=4, ignore_index=ignore_index, **options) for _ in range(2)]
    unwait(both[1])
    for metric in both:
        metric.update(scores, target)
    assert torch.equal(both[0].confmat, both[1].confmat)
    assert_same(both[0].compute(), both[1].compute())


@settings(max_examples=60, deadline=None)
@given(
    cls=st.sampled_from([MeanMetric, SumMetric, MaxMetric, MinMetric, CatMetric]),
    strategy=st.sampled_from(["ignore", "warn", 3.0, "disable"]),
    values=st.lists(
        st.lists(st.one_of(st.just(NAN), st.floats(-100, 100, width=32)), min_size=1, max_size=5),
        min_size=1,
        max_size=4,
    ),
)
def test_aggregators_with_nan(cls: Any, strategy: Any, values: list[list[float]]) -> None:
    assert_same_unwaited(lambda: cls(nan_strategy=strategy), *((torch.tensor(value),) for value in values))


@pytest.mark.parametrize("strategy", ["ignore", "warn", 3.0, "disable"])
@pytest.mark.parametrize("weight", [None, 2.0, [1.0, NAN, 3.0]])
def test_mean_with_weights(strategy: Any, weight: Any) -> None:
    given_weight = torch.tensor(weight) if isinstance(weight, list) else weight
    first = (torch.tensor([1.0, 2.0, 4.0]), *([] if weight is None else [given_weight]))
    assert_same_unwaited(lambda: MeanMetric(nan_strategy=strategy), first, (5.0,))


def test_a_float_strategy_leaves_the_callers_tensor_alone() -> None:
    metric = MeanMetric(nan_strategy=1.0)
    unwait(metric)
    value = torch.tensor([NAN, 3.0])
    metric.update(value)
    assert value[0].isnan()
    assert metric.compute() == 2.0


@pytest.mark.parametrize("ignore_index", [None, -100])
def test_perplexity(ignore_index: int | None) -> None:
    g = torch.Generator().manual_seed(0)
    scores, target = torch.randn(2, 9, 5, generator=g), torch.randint(5, (2, 9), generator=g)
    if ignore_index is not None:
        target[:, 3] = ignore_index
    assert_same_unwaited(lambda: Perplexity(ignore_index=ignore_index), (scores, target))

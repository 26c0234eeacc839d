"""`unwait`: what is wrong with values is told, later than without."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from metrics.unwaiting import QUIET, assert_same
from torch import Tensor
from torchmetrics import MetricCollection
from torchmetrics import classification as tc
from torchmetrics.aggregation import CatMetric, MaxMetric, MeanMetric, SumMetric

from gapless.metrics.torchmetrics import unwait

NAN = float("nan")

pytestmark = QUIET


def test_nan_is_an_error_at_the_next_compute_and_only_there() -> None:
    metric = MeanMetric(nan_strategy="error")
    unwait(metric)
    metric.update(torch.tensor([1.0, NAN, 3.0]))
    with pytest.raises(RuntimeError, match="MeanMetric: 1 value was `nan`"):
        metric.compute()
    assert metric.compute() == 2.0
    metric.update(5.0)
    assert metric.compute() == 3.0


def test_nan_is_warned_of() -> None:
    metric = SumMetric()
    unwait(metric)
    metric.update(torch.tensor([NAN, NAN, 3.0]))
    with pytest.warns(UserWarning, match="SumMetric: 2 values were `nan`"):
        assert metric.compute() == 3.0


def test_cat_cuts_out_and_tells_once() -> None:
    metric = CatMetric()
    unwait(metric)
    metric.update(torch.tensor([1.0, NAN]))
    with pytest.warns(UserWarning, match="CatMetric: 1 value was"):
        assert_same(metric.compute(), torch.tensor(1.0))
    metric.update(2.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(metric.compute(), torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize(
    ("metric", "preds", "target", "words"),
    [
        (tc.BinaryAccuracy(), [0.1, 0.9], [0, 3], "1 target was not 0 or 1"),
        (tc.BinaryAccuracy(ignore_index=-1), [0.1, 0.9], [-1, 3], "1 target was not 0, 1 or -1"),
        (tc.BinaryAccuracy(), [0, 2], [0, 1], "1 prediction was not 0 or 1"),
        (
            tc.MulticlassAccuracy(2, average="micro"),
            [0, 1, 0],
            [0, 1, 2],
            "1 more different values in `target`",
        ),
        (tc.MulticlassAccuracy(3), [[0.1, 0.2, 0.7]], [5], "1 label was outside"),
        (tc.MulticlassConfusionMatrix(3), [[0.1, 0.2, 0.7]], [-1], "1 label was outside"),
        (tc.MulticlassAUROC(3, thresholds=3), [[0.1, 0.2, 0.7]] * 4, [0, 1, 2, 3], "more different values"),
        (tc.MultilabelConfusionMatrix(2), [[0.1, 0.2]], [[4, 1]], "1 target was not 0 or 1"),
        (tc.BinaryPrecisionRecallCurve(thresholds=3), [0.1, 0.9], [0, 3], "1 target was not 0 or 1"),
    ],
)
def test_bad_values_are_reported_at_compute(metric: Any, preds: Any, target: Any, words: str) -> None:
    unwait(metric)
    metric.update(torch.tensor(preds), torch.tensor(target))
    with pytest.raises(RuntimeError, match=f"{type(metric).__name__}: .*{words}"):
        metric.compute()
    metric.compute()


@pytest.mark.parametrize(
    ("preds", "target"),
    [
        (torch.rand(4, 3), torch.zeros(5, dtype=torch.long)),
        (torch.rand(4, 2), torch.zeros(4, dtype=torch.long)),
    ],
)
def test_bad_forms_are_refused_at_once_with_the_same_message(preds: Tensor, target: Tensor) -> None:
    plain, metric = tc.MulticlassAccuracy(3), tc.MulticlassAccuracy(3)
    unwait(metric)
    with pytest.raises(Exception) as expected:  # noqa: PT011
        plain.update(preds, target)
    for _ in range(2):
        with pytest.raises(type(expected.value)) as actual:
            metric.update(preds, target)
        assert str(actual.value) == str(expected.value)


def test_checks_can_be_off() -> None:
    metrics = [MeanMetric(nan_strategy="error"), tc.BinaryAccuracy()]
    unwait(metrics, checks="off")
    metrics[0].update(torch.tensor([1.0, NAN]))
    metrics[1].update(torch.tensor([0.1, 0.9]), torch.tensor([0, 3]))
    assert metrics[0].compute() == 1.0
    metrics[1].compute()


def test_forward_tells_when_it_has_arrived(emulation: Any) -> None:
    metric = MeanMetric(nan_strategy="error").to("cuda")
    unwait(metric)
    value = torch.tensor([1.0, NAN]).to("cuda")
    metric(value)
    with pytest.raises(RuntimeError, match="1 value was `nan`"):
        metric(torch.tensor([1.0]).to("cuda"))


def test_no_check_is_lost_in_a_collection() -> None:
    metrics = MetricCollection([MeanMetric(nan_strategy="error"), MaxMetric(nan_strategy="warn")])
    unwait(metrics)
    metrics.update(torch.tensor([1.0, NAN]))
    with (
        pytest.warns(UserWarning, match="MaxMetric: 1 value was"),
        pytest.raises(RuntimeError, match="MeanMetric: 1"),
    ):
        metrics.compute()
    assert_same(metrics.compute(), {"MeanMetric": torch.tensor(1.0), "MaxMetric": torch.tensor(1.0)})


def test_unknown_delivery() -> None:
    with pytest.raises(ValueError, match="but must be"):
        unwait(MeanMetric(), checks="never")  # type: ignore[arg-type]

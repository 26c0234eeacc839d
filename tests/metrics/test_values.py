"""Results equal TorchMetrics', per batch and over several batches, and scikit-learn's."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from metrics.references import has_reference, theirs
from metrics.samples import CLASSES, SAMPLES, Sample, multiclass
from sklearn import metrics as sklearn
from torch import Tensor

import gapless.metrics as metrics

OURS = ("logits", "capacity", "num_outputs")


def reference(sample: Sample) -> Any:
    """Return TorchMetrics' metric of the sample, with its options."""
    keeps = sample.name not in ("R2Score", "ExplainedVariance")
    options = {
        k: v
        for k, v in sample.options.items()
        if k not in ("logits", "capacity") and (keeps or k not in OURS)
    }
    return theirs(sample.name)(**options)


def flat(value: Any) -> list[Tensor]:
    if isinstance(value, dict):
        return [tensor for name in sorted(value) for tensor in flat(value[name])]
    return (
        [tensor for part in value for tensor in flat(part)] if isinstance(value, (list, tuple)) else [value]
    )


def same(ours: Any, theirs: Any) -> bool:
    pairs = list(zip(flat(ours), flat(theirs), strict=True))
    return all(
        a.shape == b.shape and torch.allclose(a.double(), b.double(), 1e-4, 1e-5, True) for a, b in pairs
    )


def only_ignored_are_logits(sample: Sample, data: tuple[Tensor, ...]) -> bool:
    """Whether only ignored targets have scores outside [0, 1]: TorchMetrics' metrics treat these differently,
    ours do not (docs/metrics.md)."""
    ignored = sample.options.get("ignore_index")
    if ignored is None or not data[0].is_floating_point() or data[0].shape != data[1].shape:
        return False
    outside = (data[0] < 0) | (data[0] > 1)
    return bool(outside.any()) and not bool((outside & (data[1] != ignored)).any())


def only_first_class(sample: Sample, data: tuple[Tensor, ...]) -> bool:
    """Whether all targets are class 0, which TorchMetrics' multiclass curves take for negatives of every
    class (docs/metrics.md).
    """
    ignored = sample.options.get("ignore_index")
    return sample.name.startswith("Multiclass") and bool(((data[1] == 0) | (data[1] == ignored)).all())


@pytest.mark.parametrize("name", sorted({sample.name for sample in SAMPLES if has_reference(sample.name)}))
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_as_torchmetrics(name: str, seed: int):
    for sample in SAMPLES:
        if sample.name == name:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ours, theirs = sample.make(), reference(sample)
                for step in range(2):
                    data = sample.data(seed + step)
                    assume(not only_ignored_are_logits(sample, data) and not only_first_class(sample, data))
                    whole = theirs(*copy.deepcopy(data))
                    assert same(ours(*data), whole), sample.label
                assert same(ours.compute(), theirs.compute()), sample.label


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), dtype=st.sampled_from([torch.int64, torch.int32, torch.uint8]))
def test_as_scikit_learn(seed: int, dtype: torch.dtype):
    preds, target = multiclass()(torch.Generator().manual_seed(seed), "cpu")
    labels = list(range(CLASSES))
    truth, guess = target.tolist(), preds.argmax(1).tolist()
    collection = metrics.MetricCollection(
        metrics.MulticlassF1Score(CLASSES, average="none"),
        metrics.MulticlassConfusionMatrix(CLASSES),
        metrics.MulticlassCohenKappa(CLASSES),
        metrics.MulticlassMatthewsCorrCoef(CLASSES),
        metrics.MulticlassJaccardIndex(CLASSES, average="none"),
    )
    collection.update(preds, target.to(dtype))
    values = collection.compute()
    expected = {
        "MulticlassF1Score": sklearn.f1_score(truth, guess, labels=labels, average=None, zero_division=0),
        "MulticlassConfusionMatrix": sklearn.confusion_matrix(truth, guess, labels=labels),
        "MulticlassCohenKappa": sklearn.cohen_kappa_score(truth, guess, labels=labels),
        "MulticlassMatthewsCorrCoef": sklearn.matthews_corrcoef(truth, guess),
        "MulticlassJaccardIndex": sklearn.jaccard_score(
            truth, guess, labels=labels, average=None, zero_division=0
        ),
    }
    for name, value in expected.items():
        torch.testing.assert_close(
            values[name].double(), torch.as_tensor(value).double(), rtol=1e-5, atol=1e-6
        )


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), ties=st.booleans())
def test_areas_as_scikit_learn(seed: int, ties: bool):
    random = torch.Generator().manual_seed(seed)
    scores = torch.rand(40, generator=random)
    scores = (scores * 8).round() / 8 if ties else scores
    target = torch.randint(0, 2, (40,), generator=random)
    target[:2] = torch.tensor([0, 1])
    for capacity in (None, 64):
        roc, precision = (
            metrics.BinaryAUROC(capacity=capacity),
            metrics.BinaryAveragePrecision(capacity=capacity),
        )
        partial = metrics.BinaryAUROC(max_fpr=0.4, capacity=capacity)
        for metric in (roc, precision, partial):
            metric.update(scores[:15], target[:15])
            metric.update(scores[15:], target[15:])
        assert roc.compute().item() == pytest.approx(sklearn.roc_auc_score(target, scores), abs=1e-6)
        assert precision.compute().item() == pytest.approx(
            sklearn.average_precision_score(target, scores), abs=1e-6
        )
        assert partial.compute().item() == pytest.approx(
            sklearn.roc_auc_score(target, scores, max_fpr=0.4), abs=1e-6
        )


def test_counts_are_exact_beyond_two_to_the_24th():
    accuracy, mean = metrics.MulticlassAccuracy(2, average="micro"), metrics.MeanMetric()
    accuracy.counted.state["table"][:, 1].fill_(2**24)
    accuracy.update(torch.tensor([0]), torch.tensor([0]))
    assert accuracy.counted.counts().tp.tolist() == [2**24 + 1, 0]
    mean.weighted.state["totals"][1].fill_(2**24)
    mean.update(1.0)
    assert mean.weighted.state["totals"][1].item() == 2**24 + 1


def test_sums_do_not_lose_what_is_small():
    total = metrics.SumMetric()
    for value in (1e8, *[1.0] * 100, -1e8):
        total.update(torch.tensor(value))
    assert total.compute().item() == 100
    pearson = metrics.PearsonCorrCoef()
    x = torch.linspace(0, 1, 100, dtype=torch.float64)
    pearson.update(x + 1e6, x + 1e6)
    assert pearson.compute().item() == pytest.approx(1.0)


def test_disabled_checks_keep_the_weights():
    mean = metrics.MeanMetric(nan_strategy="disable")
    mean.update(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 3.0]))
    assert mean.compute().item() == 2.5


def test_the_caller_keeps_the_tensor():
    for metric in (metrics.MeanMetric(nan_strategy=0.0), metrics.SumMetric(nan_strategy=0.0)):
        values = torch.tensor([1.0, float("nan")])
        metric.update(values)
        assert values.isnan().tolist() == [False, True]


def test_logits_are_distinguished_from_probabilities():
    logits, target = torch.tensor([0.2, 0.9]), torch.tensor([1, 1])
    assert metrics.BinaryAccuracy()(logits, target).item() == 0.5
    assert metrics.BinaryAccuracy(logits=True)(logits, target).item() == 1.0
    assert (
        metrics.BinaryAccuracy(threshold=0.1, logits=False)(torch.tensor([-3.0, 2.0]), target).item() == 0.5
    )


def test_metrics_with_other_options_are_not_taken_for_one_another():
    target, preds = torch.tensor([0, 1]), torch.tensor([1, 1])
    collection = metrics.MetricCollection(
        {
            "all": metrics.MulticlassAccuracy(2, average="micro"),
            "some": metrics.MulticlassAccuracy(2, average="micro", ignore_index=0),
        }
    )
    collection.update(torch.tensor([1, 1]), torch.tensor([1, 1]))
    collection.update(preds, target)
    values = collection.compute()
    assert (values["all"].item(), values["some"].item()) == (0.75, 1.0)

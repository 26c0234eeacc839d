"""Metrics made of other metrics: what they give, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import tensor

import gapless.metrics as metrics


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return torch.rand(20, 3, generator=random), torch.randint(0, 3, (20,), generator=random)


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: metrics.Running(1), ValueError, "Expected argument `metric` to be an instance"),
        (lambda: metrics.Running(metrics.SumMetric(), 0), ValueError, "`window` to be a positive integer"),
        (lambda: metrics.MinMaxMetric([]), ValueError, "Expected base metric to be an instance"),
        (lambda: metrics.ClasswiseWrapper([]), ValueError, "Expected argument `metric` to be an instance"),
        (lambda: named(["a", "a"]), ValueError, "`labels` to contain unique values"),
        (lambda: named("abc"), ValueError, "`labels` to either be `None` or a list of strings"),
        (lambda: metrics.MetricTracker([1]), TypeError, "Metric arg need to be an instance of"),
        (lambda: metrics.MultitaskWrapper([1]), TypeError, "Expected argument `task_metrics` to be a dict"),
        (lambda: metrics.MultitaskWrapper({"a": 1}), TypeError, "Expected each task's metric to be"),
        (lambda: metrics.MultioutputWrapper(1, 2), ValueError, "Expected argument `base_metric`"),
        (lambda: metrics.MetricInputTransformer([]), TypeError, "Expected wrapped metric to be an instance"),
        (lambda: changing(transform_pred=1), TypeError, "Expected `transform_pred` to be of type"),
        (lambda: changing(transform_target=1), TypeError, "Expected `transform_target` to be of type"),
        (
            lambda: metrics.BinaryTargetTransformer(metrics.SumMetric(), "1"),
            TypeError,
            "Expected `threshold`",
        ),
    ],
    ids=[
        *(
            "running",
            "window",
            "extremes",
            "classwise",
            "twice",
            "text",
            "tracker",
            "list",
            "task",
            "outputs",
        ),
        *("changed", "preds", "target", "threshold"),
    ],
)
def test_what_is_refused(make, error, said):
    with pytest.raises(error, match=said):
        make()


def changing(**functions: Any) -> metrics.LambdaInputTransformer:
    return metrics.LambdaInputTransformer(metrics.BinaryAccuracy(), **functions)


def named(labels: Any) -> metrics.ClasswiseWrapper:
    return metrics.ClasswiseWrapper(metrics.MulticlassAccuracy(3, average="none"), labels=labels)


@pytest.mark.parametrize("labels", [["a", "b"], ["a", "b", "c", "d"]])
def test_every_class_has_a_label(labels):
    with pytest.raises(ValueError, match=f"`labels` to contain 3 labels, but got {len(labels)}"):
        named(labels)(*batch(0))


def test_extremes_are_of_single_numbers():
    metric = metrics.MinMaxMetric(metrics.MulticlassConfusionMatrix(3))
    metric.update(*batch(0))
    with pytest.raises(RuntimeError, match="should be a float"):
        metric.compute()


def test_a_tracker_counts_its_steps_and_knows_the_best():
    tracker = metrics.MetricTracker(
        metrics.MetricCollection(metrics.MulticlassAccuracy(3), metrics.MeanMetric()), maximize=[True, False]
    )
    single = metrics.MetricTracker(metrics.MeanMetric(), maximize=True)
    with pytest.raises(ValueError, match="`compute` cannot be called before"):
        single.compute()
    values = [2.0, 7.0, 3.0]
    for step, value in enumerate(values, 1):
        single.increment()
        single.update(value)
        assert (single.n_steps, single.compute()) == (step, value)
    assert single.compute_all().tolist() == values
    assert single.best_metric(return_step=True) == (7.0, 1)
    assert (tracker.n_steps, len(tracker)) == (0, 0)
    moved = single.to("meta")
    moved.increment()
    assert moved[-1].device.type == "meta"


def test_the_best_of_what_has_no_order_is_none():
    kinds = [metrics.MulticlassConfusionMatrix(3), metrics.MulticlassAccuracy(3)]
    tracker = metrics.MetricTracker(metrics.MetricCollection(kinds), maximize=True)
    for seed in range(2):
        tracker.increment()
        tracker.update(*batch(seed))
    with pytest.warns(UserWarning, match="error when trying to get the best metric"):
        best, step = tracker.best_metric(return_step=True)
    assert best["MulticlassConfusionMatrix"] is step["MulticlassConfusionMatrix"] is None
    assert best["MulticlassAccuracy"] == max(tracker.compute_all()["MulticlassAccuracy"].tolist())


@pytest.mark.parametrize("squeeze", [True, False])
def test_a_metric_for_each_output(squeeze):
    metric = metrics.MultioutputWrapper(metrics.MeanSquaredError(), 3, squeeze_outputs=squeeze)
    preds, target = (torch.rand(8, 3, generator=torch.Generator().manual_seed(seed)) for seed in range(2))
    preds[0, 1] = torch.nan
    expected = [((preds - target)[1 if i == 1 else 0 :, i] ** 2).mean() for i in range(3)]
    torch.testing.assert_close(metric(preds, target), torch.stack(expected))
    metric.update(preds=preds, target=target)
    torch.testing.assert_close(metric.compute(), torch.stack(expected))
    metric.reset()
    assert not any(copied.update_called for copied in metric.metrics)
    kept = metrics.MultioutputWrapper(metrics.MeanSquaredError(), 3, remove_nans=False)
    assert kept(preds, target).isnan().tolist() == [False, True, False]


def test_outputs_do_not_wait_where_nan_may_stay():
    import gapless

    with gapless.emulate() as emulation:
        metric = metrics.MultioutputWrapper(metrics.MeanSquaredError(), 2, remove_nans=False).to("cuda")
        values = torch.ones(4, 2, device="cuda")
        metric(values, values)
        metric.update(values, values)
        metric.compute()
        metric.reset()
        assert emulation.waits == 0, emulation.session.sites


def tasks(**affixes: str) -> metrics.MultitaskWrapper:
    kinds = metrics.MetricCollection(metrics.MulticlassAccuracy(3), metrics.MulticlassRecall(3))
    return metrics.MultitaskWrapper({"kind": kinds, "size": metrics.MeanSquaredError()}, **affixes)


def test_each_task_has_its_own_arguments():
    metric, kinds, size = tasks(), metrics.MulticlassAccuracy(3), metrics.MeanSquaredError()
    for seed in range(2):
        preds, target = batch(seed)
        results = metric({"kind": preds, "size": preds[:, 0]}, {"kind": target, "size": preds[:, 1]})
        assert results["kind"]["MulticlassAccuracy"] == kinds(preds, target)
        assert results["size"] == size(preds[:, 0], preds[:, 1])
    assert metric.compute()["size"] == size.compute()
    metric.reset()
    assert not any(task_metric.update_called for task_metric in metric.values())
    with pytest.raises(ValueError, match="to have the same keys as the wrapped `task_metrics`"):
        metric.update({"kind": preds}, {"kind": target})


def test_names_of_tasks():
    metric = tasks(prefix="a/").clone(postfix="!")
    assert list(metric.keys()) == ["a/kind_MulticlassAccuracy!", "a/kind_MulticlassRecall!", "a/size!"]
    assert list(metric.keys(flatten=False)) == ["a/kind!", "a/size!"]
    nested = metrics.MultitaskWrapper({"all": tasks()})
    values = {"kind": batch(0)[0], "size": tensor([1.0])}
    results = nested({"all": values}, {"all": {"kind": batch(0)[1], "size": tensor([3.0])}})
    assert results["all"]["size"] == 4.0


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda m: metrics.LambdaInputTransformer(m, lambda preds: 1 - preds), lambda p, t: (1 - p, t)),
        (lambda m: metrics.LambdaInputTransformer(m, None, lambda t: 1 - t), lambda p, t: (p, 1 - t)),
        (lambda m: metrics.BinaryTargetTransformer(m, 0), lambda p, t: (p, (t > 0).to(t.dtype))),
    ],
    ids=["preds", "target", "threshold"],
)
def test_changed_arguments(make, change):
    preds, target = tensor([0.9, 0.2, 0.6, 0.7]), tensor([1, 0, 0, 1])
    for kind in (metrics.BinaryAccuracy, lambda: metrics.MetricCollection(metrics.BinaryRecall())):
        metric, plain = make(kind()), kind()
        assert metric(preds, target) == plain(*change(preds, target))
        metric.update(preds.flip(0), target)
        plain.update(*change(preds.flip(0), target))
        assert metric.compute() == plain.compute()
        metric.reset()
        assert not metric.update_called
    together = metrics.MetricCollection({"a": make(metrics.BinaryAccuracy()), "b": metrics.BinaryAccuracy()})
    assert together(preds, target)["a"] == metrics.BinaryAccuracy()(*change(preds, target))

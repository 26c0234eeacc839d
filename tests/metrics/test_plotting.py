"""Results as figures, where there is Matplotlib, and what is said where there is none."""

from __future__ import annotations

import sys

import pytest
import torch

import gapless.metrics as metrics


@pytest.fixture
def figures():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")


def updated(metric):
    metric.update(torch.tensor([0, 1, 2, 2]), torch.tensor([0, 1, 1, 2]))
    return metric


def points(axes) -> list[list[float]]:
    return [[float(y) for y in line.get_ydata()] for line in axes.lines if line.get_marker() == "o"]


def test_a_number(figures):
    metric = updated(metrics.MulticlassAccuracy(3))
    figure, axes = metric.plot()
    assert points(axes) == [[pytest.approx(metric.compute().item())]]
    assert axes.get_title() == "MulticlassAccuracy"
    assert metric.plot(ax=axes) == (figure, axes)


def test_steps_of_several_classes(figures):
    metric = updated(metrics.MulticlassRecall(3, average="none"))
    results = [metric.compute(), torch.zeros(3)]
    _, axes = metric.plot(results)
    assert points(axes) == [[float(value), 0.0] for value in results[0]]
    assert [text.get_text() for text in axes.get_legend().get_texts()][:2] == ["Class 0", "Class 1"]


def test_collections_and_trackers(figures):
    collection = updated(
        metrics.MetricCollection(metrics.MulticlassAccuracy(3), metrics.MulticlassF1Score(3))
    )
    assert [axes.get_title() for _, axes in collection.plot()] == ["MulticlassAccuracy", "MulticlassF1Score"]
    _, axes = collection.plot([collection.compute()] * 3, together=True)
    assert [len(line) for line in points(axes)] == [3, 3]
    with pytest.raises(ValueError, match="`together` to be a boolean"):
        collection.plot(together=1)
    with pytest.raises(ValueError, match="one for each of the 2 metrics"):
        collection.plot(ax=[axes])
    tracker = metrics.MetricTracker(metrics.MeanMetric(), maximize=True)
    for value in (2.0, 5.0):
        tracker.increment()
        tracker.update(value)
    assert points(tracker.plot()[1]) == [[2.0, 5.0]]


def test_matrices(figures):
    metric = updated(metrics.MulticlassConfusionMatrix(3))
    _, axes = metric.plot(labels=["a", "b", "c"])
    assert [text.get_text() for text in axes.texts] == [str(n) for n in metric.compute().flatten().tolist()]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a", "b", "c"]
    assert not metric.plot(add_text=False)[1].texts
    with pytest.raises(ValueError, match="one for each class"):
        metric.plot(labels=["a"])
    several = metrics.MultilabelConfusionMatrix(2)
    several.update(torch.tensor([[0, 1]]), torch.tensor([[1, 1]]))
    assert [axis.get_title() for axis in several.plot()[1]] == ["Label 0", "Label 1"]


@pytest.mark.parametrize("name", ["ROC", "PrecisionRecallCurve"])
def test_curves(figures, name):
    scores, target = torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1])
    metric = getattr(metrics, f"Binary{name}")()
    metric.update(scores, target)
    _, axes = metric.plot(score=True)
    first, second, _ = metric.compute()
    (line,) = axes.lines
    across, upwards = (first, second) if name == "ROC" else (second, first)
    assert [list(line.get_xdata()), list(line.get_ydata())] == [across.tolist(), upwards.tolist()]
    assert line.get_label().startswith("AUC=")
    if name == "ROC":
        assert line.get_label() == "AUC=0.750"
    classes = getattr(metrics, f"Multiclass{name}")(3, thresholds=5)
    classes.update(torch.eye(3), torch.arange(3))
    _, axes = classes.plot(score=torch.ones(3))
    assert [curve.get_label() for curve in axes.lines] == [f"Class {i} AUC=1.000" for i in range(3)]


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ModuleNotFoundError, match="expect `matplotlib` to be installed"):
        updated(metrics.MulticlassAccuracy(3)).plot()

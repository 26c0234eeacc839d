"""TorchMetrics takes our metrics for its own, and ours hold TorchMetrics'."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchmetrics
from torchmetrics import classification as theirs

import gapless.metrics as ours
from gapless.metrics.torchmetrics import unwait

BATCHES = [
    (torch.randn(24, 4, generator=torch.Generator().manual_seed(i)), torch.arange(24) % 4) for i in range(5)
]
LIBRARIES = {"ours": ours, "theirs": theirs}
COLLECTIONS = {"ours": ours, "theirs": torchmetrics}
WRAPPERS = {"ours": ours, "theirs": torchmetrics.wrappers}
MIXED = [("ours", "theirs"), ("theirs", "ours")]


def driven(metric: Any) -> list[Any]:
    """What a metric gives over some batches, updated and called in turn, and again after a reset."""
    results = []
    for i, batch in enumerate(BATCHES):
        if i % 2:
            metric.update(*batch)
        else:
            results.append(metric(*batch))
    results.append(metric.compute())
    metric.reset()
    metric.update(*BATCHES[0])
    return [*results, metric.compute()]


def assert_alike(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, check_dtype=False)


@pytest.mark.parametrize("torchmetrics_first", [False, True])
def test_isinstance_holds_whichever_is_imported_first(python, torchmetrics_first):
    import_ours = (
        "import sys, gapless.metrics as m\n"
        "made = [m.MulticlassAccuracy(4), m.MeanMetric() + 1]\ncollection = m.MetricCollection(made[:1])\n"
    )
    first, second = "import torchmetrics\n", "assert 'torchmetrics' not in sys.modules\n"
    code = (first + import_ours) if torchmetrics_first else (import_ours + second + first)
    python(
        code + "assert all(isinstance(one, torchmetrics.Metric) for one in made)\n"
        "assert isinstance(collection, torchmetrics.MetricCollection)\n"
        "assert not isinstance(torchmetrics.MeanMetric(), m.Metric)\n"
        "assert not isinstance(collection, torchmetrics.Metric)\n"
    )


def test_nothing_public_of_their_collection_is_inherited():
    public = {
        n for n, v in vars(torchmetrics.MetricCollection).items() if inspect.isroutine(v) and n[0] != "_"
    }
    assert public <= vars(ours.MetricCollection).keys()


def members(accuracy: str, f1: str, auroc: str) -> dict[str, Any]:
    return {
        "accuracy": LIBRARIES[accuracy].MulticlassAccuracy(4),
        "f1": LIBRARIES[f1].MulticlassF1Score(4),
        "auroc": LIBRARIES[auroc].MulticlassAUROC(4),
    }


@pytest.mark.parametrize("kind", ["ours", "theirs"])
@pytest.mark.parametrize("chosen", ["ours theirs ours", "theirs ours theirs", "theirs theirs theirs"])
def test_collections_hold_metrics_of_both(kind, chosen):
    expected = driven(torchmetrics.MetricCollection(members(*["theirs"] * 3)))
    collection = COLLECTIONS[kind].MetricCollection(members(*chosen.split()))
    assert type(collection["f1"]) is type(LIBRARIES[chosen.split()[1]].MulticlassF1Score(4))
    for copied in (copy.deepcopy(collection), pickle.loads(pickle.dumps(collection)), collection):
        assert_alike(driven(copied), expected)


@pytest.mark.parametrize("groups", [True, [["accuracy", "f1"], ["auroc"]]])
def test_their_compute_groups_reach_our_metrics(groups):
    collection = torchmetrics.MetricCollection(members(*["ours"] * 3), compute_groups=groups)
    assert_alike(driven(collection), driven(torchmetrics.MetricCollection(members(*["theirs"] * 3))))
    assert ["accuracy", "f1"] in collection.compute_groups.values()


@pytest.mark.parametrize(("outer", "inner"), MIXED)
def test_collections_are_nested_in_those_of_the_other(outer, inner):
    inside = COLLECTIONS[inner].MetricCollection(members(*[inner] * 3), prefix="a_")
    whole = COLLECTIONS[outer].MetricCollection([inside])
    plain = torchmetrics.MetricCollection(
        [torchmetrics.MetricCollection(members(*["theirs"] * 3), prefix="a_")]
    )
    assert_alike(driven(whole), driven(plain))


def test_a_checkpoint_of_a_mixed_collection_has_their_names():
    collection = ours.MetricCollection({"mean": torchmetrics.MeanMetric(), "sum": ours.SumMetric()})
    collection.persistent()
    collection.update(torch.tensor([1.0, 3.0]))
    saved = collection.state_dict()
    assert {"mean.mean_value", "mean.weight"} <= saved.keys()
    again = ours.MetricCollection({"mean": torchmetrics.MeanMetric(), "sum": ours.SumMetric()})
    again.persistent()
    again.load_state_dict(saved)
    states = {
        name: metric.value() if name == "sum" else metric.mean_value / metric.weight
        for name, metric in again.items()
    }
    assert_alike(states, {"mean": torch.tensor(2.0), "sum": torch.tensor(4.0)})


WRAPPED: dict[str, Callable[[Any, Any], Any]] = {
    "Running": lambda outer, inner: outer.Running(inner.MulticlassAccuracy(4), 2),
    "ClasswiseWrapper": lambda outer, inner: outer.ClasswiseWrapper(inner.MulticlassRecall(4, average=None)),
    "LambdaInputTransformer": lambda outer, inner: outer.LambdaInputTransformer(
        inner.MulticlassAccuracy(4), lambda preds: -preds
    ),
}


@pytest.mark.parametrize(("outer", "inner"), MIXED)
@pytest.mark.parametrize("name", sorted(WRAPPED))
def test_wrappers_take_metrics_of_the_other(name, outer, inner):
    expected = driven(WRAPPED[name](torchmetrics.wrappers, theirs))
    assert_alike(driven(WRAPPED[name](WRAPPERS[outer], LIBRARIES[inner])), expected)


@pytest.mark.parametrize(("outer", "inner"), MIXED)
def test_wrappers_of_their_own_behaviour_take_metrics_of_the_other(outer, inner):
    wrappers = WRAPPERS[outer]
    extremes = wrappers.MinMaxMetric(LIBRARIES[inner].MulticlassAccuracy(4))
    spread = wrappers.BootStrapper(LIBRARIES[inner].MulticlassAccuracy(4), num_bootstraps=5)
    errors = wrappers.MultioutputWrapper(COLLECTIONS[inner].MeanSquaredError(), 4)
    plain = theirs.MulticlassAccuracy(4)
    for metric in (extremes, spread, plain):
        metric.update(*BATCHES[0])
    assert_alike(extremes.compute()["raw"], plain.compute())
    assert {"mean", "std"} == spread.compute().keys()
    batch = BATCHES[0][0]
    assert_alike(errors(batch, 2 * batch), batch.square().mean(0))
    assert_alike(errors.compute(), batch.square().mean(0))


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(("outer", "inner"), [("ours", "ours"), *MIXED])
def test_trackers_ask_a_classwise_metric_what_is_best(outer, inner, together):
    def tracked(wrappers: Any, collections: Any, library: Any) -> list[Any]:
        metric: Any = wrappers.ClasswiseWrapper(library.MulticlassAccuracy(4, average=None))
        if together:
            metric = collections.MetricCollection([metric, library.MulticlassF1Score(4)])
        tracker = wrappers.MetricTracker(metric, maximize=None)
        for batch in BATCHES:
            tracker.increment()
            tracker.update(*batch)
        return [tracker.compute_all(), tracker.best_metric(return_step=True)]

    expected = tracked(torchmetrics.wrappers, torchmetrics, theirs)
    assert_alike(tracked(WRAPPERS[outer], COLLECTIONS[outer], LIBRARIES[inner]), expected)


@pytest.mark.parametrize(("first", "second"), MIXED)
def test_expressions_of_both(first, second):
    whole = LIBRARIES[first].MulticlassAccuracy(4) + LIBRARIES[second].MulticlassF1Score(4)
    assert_alike(driven(whole), driven(theirs.MulticlassAccuracy(4) + theirs.MulticlassF1Score(4)))


@pytest.mark.parametrize("metric", [ours.MulticlassAUROC(4), ours.MeanSquaredError()])
def test_what_they_read_and_write_of_a_state_is_the_state(metric):
    """As their wrappers do: states are kept apart, put back and added up by name."""
    batches = BATCHES if isinstance(metric, ours.MulticlassAUROC) else [(a, 2 * a) for a, _ in BATCHES]
    for batch in batches[:2]:
        metric.update(*batch)
    expected, names = metric.compute(), metric._defaults.keys()
    kept = {name: getattr(metric, name) for name in names}
    assert metric._reductions.keys() == metric._persistent.keys() == names
    metric.reset()
    for name, value in kept.items():
        setattr(metric, name, value)
    metric._update_count = 1
    assert_alike(metric.compute(), expected)
    metric.reset()
    metric.update(*batches[0])
    metric._reduce_states(kept)
    result = metric.compute()
    metric.reset()
    for batch in (batches[0], *batches[:2]):
        metric.update(*batch)
    assert_alike(result, metric.compute())
    with pytest.raises(AttributeError, match=r"no attribute 'scored\.none'"):
        getattr(metric, "scored.none")


def test_unwait_leaves_what_does_not_wait():
    collection = ours.MetricCollection(
        {"ours": ours.MulticlassAccuracy(4), "theirs": theirs.MulticlassRecall(4)}
    )
    with unwait(collection) as changed:
        assert len(changed) == 1
        assert_alike(list(driven(collection)[-1].values())[:1], [driven(ours.MulticlassAccuracy(4))[-1]])

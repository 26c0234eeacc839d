"""`unwait`: a collection's `forward` updates once what is made alike, and gives what each metric would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchmetrics
from metrics.unwaiting import SLOW, WAITS, assert_same
from torch import Tensor
from torchmetrics import Metric, MetricCollection
from torchmetrics import classification as tc
from torchmetrics.aggregation import MeanMetric

import gapless
from gapless.metrics.torchmetrics import unwait
from gapless.metrics.torchmetrics._alike import group_alike

pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning")]


def batch(step: int, n: int = 12) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(step)
    return torch.randn(n, 5, generator=g), torch.randint(5, (n,), generator=g)


def counts() -> dict[str, Metric]:
    return {
        "accuracy": tc.MulticlassAccuracy(5),
        "f1": tc.MulticlassF1Score(5),
        "micro": tc.MulticlassPrecision(5, average="micro"),
        "without 0": tc.MulticlassRecall(5, average="micro", ignore_index=0),
        "recall": tc.MulticlassRecall(5),
        "matrix": tc.MulticlassConfusionMatrix(5),
    }


def curves() -> dict[str, Metric]:
    return {
        "auroc": tc.MulticlassAUROC(5, thresholds=7),
        "precision": tc.MulticlassAveragePrecision(5, thresholds=7),
        "other": tc.MulticlassAveragePrecision(5, thresholds=[0.0, 0.3, 0.4, 0.5, 0.6, 0.9, 1.0]),
    }


def lists() -> dict[str, Metric]:
    return {"auroc": tc.MulticlassAUROC(5), "precision": tc.MulticlassAveragePrecision(5)}


ALIKE: dict[Callable[[], dict[str, Metric]], list[list[str]]] = {
    counts: [["accuracy", "f1", "recall"]],
    curves: [["auroc", "precision"]],
    lists: [["auroc", "precision"]],
}


def named(metrics: MetricCollection) -> list[list[str]]:
    """The groups of more than one, by name."""
    names = {id(metric): name for name, metric in metrics._modules.items()}
    return [[names[id(member)] for member in group] for group in group_alike(metrics) if len(group) > 1]


@pytest.mark.parametrize("make", ALIKE, ids=lambda make: make.__name__)
@pytest.mark.parametrize("options", [{}, {"stable_states": True}, {"checks": "later"}], ids=str)
def test_forward_gives_each_batch_and_keeps_all(make: Callable[[], dict[str, Metric]], options: Any) -> None:
    plain, metrics = MetricCollection(make()), MetricCollection(make())
    unwait(metrics, **options)
    assert named(metrics) == ALIKE[make]
    for step in range(3):
        assert_same(plain(*batch(step)), metrics(*batch(step)))
    for collection in (plain, metrics):
        collection.update(*batch(3))
    assert_same(plain(*batch(4)), metrics(*batch(4)))
    for name, metric in metrics._modules.items():
        assert metric.update_count == plain._modules[name].update_count
    assert_same(plain.compute(), metrics.compute())
    for collection in (plain, metrics):
        collection.reset()
    assert_same(plain(*batch(5)), metrics(*batch(5)))
    assert_same(plain.compute(), metrics.compute())


def test_what_is_made_alike_is_updated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = MetricCollection(counts())
    unwait(metrics)
    calls = []
    plain = torch.Tensor.argmax

    def argmax(*args: Any, **options: Any) -> Tensor:
        calls.append(args)
        return plain(*args, **options)

    monkeypatch.setattr(torch.Tensor, "argmax", argmax)
    metrics(*batch(0))
    assert len(calls) == 4  # the three alike, the two micro averages, the matrix


def test_groups_of_the_users_own_that_are_none_stay_apart() -> None:
    metrics = MetricCollection(counts(), compute_groups=False)
    plain = MetricCollection(counts(), compute_groups=False)
    unwait(metrics)
    for step in range(2):
        assert_same(plain(*batch(step)), metrics(*batch(step)))
    assert_same(plain.compute(), metrics.compute())


def test_values_that_are_the_same_by_chance_make_no_group() -> None:
    metrics = MetricCollection({"all": tc.MulticlassAccuracy(3, average="micro")})
    metrics.add_metrics({"without 0": tc.MulticlassAccuracy(3, average="micro", ignore_index=0)})
    unwait(metrics)
    assert named(metrics) == []
    preds = torch.tensor([0, 1, 2])
    first = metrics(preds, torch.tensor([1, 1, 2]))  # no 0 among the targets
    assert_same(first, {"all": torch.tensor(2 / 3), "without 0": torch.tensor(2 / 3)})
    second = metrics(preds, torch.tensor([0, 1, 1]))
    assert_same(second, {"all": torch.tensor(2 / 3), "without 0": torch.tensor(1 / 2)})


class Plain(torchmetrics.Metric):
    """A sum of scaled values that begins at a number of its own."""

    full_state_update = False

    def __init__(self, scale: float, begin: float = 0.0) -> None:
        super().__init__()
        self.scale = scale
        self.add_state("total", torch.tensor(begin), "sum")

    def update(self, value: Tensor) -> None:
        self.total = self.total + self._scaled(value).sum()

    def _scaled(self, value: Tensor) -> Tensor:
        return self.scale * value

    def compute(self) -> Tensor:
        return self.total


class Hidden(Plain):
    """A metric whose code does not name what it reads."""

    def _scaled(self, value: Tensor) -> Tensor:
        return vars(self)["scale"] * value


class Halved(Plain):
    """The same update, another method that it calls."""

    def _scaled(self, value: Tensor) -> Tensor:
        return value / 2


def test_the_make_of_a_users_metric() -> None:
    metrics = MetricCollection(
        {
            "a": Plain(2.0),
            "b": Plain(2.0),
            "scale": Plain(3.0),
            "begin": Plain(2.0, 1.0),
            "method": Halved(2.0),
            "mean": MeanMetric(),
        }
    )
    unwait(metrics)
    assert named(metrics) == [["a", "b"]]


def test_code_that_hides_what_it_reads_shares_nothing() -> None:
    metrics = MetricCollection({"a": Hidden(2.0), "b": Hidden(2.0)})
    unwait(metrics)
    assert named(metrics) == []


def test_forward_of_a_collection_does_not_wait() -> None:
    with gapless.emulate() as emulation:
        metrics = MetricCollection(counts()).to("cuda")
        unwait(metrics)
        scores, target = (tensor.to("cuda") for tensor in batch(0))
        before = emulation.waits
        metrics(scores, target)
        metrics(scores, target)
        assert emulation.waits == before


def test_checks_are_reported_after_a_shared_update() -> None:
    metrics = MetricCollection({"a": tc.BinaryAccuracy(), "b": tc.BinaryF1Score()})
    unwait(metrics)
    assert named(metrics) == [["a", "b"]]
    with pytest.raises(RuntimeError, match="1 target was not 0 or 1"):
        metrics(torch.tensor([0.1, 0.9]), torch.tensor([0, 3]))


def test_an_update_that_fails_leaves_the_metrics_as_they_were() -> None:
    metrics = MetricCollection({"a": tc.MulticlassAccuracy(5), "b": tc.MulticlassF1Score(5)})
    unwait(metrics)
    metrics(*batch(0))
    with pytest.raises(RuntimeError, match="size of tensor"):
        metrics(torch.zeros(3, 5), torch.zeros(4, dtype=torch.long))
    for metric in metrics._modules.values():
        metric.reset()
    other = MetricCollection({"a": tc.MulticlassAccuracy(5), "b": tc.MulticlassF1Score(5)})
    assert_same(other(*batch(1)), metrics(*batch(1)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "family", ["aggregation", "classification", "regression", "segmentation", "wrappers"]
)
def test_forward_of_single_metrics(family: str) -> None:
    for case in WAITS.FAMILIES[family]():
        if case.name == "BootStrapper" or any(slow in case.name for slow in SLOW):
            continue
        results = []
        for change in (lambda metric: None, unwait):
            metric = case.build()
            change(metric)
            values = [metric(*case.batch(WAITS.Make(step, "cpu"))) for step in range(2)]
            metric.update(*case.batch(WAITS.Make(2, "cpu")))
            results.append([*values, metric.compute()])
        assert_same(*results)

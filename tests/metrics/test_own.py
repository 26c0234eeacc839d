"""A metric as a user writes one: it is shared, saved, reduced and read like the others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gapless
from gapless.metrics import Batch, Metric, MetricCollection, Slot, Statistic


class ZeroOne(Statistic):
    def __init__(self, tolerance: float) -> None:
        super().__init__((tolerance,), {"close": Slot(), "seen": Slot()}, checked=False)
        self.tolerance = tolerance

    def count(self, batch: Batch) -> None:
        preds, target = batch.args
        self.state["close"].add_(((preds - target).abs() < self.tolerance).sum())
        self.state["seen"].add_(target.numel())


class ShareWithin(Metric):
    def __init__(self, tolerance: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.use("zero_one", ZeroOne(tolerance))

    def update(self, preds: Tensor, target: Tensor) -> None:
        self.observe(preds, target)

    def value(self) -> Tensor:
        return self.zero_one.state["close"] / self.zero_one.state["seen"]


def test_a_metric_of_ones_own():
    collection = MetricCollection({"a": ShareWithin(0.5), "b": ShareWithin(0.5), "c": ShareWithin(2.0)})
    results = collection(torch.tensor([0.0, 1.0]), torch.tensor([0.2, 2.0]))
    assert list(collection.compute_groups.values()) == [["a", "b"], ["c"]]
    assert {name: value.item() for name, value in results.items()} == {"a": 0.5, "b": 0.5, "c": 1.0}
    collection.update(torch.zeros(2), torch.zeros(2))
    assert collection.compute()["a"].item() == 0.75
    with gapless.emulate() as emulation:
        metric = ShareWithin(0.5)
        assert metric(torch.ones(4, device="cuda"), torch.ones(4, device="cuda")).device.type == "cuda"
        assert emulation.waits == 0


def test_what_a_metric_must_say():
    class Nothing(Metric):
        pass

    with pytest.raises(NotImplementedError):
        Nothing().update(1)
    with pytest.raises(NotImplementedError):
        Nothing().value()

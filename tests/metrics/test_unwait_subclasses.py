"""`unwait` of metrics of a user's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from metrics.own_metrics import Doubled, Own, Product, Unchecked, Weighted
from metrics.unwaiting import QUIET, assert_same

from gapless.metrics.torchmetrics import unwait

NAN = float("nan")

pytestmark = QUIET


@pytest.mark.parametrize("cls", [Unchecked, Weighted, Doubled])
def test_subclasses_of_aggregators_do_not_wait(cls: Any, emulation: Any) -> None:
    both = [cls().to("cuda") for _ in range(2)]
    unwait(both[1])
    for metric in both:
        before = emulation.waits
        metric.update(torch.tensor([1.0, 2.0]).to("cuda"))
        metric.update(3.0)
        waits = emulation.waits - before
    assert waits <= 1, "the tensor that the test itself places"
    assert_same(both[0].compute().cpu(), both[1].compute().cpu())


def test_an_aggregator_of_unknown_kind_keeps_its_check() -> None:
    metric = Product(nan_strategy="ignore")
    report = unwait(metric)
    metric.update(torch.tensor([2.0, NAN, 3.0]))
    assert metric.compute() == 6.0
    assert "its replacement value is not known for this class" in " ".join(str(report).split())


def test_an_unknown_metric_is_left_alone_and_said() -> None:
    metric = Own()
    report = unwait(metric)
    metric.update(torch.ones(3, 2))
    assert metric.compute() == 12.0
    assert "update: Own's own (own_metrics.py:" in str(report)

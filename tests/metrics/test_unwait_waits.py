"""`unwait` over every class TorchMetrics exports: the same values, and fewer waits."""

from __future__ import annotations

from typing import Any

import pytest
from metrics.unwaiting import CASES, QUIET, SLOW, WAITS, assert_same, counted
from torchmetrics import MetricCollection
from torchmetrics import classification as tc
from torchmetrics.aggregation import MeanMetric

from gapless.metrics.torchmetrics import unwait

pytestmark = QUIET


@pytest.mark.parametrize("name", [name for name in CASES if not any(slow in name for slow in SLOW)])
def test_same_values_and_no_more_waits(name: str, emulation: Any) -> None:
    before, result, value = counted(CASES[name], emulation, lambda metric: None)
    after, unwaited_result, unwaited_value = counted(CASES[name], emulation, unwait)
    assert_same(value, unwaited_value)
    assert all(a <= b for a, b in zip(after, before, strict=True))
    assert sum(after) + unwaited_result <= sum(before) + result


COMMON = [
    name
    for family in ("aggregation", "classification", "regression", "segmentation")
    for name in (case.name for case in WAITS.FAMILIES[family]())
    if not any(slow in name for slow in SLOW)
]
LEFT = ("Fairness", "GroupStatRates", "RankingAverage", "GeneralizedDice")
"""What looks at groups, rows or weights one by one, and still waits."""


@pytest.mark.parametrize("name", [n for n in COMMON if not any(left in n for left in LEFT)])
def test_common_updates_do_not_wait(name: str, emulation: Any) -> None:
    case = CASES[name]
    metric = case.build().to("cuda")
    unwait(metric)
    keeps_lists = any(isinstance(default, list) for default in metric._defaults.values())
    # rows that are kept as they are have to be cut out, and their number is read once
    cuts_rows = "ignore_index" in name and (keeps_lists or "Hinge" in name) and "Multilabel" not in name
    for step in range(2):
        batch = case.batch(WAITS.Make(step, "cuda"))
        before = emulation.waits
        metric.update(*batch)
        assert emulation.waits - before <= (1 if cuts_rows else 0)


def test_later_delivery_never_waits(emulation: Any) -> None:
    metrics = MetricCollection({"mean": MeanMetric(), "accuracy": tc.MulticlassAccuracy(5)}).to("cuda")
    for metric in metrics.values():
        unwait(metric, checks="later")
    make = WAITS.Make(0, "cuda")
    value, logits, target = make.real(8), make.real(8, 5), make.label(5, 8)
    before = emulation.waits
    metrics["mean"].update(value)
    metrics["mean"](value, 2.0)
    metrics["accuracy"].update(logits, target)
    metrics["accuracy"](logits, target)
    for metric in metrics.values():
        metric.compute()
        metric.reset()
    assert emulation.waits == before


def test_forward_does_not_wait_with_checks_on(emulation: Any) -> None:
    metric = tc.MulticlassAccuracy(5).to("cuda")
    unwait(metric)
    make = WAITS.Make(0, "cuda")
    logits, target = make.real(8, 5), make.label(5, 8)
    before = emulation.waits
    metric(logits, target)
    metric(logits, target)
    assert emulation.waits == before
    metric.compute()


def test_a_collection_reads_its_checks_once_and_groups_once(emulation: Any) -> None:
    metrics = WAITS.collection().to("cuda")
    unwait(metrics)
    make = WAITS.Make(0, "cuda")
    inputs = [(make.real(8, 5), make.label(5, 8)) for _ in range(2)]
    before = emulation.waits
    metrics.update(*inputs[0])
    assert emulation.waits - before == 1
    metrics.update(*inputs[1])
    assert emulation.waits - before == 1
    metrics.compute()
    assert emulation.waits - before == 2
    reference = WAITS.collection().to("cuda")
    reference.update(*inputs[0])
    assert reference.compute_groups == metrics.compute_groups

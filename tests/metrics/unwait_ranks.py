"""What `test_two_ranks` runs in each of two processes; writes what it saw as JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torchmetrics
from torch import Tensor
from torchmetrics import MetricCollection
from torchmetrics import classification as tc
from torchmetrics.aggregation import CatMetric, MeanMetric, SumMetric

import gapless
from gapless.metrics.torchmetrics import unwait

GATHERS = ("all_gather", "all_gather_into_tensor", "all_gather_single")
COLLECTIVES = (*GATHERS, "all_reduce", "barrier", "broadcast")
calls = {"n": 0}


def count_collectives() -> None:
    """Count each call of a collective of `torch.distributed`."""

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls["n"] += 1
            return function(*args, **kwargs)

        return call

    for name in COLLECTIVES:
        if hasattr(dist, name):
            setattr(dist, name, counted(getattr(dist, name)))


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return torch.equal(a, b) if not a.is_floating_point() else torch.allclose(a, b, equal_nan=True)


def batch(rank: int, step: int, n: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(10 * step + rank)
    return torch.randn(n, 5, generator=g), torch.randint(5, (n,), generator=g)


CASES: dict[str, tuple[Callable[[], Any], Callable[[int, int], tuple[Tensor, ...]]]] = {
    "accuracy": (lambda: tc.MulticlassAccuracy(5), lambda rank, step: batch(rank, step, 4)),
    "uneven lists": (lambda: tc.MulticlassAUROC(5), lambda rank, step: batch(rank, step, 4 + 3 * rank)),
    "calibration": (lambda: tc.MulticlassCalibrationError(5), lambda rank, step: batch(rank, step, 4 + rank)),
    "samplewise": (
        lambda: tc.MulticlassAccuracy(5, multidim_average="samplewise"),
        lambda rank, step: tuple(torch.randint(5, (3 + rank, 4)) for _ in range(2)),
    ),
    "pearson": (
        torchmetrics.PearsonCorrCoef,
        lambda rank, step: (batch(rank, step, 5)[0][:, 0], torch.arange(5.0)),
    ),
    "r2": (torchmetrics.R2Score, lambda rank, step: (batch(rank, step, 5)[0][:, 0], torch.arange(5.0))),
    "mean": (MeanMetric, lambda rank, step: (torch.tensor([1.0, 2.0]) + rank,)),
    "cat": (CatMetric, lambda rank, step: (torch.arange(1.0 + rank),)),
    "collection": (
        lambda: MetricCollection(
            [tc.MulticlassAccuracy(5), tc.MulticlassConfusionMatrix(5), tc.MulticlassF1Score(5)]
        ),
        lambda rank, step: batch(rank, step, 4),
    ),
    "mixed collection": (
        lambda: MetricCollection([tc.MulticlassAccuracy(5), tc.MulticlassAUROC(5)]),
        lambda rank, step: batch(rank, step, 4 + rank),
    ),
}


def values(rank: int) -> list[str]:
    """Names of the cases whose value is another with `unwait`, or that lose their own states in a sync."""
    different = []
    for name, (make, inputs) in CASES.items():
        results = []
        for changed in (False, True):
            torch.manual_seed(rank)
            metric = make()
            if changed:
                unwait(metric)
            for step in range(3 - rank):
                metric.update(*inputs(rank, step))
            first = metric.compute()
            metric.update(*inputs(rank, 7))
            results.append((first, metric.compute()))
        if not equal(*results):
            different.append(name)
    return different


def five() -> dict[str, Any]:
    return {
        "loss": MeanMetric(),
        "accuracy": tc.MulticlassAccuracy(5),
        "precision": tc.MulticlassPrecision(5),
        "recall": tc.MulticlassRecall(5),
        "f1": tc.MulticlassF1Score(5),
    }


def collectives(rank: int, together: bool) -> dict[str, int]:
    """How many collectives the results of five metrics take, without and with `unwait`."""
    counts = {}
    for when in ("before", "after"):
        metrics: Any = five()
        scores, target = batch(rank, 0, 4)
        metrics["loss"].update(scores.sum())
        for name in metrics:
            if name != "loss":
                metrics[name].update(scores, target)
        if together:
            metrics = MetricCollection(metrics, compute_groups=False)
        if when == "after":
            unwait(metrics)
        calls["n"] = 0
        for result in [metrics] if together else metrics.values():
            result.compute()
        counts[when] = calls["n"]
    return counts


def on_nccl(rank: int, path: str) -> dict[str, Any]:
    """A metric on the host in a group that carries device tensors only."""
    with gapless.emulate(devices=2):
        torch.cuda.set_device(rank)
        store = dist.FileStore(f"{path}/nccl", 2)
        dist.init_process_group("nccl", store=store, rank=rank, world_size=2)
        plain, metric = MeanMetric(), MeanMetric()
        unwait(metric)
        for each in (plain, metric):
            each.update(float(rank))
        try:
            error = str(plain.compute())
        except RuntimeError as failed:
            error = f"RuntimeError: {failed}"
        value = float(metric.compute())
        dist.destroy_process_group()
    return {"error": error, "value": value}


def main() -> None:
    rank, path = int(os.environ["RANK"]), sys.argv[1]
    count_collectives()
    dist.init_process_group("gloo", store=dist.FileStore(f"{path}/gloo", 2), rank=rank, world_size=2)
    results: dict[str, Any] = {
        "different": values(rank),
        "five": collectives(rank, together=True),
        "loose": collectives(rank, together=False),
    }
    total = SumMetric()
    unwait(total)
    total.update(float(rank))
    total.compute()
    results["local"] = float(total.sum_value)
    dist.destroy_process_group()
    results["nccl"] = on_nccl(rank, path)
    Path(path, f"{rank}.json").write_text(json.dumps(results))


main()

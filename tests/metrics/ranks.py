"""What `test_distributed` runs in each process; writes what it saw as JSON."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import gapless.metrics as metrics
from gapless.metrics.batch import Batch
from gapless.metrics.reduced import Sum

SPLIT = {2: ((0, 7), (7, 24)), 3: ((0, 7), (7, 7), (7, 24))}
"""Which rows each rank sees, by the number of ranks; with three, one of them sees none."""


def data() -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(3)
    return torch.randn(24, 4, generator=random), torch.randint(0, 4, (24,), generator=random)


def make() -> metrics.MetricCollection:
    return metrics.MetricCollection(
        {
            "accuracy": metrics.MulticlassAccuracy(4),
            "f1": metrics.MulticlassF1Score(4, average="weighted"),
            "auroc": metrics.MulticlassAUROC(4, thresholds=20),
            "exact": metrics.MulticlassAUROC(4),
            "fixed": metrics.MulticlassAUROC(4, capacity=32),
            "matrix": metrics.MulticlassConfusionMatrix(4),
        }
    )


def make_others() -> dict[str, metrics.Metric]:
    return {
        "mean": metrics.MeanMetric(),
        "max": metrics.MaxMetric(),
        "min": metrics.MinMetric(),
        "cat": metrics.CatMetric(),
        "pearson": metrics.PearsonCorrCoef(),
        "mse": metrics.MeanSquaredError(),
        "found": metrics.RetrievalNormalizedDCG(),
        "apart": metrics.KLDivergence(reduction="none"),
        "psnr": metrics.PeakSignalNoiseRatio(4.0, dim=1),
        "kendall": metrics.KendallRankCorrCoef(),
        "segments": metrics.PanopticQuality({0, 1}, {2, 3}, return_per_class=True),
        "boxes": metrics.MeanAveragePrecision("xywh", max_detection_thresholds=[1, 2, 100]),
    }


class Square(metrics.Core):
    """The mean of squares, without what TorchMetrics' users expect."""

    def __init__(self) -> None:
        super().__init__()
        self.use("squares", Sum(squares))

    def update(self, values: torch.Tensor) -> None:
        self.observe(values)

    def value(self) -> torch.Tensor:
        return self.squares.reduced().to(self.dtype)


def squares(batch: Batch) -> torch.Tensor:
    return batch.args[0].square()


def feed(
    collection: metrics.MetricCollection, more: dict[str, metrics.Metric], start: int, stop: int
) -> None:
    preds, target = data()
    for low in range(start, stop, 5):
        rows = slice(low, min(low + 5, stop))
        collection.update(preds[rows], target[rows])
        for name, metric in more.items():
            metric.update(*arguments_for(name, preds[rows], target[rows]))


def arguments_for(name: str, preds: torch.Tensor, target: torch.Tensor) -> tuple[Any, ...]:
    """What the metric of that name is given of a batch."""
    if name == "segments":
        return tuple(
            torch.stack((labels, target % 2), -1).unsqueeze(1) for labels in (preds.argmax(1), target)
        )
    if name == "boxes":
        return boxes(preds.abs() + 1, target)
    if name == "found":
        return preds[:, 0], target, target % 3
    if name in ("apart", "psnr"):
        return preds.exp(), preds.flip(1).exp()
    return (preds[:, 0], target.float()) if name in ("pearson", "mse", "kendall") else (preds[:, 0],)


def boxes(corners: torch.Tensor, labels: torch.Tensor) -> tuple[list[Any], list[Any]]:
    """One image for each row: two objects, and one of them found; in every third image nothing is."""
    preds, target = [], []
    for corner, label in zip(corners, labels, strict=True):
        targets, kinds = torch.stack((corner, corner.flip(0))), torch.stack((label, label % 2))
        detections = {"boxes": targets[:1] * 1.1, "scores": corner[:1] / 9, "labels": kinds[:1]}
        preds.append({name: value[: int(label % 3)] for name, value in detections.items()})
        target.append({"boxes": targets, "labels": kinds})
    return preds, target


def numbers(results: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name, value in results.items():
        several = value.items() if isinstance(value, dict) else [("", value)]
        plain.update({name + key: inner_value.tolist() for key, inner_value in several})
    return plain


def results(collection: metrics.MetricCollection, more: dict[str, metrics.Metric]) -> dict[str, Any]:
    return numbers({**collection.compute(), **{name: metric.compute() for name, metric in more.items()}})


def count_collectives(calls: list[str]) -> None:
    gathers = ("all_gather", "all_gather_into_tensor", "all_gather_single", "all_gather_object")
    for name in ("all_reduce", "barrier", *(name for name in gathers if hasattr(dist, name))):
        original = getattr(dist, name)

        def counted(*args: Any, _name: str = name, _original: Any = original, **kwargs: Any) -> Any:
            calls.append(_name)
            return _original(*args, **kwargs)

        setattr(dist, name, counted)


def main() -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    calls: list[str] = []
    count_collectives(calls)
    collection, more = make(), make_others()
    start, stop = SPLIT[ranks][rank]
    feed(collection, more, start, stop)
    values: dict[str, Any] = {"all": results(collection, more)}
    before = len(calls)
    collection.compute()
    values["cached"] = len(calls) - before
    plain = metrics.MetricCollection(
        {"accuracy": metrics.MulticlassAccuracy(4), "recall": metrics.MulticlassRecall(4, top_k=2)}
    )
    plain.add_metrics({"error": metrics.MulticlassCalibrationError(4)})
    plain.update(*data())
    calls.clear()
    plain.compute()
    values["collectives"] = list(calls)
    local = metrics.MeanMetric(sync_on_compute=False)
    local.update(float(rank))
    values["local"] = local.compute().item()
    with local.sync_context():
        values["inside"] = local.value().item()
    core = Square()
    core.update(torch.full((2,), float(rank)))
    calls.clear()
    with core.reduce():
        together = core.compute().item()
    values["core"] = [together, core.compute().item(), len(calls)]
    values["after"] = local.compute().item()
    step = metrics.MeanMetric(dist_sync_on_step=True)
    values["step"] = step(float(rank)).item()
    alone = metrics.SumMetric(process_group=dist.new_group([0]))
    if rank == 0:
        alone.update(5.0)
        values["group"] = alone.compute().item()
    collection.reset()
    feed(collection, {}, start, stop)
    values["again"] = numbers(collection.compute())
    dist.destroy_process_group()
    Path(sys.argv[1], f"{os.environ['RANK']}.json").write_text(json.dumps(values))


if __name__ == "__main__":
    main()

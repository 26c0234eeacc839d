"""What each process runs where only the data show a size, and one of two has none; writes JSON."""

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


def make(**options: Any) -> dict[str, metrics.MetricCollection]:
    masks = {"iou": metrics.MeanIoU(**options), "each": metrics.MeanIoU(per_class=True, **options)}
    columns = {
        "r2": metrics.R2Score(multioutput="raw_values", **options),
        "variance": metrics.ExplainedVariance(multioutput="raw_values", **options),
    }
    return {"masks": metrics.MetricCollection(masks), "columns": metrics.MetricCollection(columns)}


def feed(collections: dict[str, metrics.MetricCollection]) -> None:
    random = torch.Generator().manual_seed(0)
    collections["masks"].update(*torch.randint(0, 2, (2, 3, 4, 5, 5), generator=random).unbind())
    collections["columns"].update(*torch.rand(2, 9, 5, generator=random).unbind())


def numbers(several: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: value.tolist() for results in several for name, value in results.items()}


def main() -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    collections, alone = make(), make(sync_on_compute=False)
    feed(alone)
    if dist.get_rank() == 1:
        feed(collections)
    readings = [collection.read(async_op=True) for collection in collections.values()]
    values: dict[str, Any] = {
        "whole": numbers([collection.compute() for collection in alone.values()]),
        "later": numbers([reading.result() for reading in readings]),
        "seen": numbers([collection.compute() for collection in collections.values()]),
    }
    rows = torch.eye(2, 3)[: dist.get_rank() + 1].requires_grad_()
    for metric in (metrics.CosineSimilarity("none"), metrics.MeanSquaredError()):
        metric.dist_sync_on_step = True
        values[type(metric).__name__] = metric(rows, torch.ones_like(rows) * (dist.get_rank() + 1)).tolist()
    calls: list[str] = []
    reduce = dist.all_reduce

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append("all_reduce")
        return reduce(*args, **kwargs)

    dist.all_reduce = counted
    sized = metrics.MeanIoU(4)
    sized.compute()
    values["collectives"] = len(calls)  # Where the size is given, nothing is exchanged but the states.
    dist.destroy_process_group()
    Path(sys.argv[1], f"{os.environ['RANK']}.json").write_text(json.dumps(values))


if __name__ == "__main__":
    main()

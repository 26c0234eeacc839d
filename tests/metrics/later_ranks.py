"""What `test_later` runs in each of two processes; writes what it saw as JSON."""

from __future__ import annotations

import json
import os
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ranks import SPLIT, count_collectives, data, feed, make, make_others, numbers

import gapless.metrics as metrics


def apart() -> dict[str, Any]:
    """Rank 1 takes part only after rank 0 has gone on; what rank 0 does meanwhile changes nothing."""
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    preds, target = data()
    scores = metrics.MetricCollection(
        {
            "accuracy": metrics.MulticlassAccuracy(4),
            "f1": metrics.MulticlassF1Score(4),
            "pearson": metrics.PearsonCorrCoef(),
        }
    )
    mean = metrics.MeanMetric()
    rows = slice(*SPLIT[2][rank])
    for name in ("accuracy", "f1"):
        scores[name].update(preds[rows], target[rows])
    scores["pearson"].update(preds[rows, 0], target[rows].float())
    mean.update(preds[rows, 0])
    if rank == 1:
        store.wait(["gone on"])
    readings = [scores.read(async_op=True), mean.read(async_op=True)]
    before = [reading.ready() for reading in readings]
    scores["f1"].update(preds, target)
    mean.reset()
    mean.update(100.0)
    if rank == 0:
        store.set("gone on", "1")
    results = {**readings[0].result(), "mean": readings[1].result()}
    return {"before": before, "values": numbers(results), "mine": mean.value().item()}


def logged() -> list[Any]:
    """Readings every two updates, afresh each time."""
    logged_values: list[Any] = []
    scores = metrics.MetricCollection({"sum": metrics.SumMetric(), "max": metrics.MaxMetric()})
    watcher = scores.every(
        2, lambda update, results: logged_values.append([update, numbers(results)]), True, async_op=True
    )
    for i in range(6):
        scores.update(float(10 * dist.get_rank() + i))
    watcher.finish()
    return logged_values


def saved(folder: Path) -> dict[str, Any]:
    """Go on from the states of three processes with two."""
    collection, more = make(), make_others()
    for metric in (collection, *more.values()):
        metric.persistent(True)
    states = [torch.load(folder / f"old{i}.pt") for i in range(3)]
    mine = states[dist.get_rank() :: 2]
    collection.load_state_dict(metrics.merge_states(collection, [state["collection"] for state in mine]))
    for name, metric in more.items():
        metric.load_state_dict(metrics.merge_states(metric, [state[name] for state in mine]))
    return numbers({**collection.compute(), **{name: metric.compute() for name, metric in more.items()}})


def main() -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    calls: list[str] = []
    count_collectives(calls)
    results: dict[str, Any] = {"apart": apart(), "collectives": list(calls), "logged": logged()}
    collection = make()
    feed(collection, {}, *SPLIT[2][dist.get_rank()])
    results["later"] = numbers(collection.read(async_op=True).result())
    results["now"] = numbers(collection.compute())
    results["saved"] = saved(Path(sys.argv[1]))
    rank = os.environ["RANK"]
    dist.destroy_process_group()
    Path(sys.argv[1], f"{rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()

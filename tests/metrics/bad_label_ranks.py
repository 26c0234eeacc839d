"""Run by `test_bad_labels_elsewhere` in each of two processes; rank 1 gets a label that is not a class."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import gapless
import gapless.metrics as metrics

GOOD = [0, 1, 2]
BAD = [0, 1, 7]


def message(function: Callable[[], Any]) -> str:
    """Return the message of the error that `function` raises; "" if it raises none."""
    try:
        function()
    except RuntimeError as error:
        return str(error)
    return ""


def feed(make: Callable[[], Any], device: str) -> tuple[Any, str]:
    """Return a metric after one batch, and the error message of its update."""
    metric = make()
    target = torch.tensor(BAD if dist.get_rank() == 1 else GOOD, device=device)
    scores = torch.eye(3, device=device)
    return metric, message(lambda: metric.update(scores, target))


MAKERS: dict[str, Callable[[], Any]] = {
    "table": lambda: metrics.MulticlassAccuracy(3),
    "matrix": lambda: metrics.MulticlassConfusionMatrix(3),
    "rows": lambda: metrics.MulticlassAUROC(3),
    "bins": lambda: metrics.MulticlassAUROC(3, thresholds=4),
    "collection": lambda: metrics.MetricCollection(
        {"accuracy": metrics.MulticlassAccuracy(3), "f1": metrics.MulticlassF1Score(3)}
    ),
}


def collect_errors(make: Callable[[], Any], device: str) -> dict[str, str]:
    """Return the error messages of each way to get the result, and of later calls."""
    metric, update = feed(make, device)
    messages = {"update": update, "compute": message(metric.compute)}
    messages["read"] = message(lambda: metric.read().result())
    messages["again"] = message(lambda: metric.read().result())
    metric.reset()
    metric.update(torch.eye(3, device=device), torch.tensor(GOOD, device=device))
    messages["after reset"] = message(lambda: metric.read().result())
    late, _ = feed(make, device)
    reading = late.read(async_op=True)
    late.reset()
    messages["later"] = message(reading.result)
    return messages


def main() -> None:
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    messages = {f"cpu {name}": collect_errors(make, "cpu") for name, make in MAKERS.items()}
    dist.destroy_process_group()
    with gapless.emulate():
        dist.init_process_group("nccl")
        messages |= {f"cuda {name}": collect_errors(make, "cuda") for name, make in MAKERS.items()}
        rank = dist.get_rank()
        dist.destroy_process_group()
    (folder / f"{rank}.json").write_text(json.dumps(messages))


if __name__ == "__main__":
    main()

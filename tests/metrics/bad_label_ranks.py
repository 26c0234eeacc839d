"""What `test_bad_labels_elsewhere` runs in each of two processes: rank 1 meets a label that is no class."""

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
    """The error that `function` raises; "" where it raises none."""
    try:
        function()
    except RuntimeError as error:
        return str(error)
    return ""


def fed(make: Callable[[], Any], device: str) -> tuple[Any, str]:
    """A metric after one batch, and the error of its update."""
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


def errors(make: Callable[[], Any], device: str) -> dict[str, str]:
    """The errors of each way to get the result, and of what comes after them."""
    metric, update = fed(make, device)
    seen = {"update": update, "compute": message(metric.compute)}
    seen["read"] = message(lambda: metric.read().result())
    seen["again"] = message(lambda: metric.read().result())
    metric.reset()
    metric.update(torch.eye(3, device=device), torch.tensor(GOOD, device=device))
    seen["after reset"] = message(lambda: metric.read().result())
    late, _ = fed(make, device)
    reading = late.read(async_op=True)
    late.reset()
    seen["later"] = message(reading.result)
    return seen


def main() -> None:
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    seen = {f"cpu {name}": errors(make, "cpu") for name, make in MAKERS.items()}
    dist.destroy_process_group()
    with gapless.emulate():
        dist.init_process_group("nccl")
        seen |= {f"cuda {name}": errors(make, "cuda") for name, make in MAKERS.items()}
        rank = dist.get_rank()
        dist.destroy_process_group()
    (folder / f"{rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()

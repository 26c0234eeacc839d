"""What `test_distributed` runs in each process, for metrics that declare their states; writes JSON."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from declaring_metrics import Kept, Kinds, Stacked, Total
from ranks import count_collectives

import gapless.metrics as metrics


def plain(value_or_values: Any) -> Any:
    if isinstance(value_or_values, dict):
        return {name: plain(value) for name, value in value_or_values.items()}
    return (
        [plain(item) for item in value_or_values]
        if isinstance(value_or_values, list)
        else value_or_values.tolist()
    )


def main() -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    calls: list[str] = []
    count_collectives(calls)
    kinds, kept, stacked = Kinds(), Kept(), Stacked()
    kinds.update(float(rank + 1))
    stacked.update(float(rank + 1))
    for i in range(2 * rank):  # None in the first process.
        kept.update(torch.full((i + 1,), float(rank)))
    results: dict[str, Any] = {
        "nothing": plain(Kept().compute()),
        "kinds": plain(kinds.compute()),
        "kept": plain(kept.compute()),
        "stacked": plain(stacked.compute()),
        "local": plain(kinds.high),
    }
    together = metrics.MetricCollection({"own": Total(), "mean": metrics.MeanMetric(), "sum": Total() + 1})
    together.update(float(rank))
    results["together"] = plain(together.compute())
    results["read"] = plain(together.read(async_op=True).result())
    running = metrics.Running(Kinds(), 2)
    for value in (9.0, 1.0, 2.0):
        running.update(value + rank)
    results["running"] = plain(running.compute())
    step = Total(dist_sync_on_step=True)
    results["step"] = [plain(step(float(rank))), plain(step.compute())]
    total = Total()
    total.update(1.0)
    calls.clear()
    total.compute()
    results["collectives"] = list(calls)
    dist.destroy_process_group()
    Path(sys.argv[1], f"{os.environ['RANK']}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()

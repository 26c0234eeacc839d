"""What each process runs for every sample of every metric; the processes see different numbers of batches.

Writes for which samples the result is not that of one process.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))

from metrics.samples import SAMPLES, Sample
from metrics.test_values import same

SHARES = (((0, 1), (2,)), ((0, 1), ()), ((), (0,)))
"""The batches that each of two processes sees, by turns."""


def differs(sample: Sample, shares: tuple[tuple[int, ...], ...], rank: int) -> bool:
    metric, whole = sample.make(), sample.make()
    whole.sync_on_compute = False
    for seed in shares[rank]:
        metric.update(*sample.data(seed))
    for seed in sorted(seed for share in shares for seed in share):
        whole.update(*sample.data(seed))
    return not same(metric.compute(), whole.compute())


def main() -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    messages = [
        f"{sample.label} {SHARES[i % len(SHARES)]}"
        for i, sample in enumerate(SAMPLES)
        if not sample.name.startswith("Running") and differs(sample, SHARES[i % len(SHARES)], rank)
    ]
    (Path(sys.argv[1]) / f"{rank}.json").write_text(json.dumps(messages))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

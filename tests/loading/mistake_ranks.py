"""What `test_correctness` runs in each of several processes; writes what `verify` says as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch.distributed as dist
from loading import datasets as d
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from gapless import loading

if __name__ == "__main__":
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    whole, table = 16 * ranks, d.Table(16 * ranks + 5)
    sampler: DistributedSampler = DistributedSampler(table)
    sharded = loading.shard(d.Numbers(45))
    loaders = {
        "all": DataLoader(d.Numbers(whole), batch_size=8, num_workers=2),
        "by worker": DataLoader(d.ByWorker(whole), batch_size=8, num_workers=2),
        "by both": DataLoader(d.ByBoth(whole), batch_size=8, num_workers=2),
        "shard": DataLoader(sharded, batch_size=8, num_workers=2),
        "table": DataLoader(d.Table(48), batch_size=8, shuffle=True),
        "sampler": DataLoader(table, batch_size=8, sampler=sampler),
        "strides": DataLoader(d.ByBoth(8 * ranks + 1), batch_size=8),
        "blocks": lambda: DataLoader(
            d.Table(16 * ranks + 1), batch_size=8, sampler=d.EqualBlocks(16 * ranks + 1)
        ),
        "buckets": DataLoader(
            d.Table(40), batch_sampler=loading.BucketBatchSampler([1 + i % 7 for i in range(40)], 6)
        ),
    }
    codes = {name: list(loading.verify(loader).codes) for name, loader in loaders.items()}
    with loading.watch() as watch:
        for _ in range(2):
            for _ in loaders["sampler"]:
                pass
    result = {
        "codes": codes,
        "shard": [int(at) for batch in loaders["shard"] for at in batch.flatten()],
        "watched": [mistake.code for mistake in watch.mistakes],
    }
    Path(sys.argv[1], f"{dist.get_rank()}.json").write_text(json.dumps(result))
    dist.destroy_process_group()

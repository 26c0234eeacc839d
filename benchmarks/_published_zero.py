"""Twenty linear layers under DDP on two GPUs, by Adam with whole and with sharded states.

gapless check --dry --memory --world-size 2 _published_zero.py --sharded
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sharded", action="store_true")
    arguments = parser.parse_args()
    rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("gloo")
    model = nn.Sequential(*(nn.Linear(2000, 2000).to(f"cuda:{rank}") for _ in range(20)))
    parallel = DistributedDataParallel(model, device_ids=[rank])
    # In the recipe's time Adam updated one parameter after another.
    kind, options = torch.optim.Adam, {"lr": 0.01, "foreach": False}
    optimizer = (
        ZeroRedundancyOptimizer(parallel.parameters(), optimizer_class=kind, **options)
        if arguments.sharded
        else kind(parallel.parameters(), **options)
    )
    outputs = parallel(torch.randn(20, 2000).to(rank))
    nn.functional.mse_loss(outputs, torch.randn(20, 2000).to(rank)).backward()
    optimizer.step()
    print(f"{torch.cuda.max_memory_allocated() / 1e6:.0f} MB")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""What `test_two_ranks` runs in each of two processes; writes what it saw as JSON."""

from __future__ import annotations

import copy
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torchmetrics
from torch import nn

from gapless.emulation.emulator import Emulator


def waits(emulator: Emulator, since: int) -> list[tuple[str, str, int]]:
    session = emulator.session()
    return [
        (session.sites[event.site].operator, session.sites[event.site].mechanism, event.waits)
        for event in session.events[since:]
    ]


def collectives(rank: int, device: torch.device) -> dict[str, Any]:
    results: dict[str, Any] = {}
    uneven = [torch.zeros(1, device=device), torch.zeros(2, device=device)]
    dist.all_gather(uneven, torch.full((1 + rank,), float(rank), device=device))
    results["uneven"] = [tensor.tolist() for tensor in uneven]
    mine, other = torch.full((2,), float(rank), device=device), torch.zeros(2, device=device)
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, other, 1 - rank)]
    )
    for work in works:
        work.wait()
    results["sent"] = other.tolist()
    objects: list[Any] = [None, None]
    dist.all_gather_object(objects, rank)
    results["objects"] = objects
    parts = [torch.full((n,), float(rank), device=device) for n in (1, 2)]
    with dist.distributed_c10d._coalescing_manager(dist.group.WORLD, device):
        for part in parts:
            dist.all_reduce(part)
    results["coalesced"] = [part.tolist() for part in parts]
    return results


def metrics(rank: int, device: torch.device) -> dict[str, Any]:
    metric = torchmetrics.MeanMetric().to(device)
    metric.update(torch.tensor(float(rank), device=device))
    on_host = torchmetrics.MeanMetric()
    on_host.update(float(rank))
    try:
        host = str(on_host.compute())
    except RuntimeError as error:
        host = f"RuntimeError: {error}"
    return {"metric": metric.compute().item(), "host_metric": host}


def training(emulator: Emulator, rank: int, device: torch.device) -> dict[str, Any]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)).to(device)
    alone = copy.deepcopy(net)
    batches = [torch.randn(8, 4, device=device) for _ in range(2)]
    since = len(emulator.session().events)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(net)
    model = nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    constructed = len(emulator.session().events)
    step(model, [batch[rank::2] for batch in batches][:1])
    results: dict[str, Any] = {"norm_waits": waits(emulator, constructed)}
    step(model, [batch[rank::2] for batch in batches][1:])
    step(alone, batches)
    plain = nn.parallel.DistributedDataParallel(nn.Linear(4, 2).to(device), device_ids=[rank])
    since = len(emulator.session().events)
    step(plain, batches)
    results["ddp_waits"] = waits(emulator, since)
    results["parameters"] = [
        value for parameter in net.parameters() for value in parameter.flatten().tolist()
    ]
    results["whole_batch"] = [
        value for parameter in alone.parameters() for value in parameter.flatten().tolist()
    ]
    return results


def step(model: nn.Module, batches: list[torch.Tensor]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in batches:
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()


def main() -> None:
    rank = int(os.environ["LOCAL_RANK"])
    with Emulator() as emulator:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        device = torch.device("cuda", torch.cuda.current_device())
        results: dict[str, Any] = {"devices": torch.cuda.device_count(), "device": str(device)}
        results.update(collectives(rank, device), **metrics(rank, device), **training(emulator, rank, device))
        dist.destroy_process_group()
    Path(sys.argv[1], f"{rank}.json").write_text(json.dumps(results))


main()

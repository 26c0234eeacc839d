"""Act as a rank of a simulated process group, in a copied process that ends afterwards."""

from __future__ import annotations

import importlib
import os
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader

from gapless.errors import UsageError
from gapless.loading.ranks import in_process_group
from gapless.torch_internals import path


def simulate_rank(rank: int, ranks: int) -> None:
    """Join a process group of `ranks` as `rank` that exchanges nothing.

    The environment is set as by torchrun. Queries of torch.distributed return this rank, even through
    functions imported by name before. This cannot be undone: only a process that ends soon may call it.
    """
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(ranks),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500",
    )
    if not dist.is_available():
        return
    if (
        in_process_group()
    ):  # of the copied process; its threads are missing here, so it cannot be ended properly
        dist.distributed_c10d.GroupMember.WORLD = None
    try:
        importlib.import_module(path("fake_process_group"))
        store = dist.HashStore()
        dist.init_process_group("fake", rank=rank, world_size=ranks, store=store)
    except Exception:
        _patch(rank, ranks)


def _patch(rank: int, ranks: int) -> None:
    answers: dict[str, Any] = {"is_initialized": True, "get_rank": rank, "get_world_size": ranks}
    for name, answer in answers.items():
        for module in (dist, dist.distributed_c10d):
            setattr(module, name, lambda *_, answer=answer, **__: answer)


def set_rank(loader: DataLoader, rank: int, ranks: int) -> None:
    """Set the samplers of `loader`, which were created for one rank, to `rank`."""
    for sampler in rank_samplers(loader, ranks):
        sampler.rank = rank


def rank_samplers(loader: DataLoader, ranks: int) -> list[Any]:
    """Return the samplers of `loader` that have a rank.

    Raises:
        UsageError: they divide among another number of ranks.
    """
    with_rank = []
    for sampler in list_samplers(loader):
        counts = [getattr(sampler, name, None) for name in ("num_replicas", "ranks", "world_size")]
        has = next((count for count in counts if isinstance(count, int)), None)
        if has is None or not isinstance(getattr(sampler, "rank", None), int):
            continue
        if has != ranks:
            raise UsageError(
                f"{type(sampler).__name__} splits among {has} rank(s), but {ranks} were requested: give "
                "verify() the function that creates the loader, so that it can call it as each rank"
            )
        with_rank.append(sampler)
    return with_rank


def list_samplers(loader: DataLoader) -> list[Any]:
    """Return the objects that order `loader`, outermost first."""
    ordering: list[Any] = []
    waiting = [loader.batch_sampler, getattr(loader, "sampler", None)]
    while waiting:
        sampler = waiting.pop(0)
        if sampler is not None and not any(sampler is previous for previous in ordering):
            ordering.append(sampler)
            waiting += [getattr(sampler, name, None) for name in ("batch_sampler", "sampler")]
    return ordering

"""Being a rank of a run that is not there: for a copied process that ends afterwards."""

from __future__ import annotations

import importlib
import os
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader

from gapless.errors import UsageError
from gapless.loading.ranks import initialized
from gapless.torch_internals import path


def become(rank: int, ranks: int) -> None:
    """Take part as `rank` in a process group of `ranks` that exchanges nothing.

    The environment is as torchrun sets it. Whoever asks torch.distributed gets this rank, also through a
    function imported by name before. There is no way back: only a process that ends soon may call this.
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
    if initialized():  # of the process that was copied; its threads are not here to end it properly
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


def place(loader: DataLoader, rank: int, ranks: int) -> None:
    """Make the samplers of `loader`, which were made for one rank, those of `rank`."""
    for sampler in dividing(loader, ranks):
        sampler.rank = rank


def dividing(loader: DataLoader, ranks: int) -> list[Any]:
    """The samplers of `loader` that know a rank.

    Raises:
        UsageError: they divide among another number of ranks.
    """
    found = []
    for sampler in samplers(loader):
        counts = [getattr(sampler, name, None) for name in ("num_replicas", "ranks", "world_size")]
        has = next((count for count in counts if isinstance(count, int)), None)
        if has is None or not isinstance(getattr(sampler, "rank", None), int):
            continue
        if has != ranks:
            raise UsageError(
                f"{type(sampler).__name__} splits among {has} rank(s), but {ranks} were requested: give "
                "verify() the function that creates the loader, so that it can call it as each rank"
            )
        found.append(sampler)
    return found


def samplers(loader: DataLoader) -> list[Any]:
    """The objects that order `loader`, the outermost first."""
    found: list[Any] = []
    waiting = [loader.batch_sampler, getattr(loader, "sampler", None)]
    while waiting:
        sampler = waiting.pop(0)
        if sampler is not None and not any(sampler is other for other in found):
            found.append(sampler)
            waiting += [getattr(sampler, name, None) for name in ("batch_sampler", "sampler")]
    return found

"""Determine the rank, the number of ranks and the DataLoader worker of this process."""

from __future__ import annotations

import os

import torch.distributed
from torch.utils.data import get_worker_info

from gapless.errors import UsageError


def in_process_group() -> bool:
    """Whether this process belongs to a process group."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def current_rank(rank: int | None = None, ranks: int | None = None) -> tuple[int, int]:
    """Return ``(rank, number of ranks)``: the arguments, else of the process group, else of the environment.

    Raises:
        UsageError: the rank is unknown, or not below the number of ranks.
    """
    if ranks is None:
        if in_process_group():
            ranks = torch.distributed.get_world_size()
        else:
            ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if rank is None:
        if ranks == 1:
            rank = 0
        elif in_process_group():
            rank = torch.distributed.get_rank()
        elif "RANK" in os.environ:
            rank = int(os.environ["RANK"])
        else:
            raise UsageError(f"there are {ranks} ranks, but this one's number is unknown: give `rank=`")
    if not 0 <= rank < ranks:
        raise UsageError(f"rank {rank} is not one of {ranks} ranks")
    return rank, ranks


def current_worker() -> tuple[int, int]:
    """Return ``(worker, number of workers)`` of this process; ``(0, 1)`` outside a DataLoader's worker."""
    info = get_worker_info()
    return (info.id, info.num_workers) if info is not None else (0, 1)

"""Which rank this process is, and of how many; which DataLoader worker."""

from __future__ import annotations

import os

import torch.distributed
from torch.utils.data import get_worker_info

from gapless.errors import UsageError


def initialized() -> bool:
    """Whether this process takes part in a process group."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def current_rank(rank: int | None = None, ranks: int | None = None) -> tuple[int, int]:
    """``(rank, number of ranks)``: as given, else of the process group, else of ``RANK`` and ``WORLD_SIZE``.

    Raises:
        UsageError: the two do not go together.
    """
    if ranks is None:
        if initialized():
            ranks = torch.distributed.get_world_size()
        else:
            ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if rank is None:
        if ranks == 1:
            rank = 0
        elif initialized():
            rank = torch.distributed.get_rank()
        elif "RANK" in os.environ:
            rank = int(os.environ["RANK"])
        else:
            raise UsageError(f"there are {ranks} ranks, but this one's number is unknown: give `rank=`")
    if not 0 <= rank < ranks:
        raise UsageError(f"rank {rank} is not one of {ranks} ranks")
    return rank, ranks


def current_worker() -> tuple[int, int]:
    """``(worker, number of workers)`` of this process; ``(0, 1)`` outside a DataLoader's worker."""
    info = get_worker_info()
    return (info.id, info.num_workers) if info is not None else (0, 1)

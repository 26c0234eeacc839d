"""Process groups: "nccl" carried by gloo, with NCCL's manners.

On CPU values C++ sends every collective to the backend a group has for the CPU. A group made with "nccl" gets
gloo there, under NCCL's name, and the collectives' operators (`collective_ops`) ask the placement table what
may travel and what waits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist

from gapless import torch_internals
from gapless.emulation.core.core import Core
from gapless.emulation.distributed.world import current
from gapless.emulation.support.patches import Patches
from gapless.model import Mark

PATIENCE = 10.0
"""Seconds a rank that stops waits for the others to come as far."""

_POLL = 0.02
_STOPPED = "gapless/ranks-that-stopped"


def local_world_size() -> int:
    """How many ranks torchrun has started on this machine; 1 where it has not."""
    try:
        return max(int(os.environ.get("LOCAL_WORLD_SIZE", "1")), 1)
    except ValueError:
        return 1


_ranks: tuple[int, int] | None = None


def rank_and_world() -> tuple[int, int]:
    """Rank of this process and how many ranks there are: as last told to torch, else as torchrun says."""
    if _ranks is not None:
        return _ranks
    if (world := current()) is not None:
        return world.rank, world.size
    try:
        return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        return 0, 1


def install(core: Core, patches: Patches) -> None:
    """Carry "nccl" groups until `patches` are undone; does nothing in a torch without torch.distributed."""
    if not dist.is_available():
        return
    # Importing the first registers its handlers. Without torch.distributed none of them can be imported.
    from gapless.emulation.distributed import (
        collective_ops,  # noqa: F401
        groups,
    )
    from gapless.emulation.distributed import ddp as distributed_ddp
    from gapless.emulation.distributed import nccl as distributed_nccl

    distributed_nccl.install(patches)
    distributed_ddp.install(core, patches)
    world = current()
    if world is not None:
        groups.install(core, patches, world)
    _remember_ranks(patches)
    if world is None and core.recorder.on_mark is not None:
        patches.set(core.recorder, "on_mark", leaving_together(core.recorder.on_mark))


def _remember_ranks(patches: Patches) -> None:
    """A script that starts its own processes tells them their ranks in the call alone."""
    global _ranks
    _ranks = None
    real = dist.init_process_group

    @wraps(real)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        global _ranks
        real(*args, **kwargs)
        _ranks = dist.get_rank(), dist.get_world_size()

    patches.set_everywhere(dist.distributed_c10d, "init_process_group", init_process_group)


def leaving_together(on_mark: Callable[[Mark], None]) -> Callable[[Mark], None]:
    """`on_mark`, but where it stops the script, the other ranks are met first.

    A rank that left at once would cut off ranks that are still receiving its last gradients.
    """
    met = False

    @wraps(on_mark)
    def mark(one: Mark) -> None:
        nonlocal met
        try:
            on_mark(one)
        except BaseException:
            if not met:
                met = True
                meet()
            raise

    return mark


def meet(seconds: float = PATIENCE) -> bool:
    """Wait until every rank of the default group has come here, for `seconds` at most; whether they all did.

    True where there is no group. Goes through the group's store and not through a collective, which a rank
    that is elsewhere would answer with the wrong one.
    """
    if not dist.is_initialized() or current() is not None:
        return True
    world = dist.get_world_size()
    deadline = time.monotonic() + seconds
    try:
        store = torch_internals.default_store()
        came = store.add(_STOPPED, 1)
        while came < world:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL)
            came = store.add(_STOPPED, 0)
    except (RuntimeError, torch.distributed.DistError):
        return True  # the rank that keeps the store has left, and it leaves last or with all others here
    return True

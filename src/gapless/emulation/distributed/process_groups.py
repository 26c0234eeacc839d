"""Process groups: "nccl" carried by gloo, behaving as NCCL.

On CPU values C++ sends every collective to the backend a group has for the CPU. A group made with "nccl" gets
gloo there, under NCCL's name, and the collectives' operators (`collective_ops`) decide by placement which
tensors it accepts and what waits.
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
from gapless.emulation.core.core import EmulationCore
from gapless.emulation.distributed.world import current
from gapless.emulation.support.patches import Patches
from gapless.model import StepMark

MEETING_SECONDS = 10.0
"""Seconds that a rank which stops waits for the others."""

_POLL = 0.02
"""Seconds between looks at the store: short beside a step."""
_STOPPED = "gapless/ranks-that-stopped"


def local_world_size() -> int:
    """Return the number of ranks that torchrun has started on this machine; 1 without torchrun."""
    try:
        return max(int(os.environ.get("LOCAL_WORLD_SIZE", "1")), 1)
    except ValueError:
        return 1


_ranks: tuple[int, int] | None = None


def rank_and_world() -> tuple[int, int]:
    """Return this process's rank and the number of ranks: as given to torch, else by torchrun."""
    if _ranks is not None:
        return _ranks
    if (world := current()) is not None:
        return world.rank, world.size
    try:
        return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        return 0, 1


def install(core: EmulationCore, patches: Patches) -> None:
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
        patches.set(core.recorder, "on_mark", leave_together(core.recorder.on_mark))


def _remember_ranks(patches: Patches) -> None:
    """Remember the ranks of scripts that start their own processes, which pass them only in the call."""
    global _ranks
    _ranks = None
    real = dist.init_process_group

    @wraps(real)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        global _ranks
        real(*args, **kwargs)
        _ranks = dist.get_rank(), dist.get_world_size()

    patches.set_everywhere(dist.distributed_c10d, "init_process_group", init_process_group)


def leave_together(on_mark: Callable[[StepMark], None]) -> Callable[[StepMark], None]:
    """Wrap `on_mark`: if it stops the script, wait for the other ranks first.

    A rank that left at once would cut off ranks that are still receiving its last gradients.
    """
    met = False

    @wraps(on_mark)
    def mark(event: StepMark) -> None:
        nonlocal met
        try:
            on_mark(event)
        except BaseException:
            if not met:
                met = True
                meet()
            raise

    return mark


def meet(seconds: float = MEETING_SECONDS) -> bool:
    """Wait until every rank of the default group has called this, for at most `seconds`; return whether all
    did.

    True if there is no group. Uses the group's store: a rank that is elsewhere would answer a collective with
    the wrong one.
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
        return True  # the rank of the store has left, which leaves last or with all others
    return True

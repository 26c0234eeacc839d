"""Process groups of one rank: torch believes in all ranks, and nothing waits for the others."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist

from gapless import torch_internals
from gapless.emulation.core.core import EmulationCore
from gapless.emulation.distributed import library_patches, objects
from gapless.emulation.distributed.lone import lone_backend
from gapless.emulation.distributed.store import LoneStore
from gapless.emulation.distributed.world import World
from gapless.emulation.support.patches import Patches

c10d = dist.distributed_c10d

_PREFIX = re.compile(r"^(default_pg/|\d+/+)+")
"""Prefixes that torch adds to a key."""
_stores: list[LoneStore] = []
"""Stores as Python objects: C++ keeps only its own half."""


def install(core: EmulationCore, patches: Patches, world: World) -> None:
    """Make this process a rank of `world` for torch.distributed, until `patches` are undone."""
    _stores.clear()

    def report_missing_key(key: str) -> None:
        core.note(f"the store has no {_PREFIX.sub('', key)!r}, which another rank would have set: it reads 0")

    def store(*args: Any, **kwargs: Any) -> LoneStore:
        new_store = LoneStore(world.size, report_missing_key)
        _stores.append(new_store)
        return new_store

    patches.set_everywhere(dist, "TCPStore", store)
    patches.set_everywhere(c10d, "init_process_group", _init_alone(core, world, store))
    _install_backends(patches)
    _install_spawn(patches, world)
    objects.install(core, patches)
    library_patches.install(core, patches)


def _init_alone(core: EmulationCore, world: World, store: Callable[[], LoneStore]) -> Callable[..., None]:
    """Return an ``init_process_group`` that joins this rank alone."""
    real = c10d.init_process_group

    @wraps(real)
    def init_process_group(
        backend: str | None = None,
        init_method: str | None = None,
        timeout: timedelta | None = None,
        world_size: int = -1,
        rank: int = -1,
        store_: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        kwargs.pop("store", None)
        core.note(
            f"rank {world.rank} of {world.size} ran alone: what the other ranks send is taken to be what "
            "this one sends"
        )
        size = world.size if world_size < 0 else world_size
        mine = world.rank if rank < 0 else rank
        if (size, mine) != world[:2]:
            core.note(f"the script makes itself rank {mine} of {size}, not {world.rank} of {world.size}")
        real(backend, None, timeout, size, mine, store(), *args, **kwargs)

    return init_process_group


def _install_backends(patches: Patches) -> None:
    """Replace gloo, which connects its ranks at creation: one rank is its own group, or gloo is left out."""
    gloo: Any = torch_internals.ProcessGroupGloo
    if gloo is not None:
        lone = lone_backend()

        class ProcessGroupGloo(lone or gloo):  # type: ignore[misc]
            def __init__(self, store: Any, rank: int, size: int, *args: Any, **kwargs: Any) -> None:
                if lone is not None:
                    super().__init__(rank, size, gloo._Options())
                else:
                    super().__init__(dist.HashStore(), 0, 1, *args, **kwargs)

            def name(self) -> str:
                return "gloo"

            _get_backend_name = name

        for attribute in ("Options", "_Options", "create_default_device", "create_device"):
            if hasattr(gloo, attribute):
                setattr(ProcessGroupGloo, attribute, getattr(gloo, attribute))
        ProcessGroupGloo.__qualname__ = "ProcessGroupGloo"
        patches.set_everywhere(c10d, "ProcessGroupGloo", ProcessGroupGloo)
    # TORCH_DISTRIBUTED_DEBUG=DETAIL compares what the ranks do.
    patches.set(*torch_internals.place("compare_ranks"), lambda wrapped_pg, *_, **__: wrapped_pg)


def _install_spawn(patches: Patches, world: World) -> None:
    """Make ``mp.spawn(train, nprocs=8)`` call `train` as this rank, in this process."""
    mp = torch.multiprocessing
    real = mp.spawn

    @wraps(real)
    def spawn(fn: Any, args: Any = (), nprocs: int = 1, join: bool = True, *_: Any, **__: Any) -> Any:
        fn(world.local_rank % nprocs, *args)
        return None if join else _FinishedProcesses()

    patches.set_everywhere(mp, "spawn", spawn)


class _FinishedProcesses:
    """The result of ``mp.spawn(join=False)`` when all is over."""

    processes: tuple[Any, ...] = ()

    def join(self, *args: Any, **kwargs: Any) -> bool:
        return True

    def pids(self) -> list[int]:
        return []

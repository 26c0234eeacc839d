"""Stand-ins for the other ranks in a copied process: collectives return their input."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist

from gapless import torch_internals
from gapless.torch_internals import path


def without_others(modules: Iterable[Any]) -> None:
    """Replace the backends of all process groups, including those of `modules`, by fakes.

    If the script already left its process group, a fake one of the same size is created.
    """
    if not dist.is_available():
        return
    groups = {id(group): group for group in _groups(modules)}
    if not groups and "WORLD_SIZE" not in os.environ:
        return
    fakes = importlib.import_module(path("fake_process_group"))
    for group in groups.values():
        with suppress(Exception):  # a kind of group that has no backend of its own
            fake = fakes.FakeProcessGroup._create_internal(group.rank(), group.size(), None)
            group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, fake)
    if not dist.is_initialized():
        rank, size = (
            int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"))
        )
        with suppress(Exception):  # the environment is anybody's
            dist.init_process_group("fake", store=dist.HashStore(), rank=rank, world_size=size)


def _groups(modules: Iterable[Any]) -> Iterable[Any]:
    yield from torch_internals.world.pg_map
    for module in modules:
        group = getattr(module, "process_group", None)
        if isinstance(group, dist.ProcessGroup):
            yield group

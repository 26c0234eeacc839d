"""`ProcessGroupNCCL` without NCCL: gloo under its name, in process groups that answer as NCCL's do."""

from __future__ import annotations

import os
from datetime import timedelta
from functools import wraps
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from gapless import torch_internals
from gapless.emulation.distributed.lone import lone_backend
from gapless.emulation.distributed.world import current
from gapless.emulation.support.local import local
from gapless.emulation.support.patches import Patches
from gapless.errors import NotEmulated
from gapless.torch_internals import FakeWork, ProcessGroup, place, work_from_future

c10d = dist.distributed_c10d
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_CPU = torch.device("cpu")
_TIMEOUT = timedelta(minutes=10)
"""NCCL's default (torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp); gloo's is longer."""


class Options:
    """The attributes of ``ProcessGroupNCCL.Options()``; gloo ignores them."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self.config = SimpleNamespace()
        self.global_ranks_in_group: list[int] = []
        self.group_name = ""
        self._timeout = _TIMEOUT
        self.backend = "nccl"
        self.lazy_init = self.enable_reconfigure = False


def _gloo_options(gloo: Any, options: Any) -> Any:
    """Return the options of a gloo group that behaves as an NCCL group with `options` does."""
    chosen = gloo._Options()
    chosen._timeout = options._timeout
    chosen._devices = [_device(gloo)]
    for name in ("global_ranks_in_group", "group_name"):
        if hasattr(chosen, name):  # before torch 2.6 only NCCL's options have them
            setattr(chosen, name, getattr(options, name))
    return chosen


def stand_in() -> type:
    """Return the class that replaces ``torch.distributed.ProcessGroupNCCL``.

    Raises:
        NotEmulated: this torch has no gloo to carry it.
    """
    gloo: Any = torch_internals.ProcessGroupGloo
    if gloo is None:
        raise NotEmulated(
            'A process group with backend "nccl" needs a torch build with gloo, which carries its messages.'
        )

    lone = lone_backend() if current() is not None else None

    class ProcessGroupNCCL(lone or gloo):  # type: ignore[misc]
        """Gloo for the values, NCCL by name and options."""

        def __init__(
            self, store: Any, rank: int, size: int, options: Any = None, device: torch.device | None = None
        ) -> None:
            self.nccl_options = options if options is not None else Options()
            if lone is not None:
                super().__init__(rank, size, self.nccl_options)
                return
            if current() is not None:  # gloo connects its ranks: one rank is its own group
                store, rank, size = dist.HashStore(), 0, 1
            super().__init__(store, rank, size, _gloo_options(gloo, self.nccl_options))

        @property
        def options(self) -> Any:
            return self.nccl_options

        def name(self) -> str:
            return "nccl"

        later_barriers_stop = True
        """Whether the CPU stops where an asynchronous barrier is waited for."""

        _get_backend_name = name
        supports_splitting = False  # C++ would make a gloo group of a split: `split_group` makes a new one
        supports_coalescing = False

        def comm_split_count(self) -> int:
            return 0

        def _shutdown(self) -> None:
            """Do nothing: torch before 2.6 calls this; gloo ends with its object."""

        def eager_connect_single_device(self, device: Any = None) -> None:
            """Do nothing: gloo is connected already."""

        def perform_nocolor_split(self, device: Any) -> None:
            """Do nothing: gloo needs no help of ranks outside a new group."""

    ProcessGroupNCCL.Options = Options
    for position, policy in enumerate(("DEFAULT", "EFFICIENCY", "ZERO")):
        setattr(ProcessGroupNCCL, f"NCCL_CTA_POLICY_{policy}", position)
    ProcessGroupNCCL.__module__ = "torch.distributed.distributed_c10d"
    ProcessGroupNCCL.__qualname__ = "ProcessGroupNCCL"
    return ProcessGroupNCCL


def second_stand_in(first: Any) -> type:
    """Return the class that is "nccl" since torch 2.15, derived from `first`, the class before."""

    class ProcessGroupNCCL2(first):  # type: ignore[misc, valid-type]
        """A barrier waited for later orders streams (torch/csrc/distributed/c10d/nccl2: barrierImpl)."""

        later_barriers_stop = False

    ProcessGroupNCCL2.__module__ = first.__module__
    ProcessGroupNCCL2.__qualname__ = "ProcessGroupNCCL2"
    return ProcessGroupNCCL2


def _device(gloo: Any) -> Any:
    """Return the loopback if all ranks are on this machine, whatever its own name resolves to."""
    world = os.environ.get("WORLD_SIZE")
    alone = world is None or world == os.environ.get("LOCAL_WORLD_SIZE", world)
    if alone or os.environ.get("MASTER_ADDR") in _LOOPBACK:
        return gloo.create_device(hostname="127.0.0.1")
    return gloo.create_default_device()


def install(patches: Patches) -> None:
    """Make NCCL available to torch until `patches` are undone."""
    nccl = stand_in()
    patches.set(c10d, "_NCCL_AVAILABLE", True)
    for owner in (c10d, dist, place("ProcessGroup")[0]):
        patches.set(owner, "ProcessGroupNCCL", nccl)
    if hasattr(c10d, "_create_nccl2_process_group"):
        newer = second_stand_in(nccl)
        for name in ("ProcessGroupNCCL2", "ProcessGroupNCCLLazy"):
            for owner in (c10d, dist, place("ProcessGroup")[0]):
                patches.set(owner, name, newer)
    for owner in (c10d, dist.constants):
        patches.set(owner, "default_pg_nccl_timeout", _TIMEOUT)
    _install_groups(patches, nccl)
    _install_factors(patches)
    _install_split(patches)
    _install_shutdown(patches)


_alive: list[Any] = []
"""Backends as Python objects: C++ keeps only its own half, which knows no NCCL."""


def _install_groups(patches: Patches, nccl: type) -> None:
    """Patch `ProcessGroup` so that groups with `nccl` behave as NCCL's."""
    register, get_backend = torch_internals.register_backend, torch_internals.get_backend
    device_types: Any = torch_internals.device_types
    start, end = torch_internals.start_coalescing, torch_internals.end_coalescing

    @wraps(register)
    def _register_backend(self: Any, device: Any, backend_type: Any, backend: Any = None) -> None:
        register(self, device, backend_type, backend)
        if backend is None or torch.device(device).type != "cuda":
            return
        if backend_type == ProcessGroup.BackendType.NCCL or isinstance(backend, nccl):
            _alive.append(backend)
            if _CPU not in device_types.__get__(self):
                register(self, _CPU, backend_type, backend)

    @wraps(get_backend)
    def _get_backend(self: Any, device: Any) -> Any:
        kind = torch.device(device).type
        if kind == "cpu" and not carries_host(self):
            raise no_backend()
        return get_backend(self, device)

    def _device_types(self: Any) -> list[torch.device]:
        types: list[torch.device] = device_types.__get__(self)
        return types if carries_host(self) else [device for device in types if device.type != "cpu"]

    @wraps(start)
    def _start_coalescing(self: Any, device: Any) -> None:
        if not isinstance(get_backend(self, device), nccl):
            start(self, device)
        else:
            local.coalescing += 1

    @wraps(end)
    def _end_coalescing(self: Any, device: Any) -> Any:
        if not isinstance(get_backend(self, device), nccl):
            return end(self, device)
        local.coalescing = max(local.coalescing - 1, 0)
        return finished_work()

    patches.set(*place("register_backend"), _register_backend)
    patches.set(*place("get_backend"), _get_backend)
    patches.set(*place("device_types"), property(_device_types))
    patches.set(*place("start_coalescing"), _start_coalescing)
    patches.set(*place("end_coalescing"), _end_coalescing)


_NCCL_NAMES = ("nccl-lazy", "nccl-legacy", "nccl2")
"""Further names of NCCL backends in torch 2.14 and later."""


def backends(group: Any) -> dict[str, str]:
    """Return the backend per device type, ``{"cuda": "nccl"}`` for any of NCCL's; empty if unknown."""
    config = c10d._world.pg_backend_config.get(group)
    if not config:
        return {}
    pairs = (part.split(":", 1) for part in str(config).split(",") if ":" in part)
    return {kind: "nccl" if name in _NCCL_NAMES else name for kind, name in pairs}


def stops_later(group: Any) -> bool:
    """Whether the host waits in `Work.wait` after an asynchronous barrier of this NCCL group."""
    backend = torch_internals.get_backend(group, torch.device("cuda"))
    return bool(getattr(backend, "later_barriers_stop", True))


def carries_host(group: Any) -> bool:
    """Whether `group` accepts tensors on the host."""
    group_backends = backends(group)
    return not group_backends or "cpu" in group_backends


def finished_work() -> Any:
    """Return a completed work."""
    if FakeWork is not None:
        return FakeWork()
    done: Any = torch.futures.Future()
    done.set_result(None)
    return work_from_future(done)


def no_backend() -> RuntimeError:
    """Return the error of ``ProcessGroup::getBackend`` for host tensors in a group of NCCL alone."""
    return RuntimeError("No backend type associated with device type cpu")


_REDUCING = {"allreduce": 0, "_reduce_scatter_base": 1, "reduce_scatter_single": 1, "reduce_scatter": 1}
"""Methods that take a reduce operation, with the position of the reduced argument."""


def _install_factors(patches: Patches) -> None:
    """Support ``ReduceOp.PREMUL_SUM(factor)``, which gloo lacks: multiply first, then sum."""
    for name, position in _REDUCING.items():
        real = getattr(ProcessGroup, name, None)
        if real is not None:
            patches.set(ProcessGroup, name, _with_factor(real, position))


def _with_factor(real: Any, position: int) -> Any:
    """Return `real` with support for a premultiplied sum of the argument at `position`."""

    @wraps(real)
    def reduce(self: Any, *args: Any, **kwargs: Any) -> Any:
        options: Any = kwargs.get("opts", args[-1] if args else None)
        operation = getattr(options, "reduceOp", None)
        if operation is None or operation != dist.ReduceOp.PREMUL_SUM or len(args) <= position:
            return real(self, *args, **kwargs)
        _, factor = operation.__getstate__()  # `factor` is an attribute since torch 2.13 only
        with torch.no_grad():
            value = args[position]
            if position == 0:  # reduced where it is
                for tensor in value:
                    tensor.mul_(factor)
            else:
                value = _scale(value, factor)
        options.reduceOp = dist.ReduceOp.SUM
        return real(self, *args[:position], value, *args[position + 1 :], **kwargs)

    return reduce


def _scale(value: Any, factor: Any) -> Any:
    return value * factor if isinstance(value, torch.Tensor) else [_scale(item, factor) for item in value]


def _install_split(patches: Patches) -> None:
    """Replace ``split_group`` by a new group of the same ranks."""
    real = getattr(c10d, "split_group", None)
    if real is None:
        return

    @wraps(real)
    def split_group(
        parent_pg: Any = None,
        split_ranks: list[list[int]] | None = None,
        timeout: timedelta | None = None,
        pg_options: Any = None,
        group_desc: str | None = None,
        **other: Any,
    ) -> Any:
        if not split_ranks:
            raise ValueError("split_ranks cannot be None or empty")
        parent = parent_pg or c10d._get_default_group()
        me = dist.get_rank(parent)
        mine = next((ranks for ranks in split_ranks if me in ranks), None)
        if mine is None:
            return None
        return dist.new_group(
            [dist.get_global_rank(parent, rank) for rank in mine],
            timeout=timeout,
            backend=other.get("backend") or dist.get_backend(parent),
            use_local_synchronization=True,
            group_desc=group_desc,
        )

    patches.set_everywhere(c10d, "split_group", split_group)


def _install_shutdown(patches: Patches) -> None:
    """Drop the kept backends when the last group is destroyed."""
    real = c10d.destroy_process_group

    @wraps(real)
    def destroy_process_group(group: Any = None) -> None:
        real(group)
        if not dist.is_initialized():
            _alive.clear()

    patches.set_everywhere(c10d, "destroy_process_group", destroy_process_group)

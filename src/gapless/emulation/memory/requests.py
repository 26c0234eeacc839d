"""`MemoryRecorder`: records a run's requests for the emulated device's memory, in order.

A request is seen when its storage is placed, and its end when that storage is freed: torch keeps a storage's
Python object as long as the storage itself, so a weak reference to it marks the moment. Kinds follow from who
holds a tensor: parameters, gradients and optimizers' state are read off optimizers as they step.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

import torch

from gapless import torch_internals
from gapless.emulation.memory.memory_run import RequestRows, to_memory_run
from gapless.emulation.memory.retention import Retention
from gapless.emulation.memory.unused_graphs import UnusedGraphs
from gapless.emulation.support import stacks
from gapless.emulation.support.later import MAX_TICKS
from gapless.emulation.support.local import local
from gapless.emulation.support.module_paths import ModulePaths
from gapless.emulation.support.places import HOST
from gapless.model.gpus import Gpu
from gapless.model.memory import CONTEXT_BYTES, MemoryRun
from gapless.torch_internals import current_node, free_weak_ref, sequence_number

MAX_REQUESTS = 1 << 20
"""Requests and ends up to which each is kept, some 200 MB: the step that exceeds it is the last in full."""
_USER_FRAMES = 3
"""Frames of the user's own code kept of a stack, counted from the innermost."""
_MAX_FRAMES = 60
"""Frames kept of a stack: bounds the cost of deep recursion."""
_OWN, _LIBRARY, _USER = range(3)
"""Kinds of frames."""
MULTIPLIES = frozenset(
    f"aten::{name}"
    for name in ("mm", "addmm", "bmm", "baddbmm", "addbmm", "addmv", "mv", "dot", "vdot", "_addmm_activation")
)
"""Operators that take a cuBLAS handle, and with it a workspace."""


_IN_PLACE = ("aten::add", "aten::scatter")
"""Operators that backward runs in place on a GPU, but out of place here, where Python and a mode look on."""


def reports_storage_ends() -> bool:
    """Whether this torch reports at once when a storage is freed."""
    ended: list[object] = []
    storage = torch.UntypedStorage(8)
    weak = storage._weak_ref()
    watch = weakref.ref(storage, ended.append)
    tensor = torch.empty(0, dtype=torch.uint8).set_(storage)
    del storage
    early = bool(ended)
    del tensor
    at_once = bool(ended)  # before torch 2.10 only once its address is free
    free_weak_ref(weak)
    return at_once and not early and watch() is None


class _StorageWatch(weakref.ref):  # type: ignore[type-arg]  # to a storage
    __slots__ = ("key",)
    key: int


class MemoryRecorder:
    """Notified of storages by `Placement`, of operators by the modes, and of steps by the marks."""

    def __init__(self, gpu: Gpu, places: bool = True) -> None:
        self.gpu = gpu
        self.places = places  # whether to record source lines
        self.operator = ""
        self.stream = 0
        self.optimizing = False
        self.arriving: tuple[int, ...] | None = None
        self.muted = 0  # > 0 during work that a GPU would not do
        self.loading = False  # `torch.load` is copying to the device
        self.moving = 0  # nested moves of modules to the device
        self.forward_of: Any = None
        self.modules = ModulePaths(self.hold_weights)
        self._rows: dict[int, RequestRows] = {}
        self._live: dict[int, tuple[RequestRows, int]] = {}
        self._later: dict[int, tuple[RequestRows, int]] = {}  # of closed rows: rows and bytes
        self._retained: dict[int, Retention] = {}
        self.unused = UnusedGraphs()
        self._watches: dict[int, _StorageWatch] = {}
        self._frames: dict[int, int] = {}
        self._workspaces: set[tuple[int, int, bool]] = set()
        self._shared: set[int] = set()
        self._process = os.getpid()
        self._tick = 0
        self.step_ends: Callable[[], Sequence[int]] = tuple  # numbers of the marks that end steps
        self.notes: dict[str, None] = {}

    # -- storages ------------------------------------------------------------------------------------

    def record_placement(self, storage: Any, key: int, size: int, index: int) -> None:
        """Record that `storage` of `size` bytes is on device `index` from now on."""
        if self.muted:
            return
        before = self._live.get(key)
        if before is not None:
            if before[0].device == index and before[0].sizes[before[1]] == size:
                return
            self.record_end(key)
        elif key in self._later:
            if self._later[key] == (self._rows.get(index), size):
                return
            self.record_end(key)
        if size <= 0:
            return
        rows = self._rows.get(index)
        if rows is None:
            rows = self._rows[index] = RequestRows(index)
        if rows.closed:
            self._later[key] = rows, size
            rows.add(size)
            self._watch(storage, key)
            return
        kind = ""
        shape = self.arriving
        if self.loading:
            kind = "checkpoint"
        elif shape is not None:
            self.arriving, kind = None, "parameter" if self.moving else "batch"
        elif self.optimizing:
            kind = "optimizer"
        elif local.backward != HOST:
            kind = "backward"
        nodes = -1 if kind or not torch.is_grad_enabled() else sequence_number()
        ident = rows.alloc(size, self._place(), kind, self.stream, nodes)
        if shape is not None and not self.moving and not self.loading:
            rows.batches.append((ident, shape))
        self._live[key] = (rows, ident)
        self._watch(storage, key)

    def _watch(self, storage: Any, key: int) -> None:
        watch = _StorageWatch(storage, self._on_end)
        watch.key = key
        self._watches[key] = watch

    def _on_end(self, watch: weakref.ref[Any]) -> None:
        self.record_end(watch.key)  # type: ignore[attr-defined]  # a _StorageWatch

    def record_end(self, key: int) -> None:
        """Record that the storage with that key has left the device."""
        self._watches.pop(key, None)
        live = self._live.pop(key, None)
        if live is not None:
            live[0].free(live[1])
        later = self._later.pop(key, None)
        if later is not None:
            later[0].add(-later[1])

    def _place(self) -> tuple[Any, ...]:
        """Return operator, stack and module of the current request; in backward the forward call's, if
        known."""
        if not self.places:
            return ("", (), "")
        if local.backward != HOST and not self.optimizing:
            node = current_node()
            if node is not None:
                self.unused.reach(node._sequence_nr())
                forward, module = self.forward_of(node._sequence_nr()) if self.forward_of else ((), "")
                if forward:
                    return (node.name(), forward, module)
        return (self.operator, self._stack(), self.modules.at(sys._getframe(3)))

    def _stack(self) -> stacks.RawStack:
        """Capture the caller's stack up to the third frame of the user's code."""
        frame = sys._getframe(3)
        frame_kinds, codes = self._frames, stacks._codes
        numbers: list[int] = []
        users = 0
        while frame is not None:
            code = frame.f_code
            key = id(code)
            frame_kind = frame_kinds.get(key)
            if frame_kind is None:
                codes.setdefault(key, code)
                frame_kind = frame_kinds[key] = _frame_kind(key, frame.f_lasti)
            if frame_kind != _OWN:
                numbers.append(key)
                numbers.append(frame.f_lasti)
                users += frame_kind == _USER
                if users == _USER_FRAMES or len(numbers) >= 2 * _MAX_FRAMES:
                    break
            frame = frame.f_back  # type: ignore[assignment]
        return tuple(numbers)

    # -- use of storages -------------------------------------------------------------------------------

    def record_use(self, args: Any, kwargs: Any = MappingProxyType({})) -> None:
        """Record that an operator reads or writes these."""
        live = self._live
        for argument in (*args, *kwargs.values()):
            for tensor in argument if type(argument) in (list, tuple) else (argument,):
                if isinstance(tensor, torch.Tensor):
                    try:
                        allocation = live.get(tensor.untyped_storage()._cdata)
                    except (NotImplementedError, RuntimeError):
                        continue
                    if allocation is not None:
                        allocation[0].used[allocation[1]] = len(allocation[0].order)

    def record_operator(self, name: str, index: int, args: Any = ()) -> None:
        """Record that an operator has run on device `index`.

        cuBLAS allocates its workspace once per handle and stream. A thread has its own handle, and on a GPU
        backward runs in a thread of its own.
        """
        self.record_use(args)  # its arguments were needed until it ended
        if name not in MULTIPLIES or self.muted:
            if name in _IN_PLACE and local.backward != HOST:
                self.accumulates(args[0])
            return
        backward = local.backward != HOST
        key = (index, self.stream, backward)
        if key in self._workspaces:
            return
        self._workspaces.add(key)
        rows = self._rows.get(index)
        if rows is None:
            return
        chosen = _chosen_workspace()
        size = self.gpu.workspace if chosen is None else chosen
        if size:
            rows.alloc(size, ("cuBLAS workspace", (), ""), "workspace", self.stream)

    def accumulates(self, before: Any) -> None:
        """Merge a gradient's sum with `before` where a GPU adds in place: nobody else has the sum so far.

        The engine adds out of place here, because Python has seen the sum, and the formula of `max` scatters
        out of place, because a mode is on. torch's own nodes have names that end in a number, and their
        formulas add almost nothing else; additions of a user's own node stay as they are.
        """
        node = current_node()
        if node is None or not node.name()[-1].isdigit() or not isinstance(before, torch.Tensor):
            return
        live = self._live.get(before.untyped_storage()._cdata)
        if live is not None:
            live[0].accumulates(live[1])

    def used_elsewhere(self, tensor: torch.Tensor) -> None:
        """Note ``tensor.record_stream()``: only a GPU knows when the other stream has passed it."""
        self.notes.setdefault(
            "tensors with record_stream() are assumed to be free immediately; on a GPU they stay until the "
            "other stream has passed them"
        )

    def record_empty_cache(self, index: int) -> None:
        """Record ``torch.cuda.empty_cache()``."""
        if index in self._rows:
            self._rows[index].empty()

    def keep_pool(self, index: int, size: int, before: Any = None) -> Any:
        """Record that a pool of captured graphs keeps `size` unused bytes; return a handle for `before`.

        `before` is the last handle of the pool, which is freed.
        """
        if before is not None:
            before[0].free(before[1])
        rows = self._rows.get(index)
        if rows is None or size <= 0:
            return None
        return rows, rows.alloc(size, ("CUDA graph memory pool", (), ""), "workspace", self.stream)

    def cut(self) -> None:
        """Record a mark that may end a step."""
        self._tick += 1
        for rows in self._rows.values():
            rows.cut(self._tick)
            if not rows.closed and (self._tick >= MAX_TICKS or len(rows.order) >= MAX_REQUESTS):
                rows.close()

    def look(self) -> None:
        """Where a step may have ended, look for memory that it has left behind."""
        if not self.places:
            return
        for index, rows in self._rows.items():
            if rows.closed:
                continue
            retention = self._retained.get(index)
            if retention is None:
                retention = self._retained[index] = Retention(rows)
            retention.look(self._live, self.step_ends)

    # -- kinds ------------------------------------------------------------------------------------------

    def set_kind(self, kind: str, tensors: Any, owner: Any = None) -> None:
        """Set the kind of `tensors`, and their module: that of `owner`, or their own."""
        live = self._live
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                try:
                    allocation = live.get(tensor.untyped_storage()._cdata)
                except (NotImplementedError, RuntimeError, ValueError):
                    continue
                if allocation is not None:
                    allocation[0].kinds[allocation[1]] = kind
                    module = self.modules.of(tensor if owner is None else owner)
                    if module:
                        allocation[0].modules[allocation[1]] = module

    def note_move(self, module: torch.nn.Module) -> None:
        """Record that a module has been moved."""
        self.modules.learn(module)
        if any(isinstance(part, torch.nn.RNNBase) for part in module.modules()):
            self.notes.setdefault(
                "recurrent layers run step by step here; on a GPU cuDNN keeps one reserve buffer for all "
                "steps, whose size is not known"
            )

    def hold_weights(self, module: torch.nn.Module) -> None:
        """Mark a model's parameters and buffers as weights, whether or not they are trained."""
        self.set_kind("parameter", [*module.parameters(), *module.buffers()])

    def begin_step(self, optimizer: Any) -> None:
        """Record that an optimizer is about to step: its gradients exist."""
        self.optimizing = True
        for group in optimizer.param_groups:
            self.set_kind("parameter", group["params"])
            for parameter in group["params"]:
                self.set_kind("gradient", (parameter.grad,), parameter)

    def end_step(self, optimizer: Any) -> None:
        """Record that it has stepped: its state exists."""
        self.optimizing = False
        for owner, state in list(optimizer.state.items()):
            if isinstance(state, dict):
                self.set_kind("optimizer-state", state.values(), owner)

    # -- reading -------------------------------------------------------------------------------------

    def runs(self, ends: Sequence[int] = ()) -> tuple[MemoryRun, ...]:
        """Return each device's requests; `ends` are the numbers of the marks that end steps."""
        total = self.gpu.total_memory
        fields = {
            "gpu": self.gpu.name,
            "total_memory": total,
            "limit": total - CONTEXT_BYTES,
        }
        return tuple(
            to_memory_run(
                rows,
                ends,
                self.modules.classes,
                notes=tuple(self.notes),
                settings=_settings(index),
                unused_graphs=self.unused.unused_graphs(rows),
                holders=retention.holders if (retention := self._retained.get(index)) is not None else (),
                checkpoints=retention.checkpoints if retention is not None else (),
                **fields,
            )
            for index, rows in sorted(self._rows.items())
        )


def _frame_kind(key: int, lasti: int) -> int:
    """Return whether a frame is Gapless's, a library's or the user's."""
    line = stacks._resolve_frame(key, lasti)
    if line is None:
        return _OWN
    return _USER if line.is_user else _LIBRARY


def _settings(index: int) -> str:
    """Return this process's allocator settings, and the share of the device that it may use."""
    settings = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    ask = torch_internals.memory_fraction
    try:
        fraction = 1.0 if ask is None else float(ask(index))
    except RuntimeError:  # the emulation is over
        fraction = 1.0
    parts = [settings] if settings else []
    if fraction < 1 and "per_process_memory_fraction" not in settings:
        parts.append(f"per_process_memory_fraction:{fraction:g}")
    return ",".join(parts)


def _chosen_workspace() -> int | None:
    """Return the bytes set by ``CUBLAS_WORKSPACE_CONFIG``; None if it is not set."""
    config = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    if not config:
        return None
    parts = [part.split(":") for part in config.split(":", 1)[-1].replace("::", ":").split(",")]
    flat = [int(word) for part in parts for word in part if word.isdigit()]
    return sum(size * number for size, number in zip(flat[::2], flat[1::2], strict=False)) << 10 or None

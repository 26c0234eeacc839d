"""`DistributedDataParallel`: placement of its C++ reducer's tensors, and the waits of its construction."""

from __future__ import annotations

from contextlib import nullcontext
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist

from gapless import torch_internals
from gapless.emulation.core.core import EmulationCore
from gapless.emulation.support.local import local
from gapless.emulation.support.patches import Patches
from gapless.emulation.support.places import PINNED
from gapless.torch_internals import TorchDispatchMode

Tensor = torch.Tensor

# `Logger::set_runtime_stats_and_log` and `CudaTimer::measureDifference` (reducer_cuda.cpp in the same folder)
_FIRST_TIMED, _TIMED_EVERY = 10, 100
"""Iterations that are timed: the first ten, then every hundredth
(`Reducer::should_collect_runtime_stats`)."""
_TIMER_NOTE = (
    "DistributedDataParallel also waits for its own timing events, in its first ten iterations and in "
    "every hundredth after that: this is not counted"
)


class _ReducerTensors(TorchDispatchMode):
    """Places the tensors that the reducer creates (`torch/csrc/distributed/c10d/reducer.cpp`).

    Buckets are on the parameters' device. The map of locally used parameters is an int32 tensor of zeros on
    the host with an empty twin on the device; on its way there it passes through pinned memory and nothing
    waits, so it counts as pinned.
    """

    def __init__(self, core: EmulationCore, index: int) -> None:
        super().__init__()
        self.core = core
        self.index = index

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        is_new = func._schema.name in ("aten::zeros", "aten::empty")
        if is_new and isinstance(out, Tensor):
            used_map = func._schema.name == "aten::zeros" and out.dtype == torch.int32
            self.core.placement.put(out, PINNED if used_map else self.index)
            memory = self.core.placement.memory
            if memory is not None and not used_map:
                memory.set_kind("communication", (out,))
        return out


def install(core: EmulationCore, patches: Patches) -> None:
    """Wrap the reducer's constructor and the check of parameters' shapes until `patches` are undone."""
    make_reducer: Any = dist.Reducer
    verify: Any = torch_internals.verify_params

    class Reducer(make_reducer):  # type: ignore[misc, valid-type]
        def __init__(self, params: Any, *args: Any, **kwargs: Any) -> None:
            index = self._where = core.device_of(params[0]) if params else -1
            if index < 0:
                super().__init__(params, *args, **kwargs)
                return
            core.note(_TIMER_NOTE)
            with _ReducerTensors(core, index):
                super().__init__(params, *args, **kwargs)
            core.graphs.mark_leaves(index, params)
            self._iterations = 0

        def prepare_for_forward(self) -> None:
            """Count an iteration; DDP's logger has just read the last one's times if it samples."""
            if self._where >= 0:
                done = self._iterations
                is_timed = done > 0 and (done <= _FIRST_TIMED or not done % _TIMED_EVERY)
                if core.graphs.capture is not None and is_timed:
                    core.graphs.refuse_query("DistributedDataParallel's timing of its first iterations")
                self._iterations += 1
            super().prepare_for_forward()

        def _rebuild_buckets(self) -> Any:
            """Place the buckets in the gradients' order, rebuilt after the first backward pass."""
            with _ReducerTensors(core, self._where) if self._where >= 0 else nullcontext():
                return super()._rebuild_buckets()

    Reducer.__name__ = Reducer.__qualname__ = make_reducer.__name__

    @wraps(verify)
    def _verify_params_across_processes(group: Any, params: Any, *args: Any) -> Any:
        if params and core.device_of(params[0]) >= 0:
            _count_verification(core, dist.get_world_size(group))
        local.quiet += 1
        try:
            return verify(group, params, *args)
        finally:
            local.quiet -= 1

    patches.set(dist, "Reducer", Reducer)
    patches.set(*torch_internals.place("verify_params"), _verify_params_across_processes)


def _count_verification(core: EmulationCore, ranks: int) -> None:
    """Record the waits of `verify_params_across_processes` in the same file.

    The number of parameters goes to the device, is gathered and read there once per rank; then the shapes go
    to the device, are broadcast and come back.
    """
    name = "c10d::verify_params_across_processes"
    core.wait(name, "h2d", detail="pageable", waits=2)
    core.wait(name, "read", waits=ranks)
    core.wait(name, "d2h", detail="pageable")

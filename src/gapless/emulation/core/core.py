"""`EmulationCore`: state shared by the parts of the emulated device: placement, waits, the current device."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from gapless import torch_internals, trees
from gapless.emulation.core.forward_calls import ForwardCalls
from gapless.emulation.graphs.state import Graphs
from gapless.emulation.origins.origins import Origins
from gapless.emulation.placement.placement import Placement
from gapless.emulation.races.checker import Checker
from gapless.emulation.races.look import speaks_of_graphs, speaks_of_streams
from gapless.emulation.recording.recorder import WaitRecorder
from gapless.emulation.support import faults, stacks
from gapless.emulation.support.device import Queued
from gapless.emulation.support.identities import Identities
from gapless.emulation.support.later import MAX_TICKS
from gapless.emulation.support.local import local
from gapless.emulation.support.places import HOST, PINNED
from gapless.errors import EmulationDefect
from gapless.model import Mechanism
from gapless.model.event import WaitedTensor
from gapless.model.gpus import Gpu
from gapless.model.programme import Entry
from gapless.model.source import SourceLine
from gapless.torch_internals import current_node, sequence_number

_MAX_ASKERS = 8
"""Lines that ask for GPU properties kept for the report, which names only a few."""
_MAX_TENSORS = 4
"""Tensors recorded of one wait: what is indexed, its indices and what is written."""
_DEBUG_MESSAGE = "called a synchronizing CUDA operation"


class EmulationCore:
    """The state of one emulation; implements `device.Device`."""

    def __init__(
        self, gpu: Gpu, device_count: int, recorder: WaitRecorder, clock: Callable[[], float]
    ) -> None:
        self.gpu = gpu
        self.device_count = device_count
        self.recorder = recorder
        self.placement = Placement()
        self.clock = clock
        self.enabled = True
        self._initialized = False
        self.optimizers: Identities[int] = Identities()
        """Numbers of the optimizers that have stepped; `optimizers_seen` counts them."""
        self.optimizers_seen = 0
        self.optimizers_made = False
        self.trained: Identities[bool] = Identities()
        self._forward_calls: list[ForwardCalls] = []
        self.batches = Batches()
        self.askers: dict[SourceLine, None] = {}
        self.origins = Origins(self.placement.state_of, lambda: self.tick, self.has_values)
        self.values: Any = None  # `dry.GuessedValues`, in a run that is or may become one without values
        self.races = Checker(self.placement.where)
        self.races.log.tick = lambda: min(self.recorder.tick, MAX_TICKS)  # later ticks share one
        self.graphs = Graphs(self)

    @property
    def dry(self) -> bool:
        """Whether the run has no values; a run that may switch to that has them until then."""
        return self.values is not None and bool(self.values.dry)

    @property
    def tick(self) -> int:
        """The number of steps that have ended."""
        return self.recorder.tick

    def has_values(self, tensor: torch.Tensor) -> bool:
        """Whether the memory of a tensor on the host holds its values, which a dry run may leave out."""
        return self.values is None or self.values.record_of(tensor) is None

    # -- devices -----------------------------------------------------------------------------------

    def current_device(self) -> int:
        return local.device

    def set_current_device(self, index: int) -> None:
        local.device = index

    def device_of(self, tensor: torch.Tensor) -> int:
        return self.placement.device_of(tensor)

    def place(self, tensor: torch.Tensor, index: int) -> torch.Tensor:
        if index >= 0 and not self._initialized:
            self._initialize()
        return self.placement.put(tensor, index)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return self.placement.state_of(tensor) == PINNED

    @property
    def used(self) -> bool:
        """Whether anything was ever put on the device."""
        return self._initialized

    def index_of(self, device: torch.device) -> int:
        """Return the index of a user's device, checked as CUDA checks it; `HOST` for the CPU.

        Raises:
            torch.AcceleratorError: there is no such device.
        """
        if device.type != "cuda":
            return HOST
        index = local.device if device.index is None else device.index
        if index >= self.device_count:
            raise invalid_ordinal()
        if not self._initialized or not self.enabled:
            torch_internals.cuda_lazy_init()  # in a forked child this raises, as CUDA does
            self._initialize()
        return index

    def _initialize(self) -> None:
        """Note the first use of the device, which starts the tracking that the script's source asks for."""
        if not self._initialized:
            if speaks_of_streams():
                self.races.follow_all()
            self.graphs.nodes.enabled = speaks_of_graphs()
        self._initialized = True

    def allocated(self, index: int) -> int:
        return self.placement.allocated(index)

    def peak_allocated(self, index: int) -> int:
        return self.placement.peak(index)

    def reset_peak(self, index: int) -> None:
        self.placement.reset_peak(index)

    def note_query(self) -> None:
        """Keep the line that asks which GPU this is, if it is not in torch."""
        if not self.enabled or len(self.askers) >= _MAX_ASKERS:
            return
        line = next((frame for frame in stacks.resolve(stacks.capture()) if frame.library != "torch"), None)
        if line is not None and line.is_user:
            self.askers.setdefault(line)

    def take_freed_bytes(self, index: int) -> int:
        memory, programme = self.placement.memory, self.recorder.programme
        if self.enabled and programme is not None and index == 0 and (memory is None or not memory.places):
            self.placement.notify(programme.note_empty_cache())
        if self.enabled and memory is not None and self.placement.memory is memory:
            memory.record_empty_cache(index)
        return self.placement.take_freed_bytes(index)

    # -- waits -------------------------------------------------------------------------------------

    def wait(
        self,
        operator: str,
        mechanism: Mechanism,
        *,
        call: str = "",
        detail: str = "",
        waits: int = 1,
        nbytes: int = 0,
        basis: str = "",
        batch: bool | None = None,
        about: Sequence[Any] = (),
    ) -> None:
        """Record that the host waits here, unless inside a call that counts as one.

        `about` holds the tensors that are read or copied, beside other arguments.
        """
        if local.quiet or local.fused or not self.enabled or waits <= 0:
            return
        capture = self.graphs.capture
        if capture is not None and capture.applies_here():
            if mechanism == "free":
                return  # the allocator frees nothing during a capture
            raise self._capture_error(operator, mechanism, call or local.call, detail)
        self.races.record_host_wait(operator, mechanism, call)
        if mechanism in ("explicit", "free") and self.graphs.is_entering_capture():
            return
        node = ""
        forward: stacks.RawStack = ()
        if local.scaled is not None and mechanism == "read":
            kind: Any = type(local.scaled)
            detail = detail or fused_form(kind)
        if local.backward != HOST:
            if mechanism == "read" and not call and not local.call and torch.is_anomaly_check_nan_enabled():
                detail = "anomaly" if torch.is_anomaly_enabled() else detail
            current = current_node()
            if current is not None:
                node = current.name()
                forward = self._forward_of(current._sequence_nr())
        site = self.recorder.wait(
            operator,
            mechanism,
            call=call or local.call,
            detail=detail,
            waits=waits,
            nbytes=nbytes,
            node=node,
            forward=forward,
            basis=basis,
            batch=batch,
            depth=1,
        )
        if mechanism in ("read", "d2h", "size"):
            self.origins.note_names(site)
        if about:
            self.origins.note_wait(site, mechanism, detail, about)
            self._note_tensors(site, mechanism, about)
        if mechanism not in ("explicit", "free"):  # torch's debug mode does not see those
            self._heed_debug_mode(waits)

    def _note_tensors(self, site: int, mechanism: Mechanism, about: Sequence[Any]) -> None:
        """Record the tensors on the side from which values come."""
        tensors = (
            WaitedTensor(
                dtype=str(tensor.dtype).removeprefix("torch."),
                shape=tuple(map(int, tensor.shape)),
                needs_gradient=tensor.requires_grad,
            )
            for tensor in trees.tensors(about)
            if not tensor.is_nested and (self.placement.state_of(tensor) >= 0) != (mechanism == "h2d")
        )
        self.recorder.note_tensors(site, tuple(itertools.islice(tensors, _MAX_TENSORS)))

    def _capture_error(self, operator: str, mechanism: Mechanism, call: str, detail: str) -> RuntimeError:
        """Return the error to raise for a wait during a graph capture."""
        stack = stacks.resolve(stacks.capture(2) + local.above)
        site: dict[str, Any] = {
            "operator": operator, "mechanism": mechanism, "call": call, "detail": detail, "stack": stack,
        }  # fmt: skip
        current = current_node() if local.backward != HOST else None
        if current is not None:
            site["node"] = current.name()
            site["forward"] = stacks.resolve(self._forward_of(current._sequence_nr()))
        return self.graphs.wait_error(site)

    # -- memory ------------------------------------------------------------------------------------

    def expect_arrival(self, tensor: torch.Tensor, source: int, target: int) -> None:
        """Note that the storage placed next is that of `tensor`, coming from the host."""
        if not target >= 0 > source:
            return
        shape = tuple(map(int, tensor.shape))
        if self.placement.memory is not None:
            self.placement.memory.arriving = shape
        programme = self.recorder.programme
        if programme is not None and self.enabled:
            programme.record_arrival(str(tensor.dtype).removeprefix("torch."), shape)

    def note_arrival(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note that `tensor` was copied from the device to the host, where its values are visible."""
        return tensor if self.values is None else self.values.fill_arrived(tensor)

    # -- launches ----------------------------------------------------------------------------------

    def record_copy(self, direction: str, nbytes: int, memory: str) -> None:
        """Record a copy between host memory and the device that does not wait."""
        programme = self.recorder.programme
        if programme is not None and self.enabled:
            programme.event(Entry(kind="copy", mechanism=direction, detail=memory, reads=nbytes))

    def record_stream_call(self, kind: Queued, stream: int, event: int = 0, index: int = 0) -> None:
        """Record a stream or event operation."""
        if kind == "stream":
            self.races.set_stream(index, stream)
            if self.placement.memory is not None:
                self.placement.memory.stream = stream
        programme = self.recorder.programme
        if programme is not None and self.enabled:
            programme.record_stream_call(kind, stream, event)

    @staticmethod
    def _heed_debug_mode(waits: int) -> None:
        """Warn of each wait, or raise, according to ``torch.cuda.set_sync_debug_mode``."""
        mode = torch.cuda.get_sync_debug_mode()
        if mode == 1:
            innermost = next(iter(stacks.resolve(stacks.capture())), None)
            if innermost is not None:
                for _ in range(waits):
                    warnings.warn_explicit(_DEBUG_MESSAGE, UserWarning, innermost.file, innermost.line)
        elif mode == 2:
            raise RuntimeError(_DEBUG_MESSAGE)

    def note(self, text: str) -> None:
        self.recorder.note(text)

    def report_defect(self, error: BaseException, action: str) -> EmulationDefect:
        """Return the error to raise where Gapless itself failed at `action`, and note it in the report."""
        defect = faults.make_defect(error, action)
        self.note(str(defect))
        return defect

    # -- from backward to forward ------------------------------------------------------------------

    def created_nodes(self, begin: int) -> None:
        """Note that the current call created the autograd nodes from number `begin` on."""
        calls = local.forward_calls
        if calls is None or calls.owner is not self:
            calls = local.forward_calls = ForwardCalls(self, local.above)
            self._forward_calls.append(calls)
        memory = self.placement.memory
        module = memory.modules.at(sys._getframe(2)) if memory is not None else ""
        if memory is not None and local.backward == HOST:
            memory.unused.note_nodes(begin, sequence_number(), sys._getframe(2))
        calls.add(begin, stacks.gather(), module)
        if self.races.full:
            self.races.record_nodes(begin, sequence_number())

    def _forward_of(self, sequence_number: int) -> stacks.RawStack:
        """Return the stack of the forward call that created the node with that number, or ``()``.

        Numbers count per thread, and a node does not know its thread: if two threads created one of that
        number, no line is better than a possibly wrong one.
        """
        return self._forward_call(sequence_number)[0]

    def _forward_call(self, sequence_number: int) -> tuple[stacks.RawStack, str]:
        """Return that call's stack and module ("" if modules are not recorded)."""
        matches = [call for calls in self._forward_calls if (call := calls.call_of(sequence_number))[0]]
        return matches[0] if len(matches) == 1 else ((), "")


def invalid_ordinal() -> Exception:
    """Return the exception CUDA raises for a device that does not exist."""
    error: Any = getattr(torch, "AcceleratorError", RuntimeError)
    return error(
        "CUDA error: invalid device ordinal\n"
        "GPU device may be out of range, do you have enough GPUs?\n"
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below "
        "might be incorrect.\n"
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
    )


_MAX_STORAGES = 256
"""Storages of past batches that are remembered, beside all those of the last one: older batches are rarely
copied."""


class Batches:
    """The storages of the last batches. A weak reference to each keeps its address from being reused."""

    def __init__(self) -> None:
        self._storages: dict[int, StorageWeakRef] = {}
        self._opaque = False

    def add(self, batch: Any) -> None:
        """Remember the tensors of `batch`, which a DataLoader has returned."""
        tensors = list(trees.tensors(batch))
        for tensor in tensors:
            with contextlib.suppress(NotImplementedError, RuntimeError):  # no storage
                reference = StorageWeakRef(tensor.untyped_storage())
                self._storages[reference.cdata] = reference
        while len(self._storages) > max(_MAX_STORAGES, len(tensors)):
            del self._storages[next(iter(self._storages))]
        self._opaque |= not tensors

    def holds(self, tensor: Tensor) -> bool | None:
        """Whether `tensor` is a batch or part of one; None if a batch had no visible tensors."""
        try:
            address = tensor.untyped_storage()._cdata
        except (NotImplementedError, RuntimeError):
            return None
        if address in self._storages:
            return True
        return None if self._opaque else False


_SCALING_ATTRIBUTE = "_step_supports_amp_scaling"
"""Attribute set by an optimizer that takes a GradScaler's overflow flag as a tensor."""


@lru_cache(maxsize=64)
def fused_form(kind: type) -> str:
    """Return ``AdamW, fused=False`` for an optimizer whose fused form skips on the GPU, else its name.

    >>> import torch
    >>> fused_form(torch.optim.AdamW), fused_form(torch.optim.RMSprop)
    ('AdamW, fused=False', 'RMSprop')
    """
    skips = any(_SCALING_ATTRIBUTE in getattr(_init_code(base), "co_names", ()) for base in kind.__mro__)
    return f"{kind.__name__}, fused=False" if skips and _takes_fused(kind) else kind.__name__


def _init_code(kind: type) -> object:
    """Return the code object of the class's own ``__init__``, if any."""
    return getattr(vars(kind).get("__init__"), "__code__", None)


def _takes_fused(kind: type) -> bool:
    """Whether ``kind(..., fused=True)`` reaches a class with that parameter."""
    for base in kind.__mro__:
        if "__init__" in vars(base):
            parameters = inspect.signature(base.__init__).parameters  # type: ignore[misc]
            if "fused" in parameters:
                return True
            if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters.values()):
                return False
    return False

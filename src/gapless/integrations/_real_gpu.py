"""Count what waits for a real GPU, by torch's own synchronization debug mode."""

from __future__ import annotations

import contextlib
import threading
import warnings
from typing import Any

import msgspec
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode, resolve_name

from gapless.emulation.emulator import environment
from gapless.emulation.recording.recorder import WaitRecorder
from gapless.emulation.support.patches import Patches
from gapless.model import Mechanism, Session
from gapless.torch_internals import TorchDispatchMode

_WORDS = "synchronizing CUDA operation"
_MECHANISMS: dict[str, Mechanism] = {
    "aten::_local_scalar_dense": "read",
    "aten::equal": "read",
    "aten::is_nonzero": "read",
    "aten::nonzero": "size",
    "aten::index": "size",
    "aten::index_put_": "size",
    "aten::_index_put_impl_": "size",
    "aten::masked_select": "size",
    "aten::_unique2": "size",
    "aten::repeat_interleave": "size",
    "aten::bincount": "size",
    "aten::_to_copy": "d2h",
    "aten::copy_": "d2h",
}


class _OperatorTracker(TorchDispatchMode):
    """Tracks the operator running in this thread."""

    def __init__(self) -> None:
        super().__init__()
        self.running = threading.local()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = getattr(self.running, "name", "")
        self.running.name = func._schema.name
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.running.name = before


class _FunctionTracker(TorchFunctionMode):
    """Tracks the torch function that Python called in this thread."""

    def __init__(self) -> None:
        super().__init__()
        self.running = threading.local()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.running.name = func
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.running.name = None

    def name(self) -> str:
        """Return the function's name, such as ``Tensor.item``, or ""."""
        name = resolve_name(getattr(self.running, "name", None)) or ""
        return str(name).removeprefix("torch.")


class RealWatch:
    """A real GPU with torch's synchronization debug mode set to warnings until `end`.

    Explicit waits (``torch.cuda.synchronize()``, of a stream, of an event), which that mode does not report,
    are counted where they are called.
    """

    def __init__(self) -> None:
        self._recorder = WaitRecorder()
        self._names = _OperatorTracker()
        self._calls = _FunctionTracker()
        self._ending = contextlib.ExitStack()
        self._ending.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("always", message=f".*{_WORDS}")
        self._show_warning = warnings.showwarning
        warnings.showwarning = self._handle_warning
        self._ending.callback(torch.cuda.set_sync_debug_mode, torch.cuda.get_sync_debug_mode())
        torch.cuda.set_sync_debug_mode("warn")
        patches = Patches()
        self._ending.callback(patches.undo)
        for owner, kind in (
            (torch.cuda, "Device"),
            (torch.cuda.Stream, "Stream"),
            (torch.cuda.Event, "Event"),
        ):
            patches.set(owner, "synchronize", self._count_calls(owner.synchronize, f"cuda{kind}Synchronize"))
        self._ending.callback(register_optimizer_step_post_hook(self._mark_step).remove)
        self._ending.enter_context(self._calls)
        self._ending.enter_context(self._names)

    def count_from_here(self) -> None:
        self._recorder = WaitRecorder()

    def session(self) -> Session:
        recorder = self._recorder
        name = torch.cuda.get_device_name()
        here = environment(name, unused=not torch.cuda.is_initialized())
        return Session(
            environment=msgspec.structs.replace(here, emulated=False),
            sites=recorder.sites(),
            events=recorder.events(),
            later=recorder.later(),
            marks=recorder.marks(),
            duration=recorder.duration(),
        )

    def end(self) -> None:
        self._ending.close()

    def _handle_warning(self, message: Any, *args: Any, **kwargs: Any) -> None:
        if _WORDS not in str(message):
            self._show_warning(message, *args, **kwargs)
            return
        name = getattr(self._names.running, "name", "") or "a synchronizing CUDA operation"
        self._recorder.wait(name, _MECHANISMS.get(name, "values"), call=self._calls.name(), depth=2)

    def _count_calls(self, function: Any, name: str) -> Any:
        def synchronize(*args: Any, **kwargs: Any) -> Any:
            self._recorder.wait(name, "explicit", call=f"torch.cuda.{function.__qualname__}", depth=1)
            return function(*args, **kwargs)

        return synchronize

    def _mark_step(self, optimizer: Any, *_: Any) -> None:
        self._recorder.mark("optimizer", f"{type(optimizer).__name__}.step", depth=2)

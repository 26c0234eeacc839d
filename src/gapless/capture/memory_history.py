"""`memory_snapshot`: record a real GPU's memory requests, with the modules that make them, in a file."""

from __future__ import annotations

import os
import pickle
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch

from gapless import torch_internals
from gapless.emulation.support.module_paths import ModulePaths, display_names
from gapless.errors import UnreadableInput, UsageError
from gapless.files.output import write_whole
from gapless.model.memory import MODULE

MAX_ENTRIES = 200_000
"""Requests that are kept, the latest ones: each takes some kilobytes of the host's memory."""


class memory_snapshot:  # noqa: N801 - used like a function
    """Write this block's GPU memory requests to `path`: when memory runs out, else at its end.

    ``gapless memory PATH`` and PyTorch's memory viewer read the file. Begin before the model is created:
    older memory has no line. Recording costs some microseconds per request. If torch supports it (2.10 and
    later), each request names the module that makes it.

    Args:
        path: the file; with `ranked` the `RANK` of several processes is put before its ending.
        stacks: ``"python"`` for Python's frames alone, ``"all"`` for those of C++, too, which tell operators
            and backward.
        entries: the number of requests and returns that are kept; of more, the last.
        modules: note modules.

    Example::

        with gapless.memory_snapshot("memory.pickle"):
            train()

    Raises:
        UsageError: there is no GPU here, or this torch cannot record.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] = "memory.pickle",
        *,
        stacks: Literal["python", "all"] = "all",
        entries: int = MAX_ENTRIES,
        modules: bool = True,
        ranked: bool = True,
    ) -> None:
        self.path = Path(os.path.abspath(path))
        self.path = _path_of_rank(self.path) if ranked else self.path
        self.saved = False
        self.out_of_memory = False
        self._options = {"stacks": stacks, "max_entries": entries}
        self._modules = _Modules() if modules and torch_internals.set_memory_metadata is not None else None
        self._on = False

    def start(self) -> memory_snapshot:
        """Start recording."""
        if not torch.cuda.is_available():
            raise UsageError(
                "a snapshot needs a GPU, and there is none here: gapless check --memory SCRIPT records "
                "one without a GPU"
            )
        torch_internals.record_memory_history("all", **self._options)
        self._on = True
        _register_callback(self._on_out_of_memory)
        if self._modules is not None:
            self._modules.start()
        return self

    def stop(self, *, save: bool = True) -> None:
        """Stop and write the file, unless running out of memory already wrote it. Stopping twice does
        nothing."""
        if not self._on:
            return
        self._on = False
        _watching.remove(self._on_out_of_memory)
        if self._modules is not None:
            self._modules.stop()
        try:
            if save:
                self._write()
        finally:
            torch_internals.record_memory_history(None)

    def __enter__(self) -> memory_snapshot:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # What the failed request found is in the file already, and gone from the device by now.
        kept = self.saved and isinstance(error, torch.cuda.OutOfMemoryError)
        self.stop(save=not kept)

    def _on_out_of_memory(self) -> None:
        """Write the file before the failed request raises."""
        self.out_of_memory = True
        self._write()

    def _write(self) -> None:
        """Write the file; a full disk only warns and does not fail the script."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(pickle.dumps(torch_internals.memory_snapshot()), self.path)
        except (OSError, UnreadableInput) as error:
            warnings.warn(f"the memory snapshot could not be saved: {error}", stacklevel=3)
        else:
            self.saved = True


_watching: list[Callable[[], None]] = []
_attached: list[bool] = []


def _register_callback(callback: Callable[[], None]) -> None:
    """Call `callback` before a request fails; torch cannot unregister observers, so one serves all."""
    _watching.append(callback)
    if torch_internals.watch_out_of_memory is None or _attached:
        return
    torch_internals.watch_out_of_memory(_out_of_memory)
    _attached.append(True)


def _out_of_memory(device: int, size: int, total: int, free: int) -> None:
    for callback in tuple(_watching):
        with suppress(Exception):  # torch must come to raise what the script expects
            callback()


class _Modules:
    """Notes the running module as metadata of each request."""

    def __init__(self) -> None:
        self._paths = ModulePaths()
        self._hooks: list[Any] = []
        self._outer: list[str] = []

    def start(self) -> None:
        from torch.nn.modules import module

        self._hooks = [
            module.register_module_forward_pre_hook(self._enter),
            module.register_module_forward_hook(self._leave, always_call=True),
        ]

    def stop(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        torch_internals.set_memory_metadata("")

    def _enter(self, module: Any, args: Any) -> None:
        self._outer.append(torch_internals.get_memory_metadata())
        path = self._paths.at(sys._getframe(1))
        torch_internals.set_memory_metadata(MODULE + display_names([path])[path])

    def _leave(self, module: Any, args: Any, out: Any) -> None:
        if self._outer:
            torch_internals.set_memory_metadata(self._outer.pop())


def _path_of_rank(path: Path) -> Path:
    """Return a separate path for each of several processes."""
    world, rank = os.environ.get("WORLD_SIZE", "1"), os.environ.get("RANK", "0")
    several = world.isdigit() and int(world) > 1 and rank.isdigit()
    return path.with_name(f"{path.stem}.rank{rank}{path.suffix}") if several else path

"""`memory_snapshot`: what a run on a real GPU asks of its memory, with the modules that ask, in a file."""

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

MOST = 200_000
"""Requests that are kept, of more the last: each takes some kilobytes of the host's memory."""


class memory_snapshot:  # noqa: N801 - used like a function
    """Write what this block asks of the GPU's memory to `path`: when it runs out of memory, else at its end.

    ``gapless memory PATH`` and PyTorch's memory viewer read the file. Begin before the model is made: what is
    older has no line. Recording costs some microseconds for each request. Where torch can note it (2.10 and
    later), each request has the path of the module that makes it.

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
        entries: int = MOST,
        modules: bool = True,
        ranked: bool = True,
    ) -> None:
        self.path = Path(os.path.abspath(path))
        self.path = _of_rank(self.path) if ranked else self.path
        self.saved = False
        self.out_of_memory = False
        self._options = {"stacks": stacks, "max_entries": entries}
        self._modules = _Modules() if modules and torch_internals.set_memory_metadata is not None else None
        self._on = False

    def start(self) -> memory_snapshot:
        """Begin to record."""
        if not torch.cuda.is_available():
            raise UsageError(
                "a snapshot needs a GPU, and there is none here: gapless check --memory SCRIPT records "
                "one without a GPU"
            )
        torch_internals.record_memory_history("all", **self._options)
        self._on = True
        _watch(self._failed)
        if self._modules is not None:
            self._modules.start()
        return self

    def stop(self, *, save: bool = True) -> None:
        """End, and write the file, unless the block ends with what ran out of memory. Twice does nothing."""
        if not self._on:
            return
        self._on = False
        _watching.remove(self._failed)
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

    def _failed(self) -> None:
        """The device has no memory for a request, which is about to raise."""
        self.out_of_memory = True
        self._write()

    def _write(self) -> None:
        """The script does not fail for a full disk."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(pickle.dumps(torch_internals.memory_snapshot()), self.path)
        except (OSError, UnreadableInput) as error:
            warnings.warn(f"the memory snapshot could not be saved: {error}", stacklevel=3)
        else:
            self.saved = True


_watching: list[Callable[[], None]] = []
_attached: list[bool] = []


def _watch(told: Callable[[], None]) -> None:
    """Have `told` called before a request fails. torch takes no observer back: there is one for all."""
    _watching.append(told)
    if torch_internals.watch_out_of_memory is None or _attached:
        return
    torch_internals.watch_out_of_memory(_out_of_memory)
    _attached.append(True)


def _out_of_memory(device: int, size: int, total: int, free: int) -> None:
    for told in tuple(_watching):
        with suppress(Exception):  # torch must come to raise what the script expects
            told()


class _Modules:
    """Notes the module that is running as metadata of each request."""

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


def _of_rank(path: Path) -> Path:
    """A file for each process of several."""
    world, rank = os.environ.get("WORLD_SIZE", "1"), os.environ.get("RANK", "0")
    several = world.isdigit() and int(world) > 1 and rank.isdigit()
    return path.with_name(f"{path.stem}.rank{rank}{path.suffix}") if several else path

"""Find results of compiled CUDA graphs that are used after the next replay overwrote them.

For PyTorch a call of compiled code begins a new round, which may reuse all memory of the last one, unless a
backward pass of the last one is pending; with `cudagraph_mark_step_begin` each mark begins a round.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from gapless import trees
from gapless.emulation.support import stacks

_MAX_PLACES = 20
"""Most places recorded per target: enough for a report."""


class GraphResult:
    """The `at`-th tensor that a call returned, by its storage."""

    def __init__(self, target: Any, at: int, storage: Any) -> None:
        self._target, self.at = weakref.ref(target), at
        self.storage = weakref.ref(storage)

    def read(self) -> None:
        """Record the current place: the result is used after a later call overwrote it."""
        target = self._target()
        if target is not None and len(target.overwritten) < _MAX_PLACES:
            target.overwritten[self.at, stacks.resolve(stacks.capture(1))] = None


class GraphReplays:
    """The rounds of all compiled CUDA graphs; `watch` is called once results may be overwritten."""

    def __init__(self) -> None:
        self.watch: Callable[[], None] = lambda: None
        self.spoiled: dict[int, GraphResult] = {}
        self._now: list[GraphResult] = []
        self._marks = 0
        self._round = 0
        self._pending = False

    def mark(self) -> None:
        """Stand in for ``torch.compiler.cudagraph_mark_step_begin``."""
        self._marks += 1

    def begin(self) -> None:
        """Begin a new round, if this call of a captured callable begins one."""
        if self._marks == self._round if self._marks else self._pending:
            return
        self._round, self._pending = self._marks, False
        living = [(result.storage(), result) for result in (*self.spoiled.values(), *self._now)]
        self.spoiled = {storage._cdata: result for storage, result in living if storage is not None}
        self._now.clear()
        if self.spoiled:
            self.watch()

    def end(self, target: Any, arguments: Any, returned: Any) -> None:
        """Record the tensors that a call `returned`, except those of `arguments`."""
        own = {
            storage._cdata for tensor in trees.tensors(arguments) if (storage := _storage(tensor)) is not None
        }
        for at, tensor in enumerate(trees.tensors(returned)):
            storage = _storage(tensor)
            if storage is None or storage._cdata in own:
                continue
            self.spoiled.pop(storage._cdata, None)
            self._now.append(GraphResult(target, at, storage))
            if tensor.grad_fn is not None:
                self._pending = True
                tensor.grad_fn.register_prehook(self._backward)

    def _backward(self, _: Any) -> None:
        self._pending = False

    def check_use(self, args: Any, kwargs: dict[str, Any]) -> None:
        """Check the arguments of an operator for overwritten results."""
        for tensor in trees.tensors((args, kwargs)):
            storage = _storage(tensor)
            kept = self.spoiled.get(storage._cdata) if storage is not None else None
            if kept is not None and kept.storage() is storage:
                kept.read()


def _storage(tensor: torch.Tensor) -> Any:
    try:
        return tensor.untyped_storage() if tensor.layout is torch.strided else None
    except (AttributeError, NotImplementedError, RuntimeError):
        return None

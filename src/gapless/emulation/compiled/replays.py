"""Results of compiled CUDA graphs, which the next replay overwrites: those that are used after it.

PyTorch takes a call of compiled code for a new round, in which all memory of the last one may be used again,
unless a backward pass of the last one is still to come; with `cudagraph_mark_step_begin` each mark begins
one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from gapless import trees
from gapless.emulation.support import stacks

_MOST = 20


class Kept:
    """One result of a call: the `at`-th tensor that it returned. `read` has the places where it was used."""

    def __init__(self, target: Any, at: int, storage: Any) -> None:
        self._target, self.at = weakref.ref(target), at
        self.there = weakref.ref(storage)

    def read(self) -> None:
        """It is used after its memory was given to a later call."""
        target = self._target()
        if target is not None and len(target.overwritten) < _MOST:
            target.overwritten[self.at, stacks.resolve(stacks.capture(1))] = None


class Replays:
    """The rounds of all compiled CUDA graphs; `watch` is told when there is something to look at."""

    def __init__(self) -> None:
        self.watch: Callable[[], None] = lambda: None
        self.spoiled: dict[int, Kept] = {}
        self._now: list[Kept] = []
        self._marks = 0
        self._round = 0
        self._pending = False

    def mark(self) -> None:
        """``torch.compiler.cudagraph_mark_step_begin()``."""
        self._marks += 1

    def begin(self) -> None:
        """A compiled callable with CUDA graphs is called."""
        if self._marks == self._round if self._marks else self._pending:
            return
        self._round, self._pending = self._marks, False
        there = [(one.there(), one) for one in (*self.spoiled.values(), *self._now)]
        self.spoiled = {storage._cdata: one for storage, one in there if storage is not None}
        self._now.clear()
        if self.spoiled:
            self.watch()

    def end(self, target: Any, given: Any, returned: Any) -> None:
        """It has returned; what it was `given` is not of the graphs' memory."""
        own = {storage._cdata for one in trees.tensors(given) if (storage := _storage(one)) is not None}
        for at, one in enumerate(trees.tensors(returned)):
            storage = _storage(one)
            if storage is None or storage._cdata in own:
                continue
            self.spoiled.pop(storage._cdata, None)
            self._now.append(Kept(target, at, storage))
            if one.grad_fn is not None:
                self._pending = True
                one.grad_fn.register_prehook(self._backward)

    def _backward(self, _: Any) -> None:
        self._pending = False

    def used(self, args: Any, kwargs: dict[str, Any]) -> None:
        """An operator is about to use these."""
        for one in trees.tensors((args, kwargs)):
            storage = _storage(one)
            kept = self.spoiled.get(storage._cdata) if storage is not None else None
            if kept is not None and kept.there() is storage:
                kept.read()


def _storage(tensor: torch.Tensor) -> Any:
    try:
        return tensor.untyped_storage() if tensor.layout is torch.strided else None
    except (AttributeError, NotImplementedError, RuntimeError):
        return None

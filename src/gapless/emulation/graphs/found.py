"""The faults that were found, each at its place once; and what operators do between captures and replays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gapless import trees
from gapless.emulation.graphs.slots import storage_of
from gapless.emulation.races.ranges import Range
from gapless.emulation.races.ranges import of as range_of
from gapless.emulation.support import stacks
from gapless.model.event import Site
from gapless.model.graph_fault import FaultKind, GraphFault

Tensor = torch.Tensor
_MOST = 200
_OVERWRITING = frozenset({"aten::zero_", "aten::fill_", "aten::copy_"})
"""They write into their first argument, and do not read it."""


class Found:
    """Faults by their places; `watches` are those of the graphs that there are."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self._faults: dict[Any, GraphFault] = {}
        self._inputs: dict[int, list[Any]] = {}
        self._outputs: dict[int, Any] = {}
        self.watches: list[Any] = []
        self.listeners: list[Callable[[GraphFault], None]] = []

    def faults(self) -> tuple[GraphFault, ...]:
        """All of them, in the order in which they were first met."""
        return tuple(self._faults.values())

    def clear(self) -> None:
        """Forget what was found."""
        self._faults.clear()

    def add(
        self,
        kind: FaultKind,
        what: str,
        told: tuple[str, ...],
        capture: stacks.RawStack = (),
        stack: stacks.RawStack | None = None,
        said: str = "",
        site: Site | None = None,
    ) -> None:
        """Something is wrong at this place, or at `stack`."""
        raw = stacks.capture(1) if stack is None else stack
        place = stacks.resolve(raw) if site is None else site.stack
        line = next((one for one in place if one.is_user), None)
        key = (kind, what, line.file if line else "", line.line if line else 0)
        known = self._faults.get(key)
        if known is None and len(self._faults) >= _MOST:
            return
        times = 1 if known is None else known.times + 1
        found = self._faults[key] = GraphFault(
            kind=kind, what=what, said=said, told=told if known is None else known.told, stack=place,
            capture=stacks.resolve(capture) if capture else (), site=site, times=times,
        )  # fmt: skip
        if known is None:
            for listener in tuple(self.listeners):
                listener(found)

    def refused(self, capture: Any, said: str, what: str, site: Site) -> None:
        """CUDA, or torch, does not do `what` in a capture."""
        self.add("refused", what, (), capture.place if capture is not None else (), said=said, site=site)

    def uncaptured(self, capture: Any, what: str) -> None:
        """`what` ran on a stream that is not captured."""
        told = (
            "it ran on a stream that is not part of the capture: once, during the recording, and in no replay"
        )
        self.add("not-replayed", what, (told,), capture.place)

    # -- between replays -----------------------------------------------------------------------------

    def captured(self, watch: Any) -> None:
        """A graph has been captured: look at what is done to its inputs and outputs from now on."""
        self.watches.append(watch)
        for key, used in watch.inputs.items():
            self._inputs.setdefault(key, []).append(used)
        for key, output in watch.outputs.items():
            self._outputs[key] = output

    def forget(self, watch: Any) -> None:
        """A graph is no more."""
        self.watches = [one for one in self.watches if one is not watch]
        self._inputs = {
            key: left
            for key, all_of_them in self._inputs.items()
            if (left := [one for one in all_of_them if one.watch is not watch])
        }
        self._outputs = {key: one for key, one in self._outputs.items() if one.watch is not watch}

    def operator(self, plan: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """An operator is about to run outside of a capture."""
        for at, value in (*enumerate(args), *kwargs.items()):
            if isinstance(value, Tensor):
                self._touched(plan, value, at in plan.written, at == 0)
            elif isinstance(value, (list, tuple)) and value and isinstance(value[0], Tensor):
                for one in value:
                    self._touched(plan, one, at in plan.written, False)
                self._twice(plan, value)

    def _touched(self, plan: Any, tensor: Tensor, writes: bool, first: bool) -> None:
        storage = storage_of(tensor)
        if storage is None:
            return
        key = storage._cdata
        if writes:
            for used in self._inputs.get(key, ()):
                if used.slot.there() is storage:
                    used.wrote(range_of(tensor) if tensor.nbytes != used.slot.nbytes else None)
        output = self._outputs.get(key)
        if output is None or output.slot.there() is not storage:
            return
        if writes and first and plan.name in _OVERWRITING:
            output.own = True
        elif plan.reads and not output.own:
            output.read(plan.name)

    def _twice(self, plan: Any, tensors: Any) -> None:
        """The same output stands several times in a list: it was kept without being copied."""
        if not plan.reads:
            return
        seen: dict[tuple[int, Range], int] = {}
        for one in tensors:
            storage = storage_of(one)
            output = None if storage is None else self._outputs.get(storage._cdata)
            if output is not None and output.slot.there() is storage and output.watch.graph_replays() > 1:
                key = (storage._cdata, range_of(one))
                seen[key] = seen.get(key, 0) + 1
                if seen[key] == 3:  # a tensor beside itself may be meant
                    output.kept(plan.name, len(tensors))

    def replayed(self, keys: Any) -> None:
        """A replay has written these storages: for other graphs they are inputs with new values."""
        for key in keys:
            for used in self._inputs.get(key, ()):
                used.wrote(None)
            output = self._outputs.get(key)
            if output is not None:
                output.own = False


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of a plain container."""
    return [one for one in (trees.parts(value) or ()) if isinstance(one, Tensor)]

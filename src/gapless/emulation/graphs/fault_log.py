"""Collects graph faults, one per place, and checks operators that run between captures and replays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gapless import trees
from gapless.emulation.graphs.slots import storage_of
from gapless.emulation.races.ranges import ByteRange
from gapless.emulation.races.ranges import of as range_of
from gapless.emulation.support import stacks
from gapless.model.event import Site
from gapless.model.graph_fault import FaultKind, GraphFault

Tensor = torch.Tensor
_MAX_FAULTS = 200
"""Faults kept; nobody reads more."""

"""Faults kept; nobody reads more."""

_OVERWRITING_OPERATORS = frozenset({"aten::zero_", "aten::fill_", "aten::copy_"})
"""Operators that write their first argument without reading it."""


class GraphFaults:
    """The faults of one emulation by place; `watches` are those of the live graphs."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self._faults: dict[Any, GraphFault] = {}
        self._inputs: dict[int, list[Any]] = {}
        self._outputs: dict[int, Any] = {}
        self.watches: list[Any] = []
        self.listeners: list[Callable[[GraphFault], None]] = []

    def all(self) -> tuple[GraphFault, ...]:
        """Return all faults in the order of their first occurrence."""
        return tuple(self._faults.values())

    def clear(self) -> None:
        """Drop all faults."""
        self._faults.clear()

    def add(
        self,
        kind: FaultKind,
        subject: str,
        evidence: tuple[str, ...],
        capture: stacks.RawStack = (),
        stack: stacks.RawStack | None = None,
        said: str = "",
        site: Site | None = None,
    ) -> None:
        """Add or count a fault at `stack`, by default the running place, and notify listeners of new ones."""
        raw = stacks.capture(1) if stack is None else stack
        place = stacks.resolve(raw) if site is None else site.stack
        line = next((frame for frame in place if frame.is_user), None)
        key = (kind, subject, line.file if line else "", line.line if line else 0)
        earlier = self._faults.get(key)
        if earlier is None and len(self._faults) >= _MAX_FAULTS:
            return
        times = 1 if earlier is None else earlier.times + 1
        fault = self._faults[key] = GraphFault(
            kind=kind, what=subject, said=said, told=evidence if earlier is None else earlier.told,
            stack=place, capture=stacks.resolve(capture) if capture else (), site=site, times=times,
        )  # fmt: skip
        if earlier is None:
            for listener in tuple(self.listeners):
                listener(fault)

    def add_refusal(self, capture: Any, said: str, subject: str, site: Site) -> None:
        """Add the fault that CUDA or torch refused `subject` in a capture with the message `said`."""
        self.add("refused", subject, (), capture.place if capture is not None else (), said=said, site=site)

    def add_outside_capture(self, capture: Any, operator: str) -> None:
        """Add the fault that `operator` ran on a stream that is not captured."""
        evidence = (
            "it ran on a stream that is not part of the capture: once, during the recording, and in no replay"
        )
        self.add("not-replayed", operator, (evidence,), capture.place)

    # -- between replays -----------------------------------------------------------------------------

    def add_watch(self, watch: Any) -> None:
        """Check uses of the inputs and outputs of a newly captured graph from now on."""
        self.watches.append(watch)
        for key, used in watch.inputs.items():
            self._inputs.setdefault(key, []).append(used)
        for key, output in watch.outputs.items():
            self._outputs[key] = output

    def remove_watch(self, watch: Any) -> None:
        """Stop checking a graph that was deleted or reset."""
        self.watches = [kept for kept in self.watches if kept is not watch]
        self._inputs = {
            key: left
            for key, inputs in self._inputs.items()
            if (left := [used for used in inputs if used.watch is not watch])
        }
        self._outputs = {key: output for key, output in self._outputs.items() if output.watch is not watch}

    def check_operator(self, plan: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Check the arguments of an operator about to run outside of a capture."""
        for at, value in (*enumerate(args), *kwargs.items()):
            if isinstance(value, Tensor):
                self._check_tensor(plan, value, at in plan.written, at == 0)
            elif isinstance(value, (list, tuple)) and value and isinstance(value[0], Tensor):
                for tensor in value:
                    self._check_tensor(plan, tensor, at in plan.written, False)
                self._check_list(plan, value)

    def _check_tensor(self, plan: Any, tensor: Tensor, writes: bool, first: bool) -> None:
        storage = storage_of(tensor)
        if storage is None:
            return
        key = storage._cdata
        if writes:
            for used in self._inputs.get(key, ()):
                if used.slot.storage() is storage:
                    used.record_write(range_of(tensor) if tensor.nbytes != used.slot.nbytes else None)
        output = self._outputs.get(key)
        if output is None or output.slot.storage() is not storage:
            return
        if writes and first and plan.name in _OVERWRITING_OPERATORS:
            output.is_overwritten = True
        elif plan.reads and not output.is_overwritten:
            output.check_read(plan.name)

    def _check_list(self, plan: Any, tensors: Any) -> None:
        """Report an output that occurs three times in a list: it was kept without a copy."""
        if not plan.reads:
            return
        counts: dict[tuple[int, ByteRange], int] = {}
        for tensor in tensors:
            storage = storage_of(tensor)
            output = None if storage is None else self._outputs.get(storage._cdata)
            if output is not None and output.slot.storage() is storage and output.watch.graph_replays() > 1:
                key = (storage._cdata, range_of(tensor))
                counts[key] = counts.get(key, 0) + 1
                if counts[key] == 3:  # two may be intended
                    output.report_repeats(plan.name, len(tensors))

    def mark_written(self, keys: Any) -> None:
        """Record that a replay wrote these storages: inputs of other graphs have new values."""
        for key in keys:
            for used in self._inputs.get(key, ()):
                used.record_write(None)
            output = self._outputs.get(key)
            if output is not None:
                output.is_overwritten = False


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors directly in a plain container."""
    return [part for part in (trees.children(value) or ()) if isinstance(part, Tensor)]

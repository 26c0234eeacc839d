"""`Tape`: the launches that a capture recorded, and how they run again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from gapless import trees
from gapless.emulation.graphs.slots import GraphSlot, View, bytes_of, storage_of
from gapless.torch_internals import DisableTorchDispatch, DisableTorchFunction

Tensor = torch.Tensor


class Constant(NamedTuple):
    """A CPU scalar passed to a kernel: replays use the value it had in the capture."""

    value: Tensor
    original: Any
    """A weak reference to the tensor, to check whether its value changes later."""


class Step(NamedTuple):
    """One launch: a call of `run` that returned `out`; `View` and `Constant` take the place of tensors.

    `name` is that of the operator or kernel; "" for a step of the host.
    """

    run: Callable[..., Any]
    args: Any
    kwargs: Any
    out: Any
    name: str


class Tape:
    """The launches of one capture in order, and the storages that they use."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.slots: list[GraphSlot] = []
        self.numbers: list[float] = []
        """The Python numbers among the arguments."""
        self._by_storage: dict[int, GraphSlot] = {}
        self._last: dict[int, list[int]] = {}

    # -- recording -----------------------------------------------------------------------------------

    def slot(self, storage: Any, is_new: bool, index: int) -> GraphSlot:
        """Return the slot of `storage`, creating one for a storage not met before."""
        existing = self._by_storage.get(storage._cdata)
        if existing is not None and existing.storage() is storage:
            return existing
        new = self._by_storage[storage._cdata] = GraphSlot(len(self.slots), storage, is_new, index)
        self.slots.append(new)
        return new

    def find(self, storage: Any) -> GraphSlot | None:
        """Return the slot of `storage` if the tape uses it."""
        slot = self._by_storage.get(storage._cdata)
        return slot if slot is not None and slot.storage() is storage else None

    def add(self, run: Callable[..., Any], args: Any, kwargs: Any, out: Any, name: str) -> None:
        """Record a launch, with arguments from `replace_tensors`."""
        self.steps.append(Step(run, args, kwargs, out, name))

    def replace_tensors(self, value: Any, change: Callable[[Tensor], Any]) -> Any:
        """Return `value` with `change(tensor)` in place of each tensor, recording its numbers."""
        return trees.map_tensors(value, change, self._record_number)

    def _record_number(self, value: Any) -> Any:
        if type(value) in (int, float):
            self.numbers.append(value)
        return value

    # -- running again -------------------------------------------------------------------------------

    def finish(self) -> None:
        """End recording: compute after which step each temporary storage is no longer needed."""
        for number, step in enumerate(self.steps):
            for view in views((step.args, step.kwargs, step.out)):
                self._last.setdefault(view.slot.number, [0])[0] = number
        ends: dict[int, list[int]] = {}
        for slot, (number,) in self._last.items():
            ends.setdefault(number, []).append(slot)
        self._last = ends
        self._by_storage = {}

    def run(self, placed: Callable[[Any, int], None]) -> None:
        """Run all steps again; `placed(storage, index)` is called for each new temporary storage."""
        temporary: dict[int, Any] = {}

        def storage(slot: GraphSlot) -> Any:
            existing = slot.storage()
            if existing is None:
                existing = temporary.get(slot.number)
            if existing is None:
                existing = temporary[slot.number] = _new_storage(slot.nbytes)
                placed(existing, slot.index)
            return existing

        def tensor(value: Any) -> Any:
            if isinstance(value, View):
                return value.at(storage(value.slot))
            return value.value if isinstance(value, Constant) else value

        for number, step in enumerate(self.steps):
            out = step.run(*_with_tensors(step.args, tensor), **_with_tensors(step.kwargs, tensor))
            self._store_results(step.out, out, temporary, placed)
            for slot in self._last.get(number, ()):
                temporary.pop(slot, None)

    def _store_results(
        self, recorded: Any, out: Any, temporary: dict[int, Any], placed: Callable[[Any, int], None]
    ) -> None:
        """Copy new results into the storages of the captured ones that still exist."""
        for old, new in zip(_tensors_and_placeholders(recorded), trees.tensors(out), strict=False):
            if not isinstance(old, View) or not old.slot.is_new:
                continue
            fresh, existing = storage_of(new), old.slot.storage()
            if fresh is None or existing is fresh or temporary.get(old.slot.number) is fresh:
                continue
            if existing is None:
                temporary[old.slot.number] = fresh
                placed(fresh, old.slot.index)
                continue
            with DisableTorchDispatch(), DisableTorchFunction():
                if fresh.nbytes() == existing.nbytes():
                    bytes_of(existing).copy_(bytes_of(fresh))
                else:
                    old.at(existing).copy_(new)


def _new_storage(nbytes: int) -> Any:
    with DisableTorchDispatch(), DisableTorchFunction():
        return torch.empty(nbytes, dtype=torch.uint8, device=torch.device("cpu")).untyped_storage()


def _with_tensors(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return arguments with `change` applied to each `View` and `Constant` in them."""
    if isinstance(value, (View, Constant)):
        return change(value)
    held = trees.children(value)
    return value if held is None else trees.rebuild(value, [_with_tensors(part, change) for part in held])


def _tensors_and_placeholders(value: Any) -> Iterator[Any]:
    """Yield tensors, views and constants in `value`, in the order of `trees.tensors`."""
    if isinstance(value, (View, Constant, Tensor)):
        yield value
        return
    for part in trees.children(value) or ():
        yield from _tensors_and_placeholders(part)


def views(value: Any) -> Iterator[View]:
    """Yield the views in `value`."""
    return (leaf for leaf in _tensors_and_placeholders(value) if isinstance(leaf, View))


def constants(steps: list[Step]) -> Iterator[Constant]:
    """Yield the CPU scalars that the steps recorded."""
    for step in steps:
        yield from (
            leaf for leaf in _tensors_and_placeholders((step.args, step.kwargs)) if isinstance(leaf, Constant)
        )

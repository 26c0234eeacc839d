"""`Tape`: what a capture recorded, and how it runs again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from gapless import trees
from gapless.emulation.graphs.slots import Slot, View, bytes_of, storage_of
from gapless.torch_internals import DisableTorchDispatch, DisableTorchFunction

Tensor = torch.Tensor


class Constant(NamedTuple):
    """A number in the host's memory that went along with a launch: replays use the value it had then."""

    value: Tensor
    original: Any
    """A weak reference to the tensor, to see whether it has another value later."""


class Step(NamedTuple):
    """One launch: `run` of these arguments, in which `View` and `Constant` stand for tensors, gave `out`.

    `name` is what the operator or kernel is called; "": it is none, and what it does is the host's.
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
        self.slots: list[Slot] = []
        self.numbers: list[float] = []
        """The Python numbers among the arguments."""
        self._known: dict[int, Slot] = {}
        self._last: dict[int, list[int]] = {}

    # -- recording -----------------------------------------------------------------------------------

    def slot(self, storage: Any, made: bool, index: int) -> Slot:
        """The slot of `storage`; a new one where it was never seen, or is another at the same address."""
        known = self._known.get(storage._cdata)
        if known is not None and known.there() is storage:
            return known
        found = self._known[storage._cdata] = Slot(len(self.slots), storage, made, index)
        self.slots.append(found)
        return found

    def find(self, storage: Any) -> Slot | None:
        """The slot of `storage`, if it is in the record."""
        known = self._known.get(storage._cdata)
        return known if known is not None and known.there() is storage else None

    def add(self, run: Callable[..., Any], args: Any, kwargs: Any, out: Any, name: str) -> None:
        """Record a launch; the arguments are as `replaced` gives them."""
        self.steps.append(Step(run, args, kwargs, out, name))

    def replaced(self, value: Any, change: Callable[[Tensor], Any]) -> Any:
        """`value` with `change` of its tensors in their places."""
        return trees.mapped(value, change, self._other)

    def _other(self, value: Any) -> Any:
        if type(value) in (int, float):
            self.numbers.append(value)
        return value

    # -- running again -------------------------------------------------------------------------------

    def finish(self) -> None:
        """The capture is over: find out after which step each temporary storage is not needed."""
        for number, step in enumerate(self.steps):
            for view in views((step.args, step.kwargs, step.out)):
                self._last.setdefault(view.slot.number, [0])[0] = number
        ends: dict[int, list[int]] = {}
        for slot, (number,) in self._last.items():
            ends.setdefault(number, []).append(slot)
        self._last = ends
        self._known = {}

    def run(self, placed: Callable[[Any, int], None]) -> None:
        """Run all of it again. `placed` is told of temporary storages and where they are."""
        made: dict[int, Any] = {}

        def storage(slot: Slot) -> Any:
            found = slot.there()
            if found is None:
                found = made.get(slot.number)
            if found is None:
                found = made[slot.number] = _fresh(slot.nbytes)
                placed(found, slot.index)
            return found

        def tensor(value: Any) -> Any:
            if isinstance(value, View):
                return value.at(storage(value.slot))
            return value.value if isinstance(value, Constant) else value

        for number, step in enumerate(self.steps):
            out = step.run(*_filled(step.args, tensor), **_filled(step.kwargs, tensor))
            self._keep(step.out, out, made, placed)
            for slot in self._last.get(number, ()):
                made.pop(slot, None)

    def _keep(
        self, recorded: Any, out: Any, made: dict[int, Any], placed: Callable[[Any, int], None]
    ) -> None:
        """New results go where those of the capture are, as long as somebody has them."""
        for old, new in zip(_leaves(recorded), trees.tensors(out), strict=False):
            if not isinstance(old, View) or not old.slot.made:
                continue
            fresh, there = storage_of(new), old.slot.there()
            if fresh is None or there is fresh or made.get(old.slot.number) is fresh:
                continue
            if there is None:
                made[old.slot.number] = fresh
                placed(fresh, old.slot.index)
                continue
            with DisableTorchDispatch(), DisableTorchFunction():
                if fresh.nbytes() == there.nbytes():
                    bytes_of(there).copy_(bytes_of(fresh))
                else:
                    old.at(there).copy_(new)


def _fresh(nbytes: int) -> Any:
    with DisableTorchDispatch(), DisableTorchFunction():
        return torch.empty(nbytes, dtype=torch.uint8, device=torch.device("cpu")).untyped_storage()


def _filled(value: Any, change: Callable[[Any], Any]) -> Any:
    """Arguments with the tensors that stand for themselves again."""
    if isinstance(value, (View, Constant)):
        return change(value)
    held = trees.parts(value)
    return value if held is None else trees.rebuilt(value, [_filled(one, change) for one in held])


def _leaves(value: Any) -> Iterator[Any]:
    """What stands for tensors in `value`, in the order of `trees.tensors`."""
    if isinstance(value, (View, Constant, Tensor)):
        yield value
        return
    for one in trees.parts(value) or ():
        yield from _leaves(one)


def views(value: Any) -> Iterator[View]:
    """The views in `value`."""
    return (one for one in _leaves(value) if isinstance(one, View))


def constants(steps: list[Step]) -> Iterator[Constant]:
    """The numbers in the host's memory that the steps took along."""
    for step in steps:
        yield from (one for one in _leaves((step.args, step.kwargs)) if isinstance(one, Constant))

"""`HostWork`: side effects of Python and the CPU in a capture, which no replay repeats."""

from __future__ import annotations

import random
import sys
import weakref
from types import FrameType
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from gapless import trees
from gapless.emulation.graphs.input_names import user_frames, user_instances
from gapless.emulation.graphs.slots import storage_of
from gapless.emulation.support import stacks

_MAX_NUMBERS = 2_000
"""Numbers compared before and after a capture: bounds the search in large programs."""

_MAX_CONTAINER_LENGTH = 64
"""Longer lists and dicts are data, not counters."""

NumberKey = tuple[str, int, Any]
"""The script's name for a number, the id of the object that holds it, and its key there."""


class HostWork:
    """Records what the host does while a capture is under way.

    `frames` are the user's running ones, `modules` the called ones, `optimizers` those that stepped; `drew`
    says that random numbers were drawn on the CPU.
    """

    def __init__(self, core: Any) -> None:
        self._core = core
        self.drew = False
        self.frames: list[FrameType] = []
        self.modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.optimizers: list[Any] = []
        self.numbers: dict[str, float] = {}
        self._hook: Any = None
        self._before: dict[NumberKey, float] = {}
        self._random: Any = None
        self._new_storages: set[int] = set()
        self._side_effects: list[tuple[str, str, stacks.RawStack]] = []

    def begin(self) -> None:
        """Remember numbers and random states at the begin of the capture."""
        self.frames = user_frames()
        if self.frames:
            self.numbers = {
                name: value
                for name, value in stacks.variables(self.frames[0]).items()
                if type(value) in (int, float)
            }
        self._before = _numbers(self.frames)
        self._random = _random_states()
        self._hook = register_module_forward_pre_hook(self._record_module)

    def _record_module(self, module: nn.Module, args: Any) -> None:
        self.modules.add(module)

    def operator(self, plan: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Record an operator of the user's code that drew or wrote on the host."""
        raw = stacks.capture(2)
        line = next((frame for frame in stacks.resolve(raw)[:1]), None)
        if plan.draws:
            self.drew = True
        if line is None or not line.is_user:
            return  # a library's own bookkeeping
        if plan.draws:
            self._side_effects.append(("draws", plan.name, raw))
        for at, value in (*enumerate(args), *kwargs.items()):
            for tensor in trees.tensors(value) if at in plan.written else ():
                storage = storage_of(tensor)
                if storage is not None and storage._cdata not in self._new_storages:
                    self._side_effects.append(("writes", plan.name, raw))

    def record_results(self, out: Any) -> None:
        """Remember the storages that a host operator created: writes into them are no side effects."""
        for tensor in trees.tensors(out):
            storage = storage_of(tensor)
            if storage is not None:
                self._new_storages.add(storage._cdata)

    def end(self, capture: Any) -> None:
        """Record numbers and random states that changed during the capture."""
        self._hook.remove()
        after = _numbers(self.frames)
        place = capture.place
        for (name, owner, key), value in self._before.items():
            now = after.get((name, owner, key), value)
            if now != value:
                self._side_effects.append(("number", f"{name}\n{value:g}\n{now:g}", place))
        for name, before, state in zip(
            ("random", "numpy.random"), self._random, _random_states(), strict=True
        ):
            if before != state:
                self._side_effects.append(("draws", name, place))

    def forget(self) -> None:
        """Release references to the script's objects."""
        self.frames, self.optimizers = [], []
        self.modules.clear()

    def report(self, watch: Any) -> None:
        """Report the side effects of a successful capture, which replays lack."""
        self.frames = []
        for kind, subject, place in self._side_effects:
            if kind == "number":
                name, before, now = subject.split("\n")
                evidence = (
                    f"`{name}` changed from {before} to {now} in the capture; replays leave it unchanged"
                )
                watch.faults.add("not-replayed", name, (evidence,), watch.place, place)
            elif kind == "draws":
                evidence = f"{subject} drew a random number in the capture: replays keep using that one"
                watch.faults.add("frozen", subject, (evidence,), watch.place, place)
            else:
                evidence = f"{subject} wrote to a tensor in CPU memory in the capture; replays do not"
                watch.faults.add("not-replayed", subject, (evidence,), watch.place, place)


def _numbers(frames: list[FrameType]) -> dict[NumberKey, float]:
    """Return numbers in the user's objects, lists and modules; not local variables, which count loops."""
    numbers: dict[NumberKey, float] = {}
    for frame in frames:
        own = stacks.variables(frame)
        for scope in (own, frame.f_globals):
            for name, value in list(scope.items()):
                if scope is frame.f_globals and own is not scope and type(value) in (int, float):
                    _add(numbers, name, id(scope), name, value)
                if type(value) in (list, dict) and len(value) <= _MAX_CONTAINER_LENGTH:
                    _add_container(numbers, name, value)
            for name, owner in user_instances(scope):
                parts = owner.named_modules() if isinstance(owner, nn.Module) else [("", owner)]
                for path, part in parts:
                    full = f"{name}.{path}" if path else name
                    for attribute, value in list(vars(part).items()):
                        if type(value) in (int, float) and not attribute.startswith("__"):
                            _add(numbers, f"{full}.{attribute}", id(part), attribute, value)
                        elif type(value) in (list, dict) and len(value) <= _MAX_CONTAINER_LENGTH:
                            _add_container(numbers, f"{full}.{attribute}", value)
                if len(numbers) > _MAX_NUMBERS:
                    return numbers
    return numbers


def _add_container(numbers: dict[NumberKey, float], name: str, value: Any) -> None:
    for key, item in list(value.items()) if type(value) is dict else enumerate(value):
        if type(item) in (int, float) and isinstance(key, (int, str)):
            _add(numbers, f"{name}[{key!r}]", id(value), key, item)


def _add(numbers: dict[NumberKey, float], name: str, owner: int, key: Any, value: float) -> None:
    numbers[name, owner, key] = value


def _random_states() -> tuple[Any, Any]:
    numpy = sys.modules.get("numpy")
    state = numpy.random.get_state() if numpy is not None else None
    own = None if state is None else (state[0], state[1].tobytes(), *state[2:])
    return random.getstate(), own

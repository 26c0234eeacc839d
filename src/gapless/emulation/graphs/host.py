"""`HostWork`: what Python and the CPU do in a capture, which no replay does again."""

from __future__ import annotations

import random
import sys
import weakref
from types import FrameType
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from gapless import trees
from gapless.emulation.graphs.bindings import own_instances, user_frames, variables
from gapless.emulation.graphs.slots import storage_of
from gapless.emulation.support import stacks

_MOST = 2_000
_SMALL = 64
Place = tuple[str, int, Any]
"""How the script calls it, the identity of what holds it, and the key there."""


class HostWork:
    """Looks at the host while a capture is under way.

    `frames` are the user's that run, `modules` those that were called, `optimizers` those that stepped;
    `drew` says that random numbers were drawn on the CPU.
    """

    def __init__(self, core: Any) -> None:
        self._core = core
        self.drew = False
        self.frames: list[FrameType] = []
        self.modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.optimizers: list[Any] = []
        self.numbers: dict[str, float] = {}
        self._hook: Any = None
        self._before: dict[Place, float] = {}
        self._random: Any = None
        self._made: set[int] = set()
        self._done: list[tuple[str, str, stacks.RawStack]] = []

    def begin(self) -> None:
        """The capture begins."""
        self.frames = user_frames()
        if self.frames:
            self.numbers = {
                name: value
                for name, value in variables(self.frames[0]).items()
                if type(value) in (int, float)
            }
        self._before = _numbers(self.frames)
        self._random = _random_states()
        self._hook = register_module_forward_pre_hook(self._called)

    def _called(self, module: nn.Module, args: Any) -> None:
        self.modules.add(module)

    def operator(self, plan: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """An operator has run on the host."""
        raw = stacks.capture(2)
        line = next((one for one in stacks.resolve(raw)[:1]), None)
        if plan.draws:
            self.drew = True
        if line is None or not line.is_user:
            return  # a library's own books
        if plan.draws:
            self._done.append(("draws", plan.name, raw))
        for at, value in (*enumerate(args), *kwargs.items()):
            for one in trees.tensors(value) if at in plan.written else ():
                storage = storage_of(one)
                if storage is not None and storage._cdata not in self._made:
                    self._done.append(("writes", plan.name, raw))

    def made(self, out: Any) -> None:
        """A host operator has made these: what is written into them is nobody else's business."""
        for one in trees.tensors(out):
            storage = storage_of(one)
            if storage is not None:
                self._made.add(storage._cdata)

    def end(self, capture: Any) -> None:
        """The capture is over."""
        self._hook.remove()
        after = _numbers(self.frames)
        place = capture.place
        for (name, owner, key), value in self._before.items():
            now = after.get((name, owner, key), value)
            if now != value:
                self._done.append(("number", f"{name}\n{value:g}\n{now:g}", place))
        for name, before, state in zip(
            ("random", "numpy.random"), self._random, _random_states(), strict=True
        ):
            if before != state:
                self._done.append(("draws", name, place))

    def forget(self) -> None:
        """Let go of what is the script's own."""
        self.frames, self.optimizers = [], []
        self.modules.clear()

    def tell(self, watch: Any) -> None:
        """The capture has succeeded: what only it did is not in replays."""
        self.frames = []
        for kind, what, place in self._done:
            if kind == "number":
                name, before, now = what.split("\n")
                told = f"`{name}` changed from {before} to {now} in the capture; replays leave it unchanged"
                watch.found.add("not-replayed", name, (told,), watch.place, place)
            elif kind == "draws":
                told = f"{what} drew a random number in the capture: replays keep using that one"
                watch.found.add("frozen", what, (told,), watch.place, place)
            else:
                told = f"{what} wrote to a tensor in CPU memory in the capture; replays do not"
                watch.found.add("not-replayed", what, (told,), watch.place, place)


def _numbers(frames: list[FrameType]) -> dict[Place, float]:
    """Numbers in the user's own objects, lists and modules; not in local variables, which loops count in."""
    found: dict[Place, float] = {}
    for frame in frames:
        own = variables(frame)
        for scope in (own, frame.f_globals):
            for name, value in list(scope.items()):
                if scope is frame.f_globals and own is not scope and type(value) in (int, float):
                    _keep(found, name, id(scope), name, value)
                if type(value) in (list, dict) and len(value) <= _SMALL:
                    _of_container(found, name, value)
            for name, owner in own_instances(scope):
                parts = owner.named_modules() if isinstance(owner, nn.Module) else [("", owner)]
                for path, part in parts:
                    full = f"{name}.{path}" if path else name
                    for attribute, value in list(vars(part).items()):
                        if type(value) in (int, float) and not attribute.startswith("__"):
                            _keep(found, f"{full}.{attribute}", id(part), attribute, value)
                        elif type(value) in (list, dict) and len(value) <= _SMALL:
                            _of_container(found, f"{full}.{attribute}", value)
                if len(found) > _MOST:
                    return found
    return found


def _of_container(found: dict[Place, float], name: str, value: Any) -> None:
    for key, one in list(value.items()) if type(value) is dict else enumerate(value):
        if type(one) in (int, float) and isinstance(key, (int, str)):
            _keep(found, f"{name}[{key!r}]", id(value), key, one)


def _keep(found: dict[Place, float], name: str, owner: int, key: Any, value: float) -> None:
    found[name, owner, key] = value


def _random_states() -> tuple[Any, Any]:
    numpy = sys.modules.get("numpy")
    state = numpy.random.get_state() if numpy is not None else None
    own = None if state is None else (state[0], state[1].tobytes(), *state[2:])
    return random.getstate(), own

"""The names under which the script has a graph's inputs, and what stands there at a replay."""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

import torch
from torch import nn

from gapless.emulation.graphs.slots import Slot, storage_of
from gapless.emulation.support import stacks

Tensor = torch.Tensor
_MOST_FRAMES = 12
_MISSING = object()


def user_frames() -> list[FrameType]:
    """The frames of the user's own code that are running, innermost first."""
    found: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < _MOST_FRAMES:
        file = frame.f_code.co_filename
        if not stacks.library_of(file) and not stacks.is_own(file) and not file.startswith("<frozen"):
            found.append(frame)
        frame = frame.f_back
    return found


def torch_frames() -> Iterator[FrameType]:
    """The running frames of torch between here and the user's own code, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        library = stacks.library_of(file)
        if not library and not file.startswith("<"):
            return
        if library == "torch":
            yield frame
        frame = frame.f_back


def variables(frame: FrameType) -> dict[str, Any]:
    """The variables of a frame.

    Before Python 3.13 a function's frame keeps the dict that is asked for, and so whatever was in its
    variables when somebody asked: it is emptied again.
    """
    held = frame.f_locals
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return held  # of a module or a class: these are the variables themselves
    found = dict(held)
    if sys.version_info < (3, 13):
        held.clear()
    return found


def own_instances(scope: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The objects of the user's own classes in `scope`, with their names."""
    for name, value in list(scope.items()):
        if is_users(type(value)) and isinstance(getattr(value, "__dict__", None), dict):
            yield name, value


def is_users(kind: type) -> bool:
    """Whether the class is written in the user's own code."""
    module = sys.modules.get(kind.__module__)
    if kind.__module__ == "__main__":
        return True
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and not stacks.library_of(file) and not stacks.is_own(file)


class Bound:
    """A name that was bound to an input when the capture ended: a variable of a function or a module, or an
    attribute of an object of the user's."""

    def __init__(self, name: str, used: Any, tensor: Tensor, code: Any, owner: Any, attribute: str) -> None:
        self.name = name
        self.used = used
        self.slot: Slot = used.slot
        self._form = (tensor.shape, tensor.dtype)
        self._code = code
        self._owner = owner
        self._attribute = attribute

    def now(self, frames: list[FrameType]) -> Any:
        """What the name is bound to; `_MISSING` where that cannot be told."""
        if self._owner is not None:
            owner = self._owner()
            return _MISSING if owner is None else vars(owner).get(self._attribute, _MISSING)
        for frame in frames:
            if frame.f_code is self._code:
                return variables(frame).get(self._attribute, _MISSING)
        return _MISSING

    def other(self, frames: list[FrameType]) -> bool:
        """Whether it is bound to another tensor of the same form."""
        value = self.now(frames)
        if not isinstance(value, Tensor) or (value.shape, value.dtype) != self._form:
            return False
        return storage_of(value) is not self.slot.there()


class Bindings:
    """Names of the inputs in `frames`; `inputs` are the graph's, by the keys of their storages."""

    def __init__(self, frames: list[FrameType], inputs: Mapping[int, Any]) -> None:
        self._bound: list[Bound] = []
        self._names: dict[int, str] = {}
        self._inputs = inputs
        for frame in frames:
            own = variables(frame)
            for name, value in list(own.items()):
                self._add(name, value, frame.f_code, None, name)
            for name, owner in own_instances(own):
                if isinstance(owner, nn.Module) or not _refers(owner):
                    continue
                for attribute, value in list(vars(owner).items()):
                    self._add(f"{name}.{attribute}", value, None, weakref.ref(owner), attribute)

    def _add(self, name: str, value: Any, code: Any, owner: Any, attribute: str) -> None:
        if not isinstance(value, Tensor) or isinstance(value, nn.Parameter):
            return
        storage = storage_of(value)
        used = None if storage is None else self._inputs.get(storage._cdata)
        if used is not None:
            self._names.setdefault(used.slot.number, f"`{name}`")
            self._bound.append(Bound(name, used, value, code, owner, attribute))

    def name(self, slot: Slot) -> str:
        """How the script calls the input, in backquotes; "" where it has no name for it."""
        return self._names.get(slot.number, "")

    def changed(self, watch: Any, frames: list[FrameType]) -> set[int]:
        """Find names that got another tensor, where nothing was copied into the input; gives its slots."""
        found = set()
        for bound in self._bound:
            if bound.used.writes or bound.slot.written or not bound.other(frames):
                continue
            told = (
                f"`{bound.name}` is now another tensor, and nothing was copied into the one that the graph "
                "reads since its last replay"
            )
            found.add(bound.slot.number)
            watch.found.add("rebound", bound.name, (told,), watch.place)
        return found


def _refers(owner: Any) -> bool:
    try:
        weakref.ref(owner)
    except TypeError:
        return False
    return True

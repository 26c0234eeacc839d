"""The script's names for a graph's inputs, and whether they are bound to other tensors at a replay."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

import torch
from torch import nn

from gapless.emulation.graphs.slots import GraphSlot, storage_of
from gapless.emulation.support import stacks

Tensor = torch.Tensor
_MAX_FRAMES = 12
"""User frames searched for names: enough for a training loop, and cheap at each replay."""

_MISSING = object()


def user_frames() -> list[FrameType]:
    """Return the running frames of the user's own code, innermost first."""
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(frames) < _MAX_FRAMES:
        file = frame.f_code.co_filename
        if not stacks.library_of(file) and not stacks.is_own(file) and not file.startswith("<frozen"):
            frames.append(frame)
        frame = frame.f_back
    return frames


def torch_frames() -> Iterator[FrameType]:
    """Yield the running frames of torch between here and the user's own code, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        library = stacks.library_of(file)
        if not library and not file.startswith("<"):
            return
        if library == "torch":
            yield frame
        frame = frame.f_back


def user_instances(scope: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield name and object of each instance of a user's class in `scope`."""
    for name, value in list(scope.items()):
        if is_user_class(type(value)) and isinstance(getattr(value, "__dict__", None), dict):
            yield name, value


def is_user_class(kind: type) -> bool:
    """Whether class `kind` is defined in the user's own code."""
    module = sys.modules.get(kind.__module__)
    if kind.__module__ == "__main__":
        return True
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and not stacks.library_of(file) and not stacks.is_own(file)


class InputName:
    """A name bound to a graph input when the capture ended: a variable of a function or module, or an
    attribute of a user's object."""

    def __init__(self, name: str, used: Any, tensor: Tensor, code: Any, owner: Any, attribute: str) -> None:
        self.name = name
        self.used = used
        self.slot: GraphSlot = used.slot
        self._form = (tensor.shape, tensor.dtype)
        self._code = code
        self._owner = owner
        self._attribute = attribute

    def current_value(self, frames: list[FrameType]) -> Any:
        """Return what the name is bound to now; `_MISSING` if it cannot be looked up."""
        if self._owner is not None:
            owner = self._owner()
            return _MISSING if owner is None else vars(owner).get(self._attribute, _MISSING)
        for frame in frames:
            if frame.f_code is self._code:
                return stacks.variables(frame).get(self._attribute, _MISSING)
        return _MISSING

    def is_rebound(self, frames: list[FrameType]) -> bool:
        """Whether the name is now bound to another tensor of the same shape and dtype."""
        value = self.current_value(frames)
        if not isinstance(value, Tensor) or (value.shape, value.dtype) != self._form:
            return False
        return storage_of(value) is not self.slot.storage()


class InputNames:
    """The names in `frames` of a graph's `inputs`, which are keyed by their storages."""

    def __init__(self, frames: list[FrameType], inputs: Mapping[int, Any]) -> None:
        self._bound: list[InputName] = []
        self._names: dict[int, str] = {}
        self._inputs = inputs
        for frame in frames:
            own = stacks.variables(frame)
            for name, value in list(own.items()):
                self._add(name, value, frame.f_code, None, name)
            for name, owner in user_instances(own):
                if isinstance(owner, nn.Module) or not _is_weakly_referable(owner):
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
            self._bound.append(InputName(name, used, value, code, owner, attribute))

    def name(self, slot: GraphSlot) -> str:
        """Return the script's name for the input in backquotes; "" if it has none."""
        return self._names.get(slot.number, "")

    def find_rebound(self, watch: Any, frames: list[FrameType]) -> set[int]:
        """Report names rebound to another tensor without a copy into the input; return their slot numbers."""
        slots = set()
        for bound in self._bound:
            if bound.used.writes or bound.slot.is_written or not bound.is_rebound(frames):
                continue
            evidence = (
                f"`{bound.name}` is now another tensor, and nothing was copied into the one that the graph "
                "reads since its last replay"
            )
            slots.add(bound.slot.number)
            watch.faults.add("rebound", bound.name, (evidence,), watch.place)
        return slots


def _is_weakly_referable(owner: Any) -> bool:
    try:
        weakref.ref(owner)
    except TypeError:
        return False
    return True

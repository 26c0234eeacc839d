"""Lists and dictionaries that compiled code reads besides its arguments: what was in them at each call.

Compilers guard on their length, their keys and the plain values in them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from gapless.emulation.compiled.copies import Copies, Held
from gapless.emulation.compiled.reach import NOTHING, Reached, content
from gapless.emulation.compiled.signatures import signature

_KINDS = (list, dict, set, deque)
_MOST = 32
"""So many of them are followed, and so many entries of one are looked at: more would be felt at each call."""
_OWN = frozenset(vars(torch.nn.Module()))


class Containers:
    """Those in cells, globals and objects that were `reached`, and in attributes of the modules."""

    def __init__(self, found: Reached, copies: Copies) -> None:
        self._device_of = copies.device_of
        attributes = (
            (module, name)
            for module in dict.fromkeys(one for root in found.modules for one in root.modules())
            for name in vars(module)
            if name not in _OWN
        )
        places = [
            *(Place(cell, "") for cell in found.cells),
            *(Place(owned(owner, copies), name) for owner, name in (*found.names, *attributes)),
        ]
        self._found = [place for place in places if type(place()) in _KINDS][:_MOST]

    def copied(self, copy: Callable[[Any], Any]) -> Containers:
        """The same containers of what `copy` makes of their owners."""
        other = Containers.__new__(Containers)
        other._device_of = self._device_of
        other._found = [Place(again(place.owner, copy), place.name) for place in self._found]
        return other

    def key(self) -> tuple[Any, ...]:
        """What tells their contents of now from others."""
        return tuple(self._signature(get()) for get in self._found)

    def state(self, keep: Callable[[Any], Any]) -> tuple[Any, ...]:
        """Their contents of now; `keep` copies one entry."""
        return tuple(_contents(get(), keep) for get in self._found)

    def put(self, state: tuple[Any, ...], made: Callable[[Any], Any]) -> None:
        """Make their contents what they were at `state`, where they differ; `made` makes an entry anew."""
        for get, kept in zip(self._found, state, strict=True):
            now = get()
            if kept is None or type(now) is not type(kept):
                continue
            then = _contents(kept, made)
            if self._signature(then) != self._signature(now):
                with suppress(Exception):  # anybody's objects are asked whether they are equal
                    now.clear()
                    now.extend(then) if isinstance(now, list | deque) else now.update(then)

    def _signature(self, value: Any) -> Any:
        if type(value) not in _KINDS or len(value) > _MOST:
            return type(value), len(value) if type(value) in _KINDS else 0
        return signature(value, self._device_of)


def _contents(value: Any, change: Callable[[Any], Any]) -> Any:
    """A container of its own with the same entries, changed; None for a large one."""
    if type(value) not in _KINDS or len(value) > _MOST:
        return None
    if type(value) is dict:
        return {name: change(one) for name, one in value.items()}
    return type(value)(map(change, value))


@dataclass(frozen=True)
class Place:
    """Where a value is: in a cell, under a name of a module's globals, or an attribute of an object."""

    owner: Any
    name: str

    def __call__(self) -> Any:
        return content(self.owner) if not self.name else names_of(self.owner).get(self.name)


def owned(owner: Any, copies: Copies) -> Any:
    """`owner` of names held weakly, if it is no dictionary of a module's globals."""
    try:
        return owner if type(owner) is dict else copies.held(owner)
    except TypeError:  # no weak reference to it can be had
        return {}


def names_of(owner: Any) -> dict[str, Any]:
    """The names of an owner and their values; none where it has ended."""
    if isinstance(owner, Held):
        value = owner()
        return {} if value is NOTHING else vars(value)
    return owner  # type: ignore[no-any-return]


def again(owner: Any, copy: Callable[[Any], Any]) -> Any:
    """What stands for an owner of names, or a cell, among copies."""
    if isinstance(owner, Held):
        return owner if owner() is NOTHING else Held.of(copy(owner))
    return owner if type(owner) is dict else copy(owner)

"""Record the contents of lists and dictionaries that compiled code reads besides its arguments.

Compilers guard on their length, their keys and the plain values in them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from gapless.emulation.compiled.copies import Copies, HeldObject
from gapless.emulation.compiled.reach import NOTHING, Reached, content
from gapless.emulation.compiled.signatures import signature

_KINDS = (list, dict, set, deque)
_MAX_FOLLOWED = 32
"""Most containers followed, and most entries read in each: more would slow each call noticeably."""
_MODULE_ATTRIBUTES = frozenset(vars(torch.nn.Module()))


class Containers:
    """The containers in reached cells, globals and objects, and in attributes of modules."""

    def __init__(self, reach: Reached, copies: Copies) -> None:
        self._device_of = copies.device_of
        attributes = (
            (module, name)
            for module in dict.fromkeys(submodule for root in reach.modules for submodule in root.modules())
            for name in vars(module)
            if name not in _MODULE_ATTRIBUTES
        )
        places = [
            *(ContainerPlace(cell, "") for cell in reach.cells),
            *(ContainerPlace(hold_owner(owner, copies), name) for owner, name in (*reach.names, *attributes)),
        ]
        self._places = [place for place in places if type(place()) in _KINDS][:_MAX_FOLLOWED]

    def copy_with(self, copy: Callable[[Any], Any]) -> Containers:
        """Return the same containers of the owners' copies."""
        other = Containers.__new__(Containers)
        other._device_of = self._device_of
        other._places = [ContainerPlace(copy_owner(place.owner, copy), place.name) for place in self._places]
        return other

    def key(self) -> tuple[Any, ...]:
        """A hashable key of the current contents."""
        return tuple(self._signature(get()) for get in self._places)

    def state(self, keep: Callable[[Any], Any]) -> tuple[Any, ...]:
        """Return the current contents; `keep` copies one entry."""
        return tuple(_contents(get(), keep) for get in self._places)

    def put(self, state: tuple[Any, ...], rebuild: Callable[[Any], Any]) -> None:
        """Restore the contents saved in `state` where they differ; `rebuild` recreates an entry."""
        for get, kept in zip(self._places, state, strict=True):
            now = get()
            if kept is None or type(now) is not type(kept):
                continue
            then = _contents(kept, rebuild)
            if self._signature(then) != self._signature(now):
                with suppress(Exception):  # arbitrary objects are compared
                    now.clear()
                    now.extend(then) if isinstance(now, list | deque) else now.update(then)

    def _signature(self, value: Any) -> Any:
        if type(value) not in _KINDS or len(value) > _MAX_FOLLOWED:
            return type(value), len(value) if type(value) in _KINDS else 0
        return signature(value, self._device_of)


def _contents(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a new container with `change` applied to each entry; None for a large one."""
    if type(value) not in _KINDS or len(value) > _MAX_FOLLOWED:
        return None
    if type(value) is dict:
        return {name: change(entry) for name, entry in value.items()}
    return type(value)(map(change, value))


@dataclass(frozen=True)
class ContainerPlace:
    """Where a container is: in a cell (no name), a module's globals, or an object's attribute."""

    owner: Any
    name: str

    def __call__(self) -> Any:
        return content(self.owner) if not self.name else names_of(self.owner).get(self.name)


def hold_owner(owner: Any, copies: Copies) -> Any:
    """Hold `owner` weakly, unless it is a dictionary (globals of a module)."""
    try:
        return owner if type(owner) is dict else copies.held(owner)
    except TypeError:  # no weak reference to it can be had
        return {}


def names_of(owner: Any) -> dict[str, Any]:
    """The attributes or globals of an owner; empty if it was collected."""
    if isinstance(owner, HeldObject):
        value = owner()
        return {} if value is NOTHING else vars(value)
    return owner  # type: ignore[no-any-return]


def copy_owner(owner: Any, copy: Callable[[Any], Any]) -> Any:
    """Return the copy of an owner or a cell."""
    if isinstance(owner, HeldObject):
        return owner if owner() is NOTHING else HeldObject.of(copy(owner))
    return owner if type(owner) is dict else copy(owner)

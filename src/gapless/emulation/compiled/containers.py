"""Lists and dictionaries that compiled code reads besides its arguments: what was in them at each call.

Compilers guard on their length, their keys and the plain values in them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from gapless.emulation.compiled.reach import Reached, content
from gapless.emulation.compiled.signatures import DeviceOf, signature

_KINDS = (list, dict, set, deque)
_MOST = 32
"""So many of them are followed, and so many entries of one are looked at: more would be felt at each call."""
_OWN = frozenset(vars(torch.nn.Module()))


class Containers:
    """Those in cells, globals and objects that were `reached`, and in attributes of the modules."""

    def __init__(self, found: Reached, device_of: DeviceOf) -> None:
        self._device_of = device_of
        attributes = (
            (vars(module), name)
            for module in dict.fromkeys(one for root in found.modules for one in root.modules())
            for name in vars(module)
            if name not in _OWN
        )
        gets = [*map(_cell, found.cells), *(_entry(*one) for one in (*found.names, *attributes))]
        self._found = [get for get in gets if type(get()) in _KINDS][:_MOST]

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


def _cell(cell: Any) -> Callable[[], Any]:
    return lambda: content(cell)


def _entry(where: dict[str, Any], name: str) -> Callable[[], Any]:
    return lambda: where.get(name)

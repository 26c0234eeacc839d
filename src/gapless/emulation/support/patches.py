"""Attributes replaced for a while and put back afterwards."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

_MISSING = object()


class _Index:
    """Which modules of a package hold a name, for all emulations: most modules stay as they were loaded."""

    def __init__(self, package: str) -> None:
        self._prefix = package + "."
        self._sizes: dict[int, int] = {}
        self.holders: dict[str, dict[int, Any]] = {}

    def refresh(self) -> None:
        """Go through modules that are new, or hold more or fewer names than when they were gone through."""
        for name, module in list(sys.modules.items()):
            if name.startswith(self._prefix) or name == self._prefix[:-1]:
                held = getattr(module, "__dict__", {})
                if self._sizes.get(id(module)) != len(held):
                    self._sizes[id(module)] = len(held)
                    for one in held:
                        self.holders.setdefault(one, {})[id(module)] = module


@cache
def _index(package: str) -> _Index:
    return _Index(package)


class Patches:
    """Replaces attributes and remembers what was there; `undo` puts everything back in reverse order."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any]] = []
        self._known: dict[str, tuple[int, str]] = {}

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set ``owner.name`` to `value`, to be undone later."""
        before = vars(owner).get(name, _MISSING)
        self._done.append((owner, name, before))
        setattr(owner, name, value)

    def set_everywhere(self, owner: Any, name: str, value: Any, package: str = "torch") -> None:
        """Like `set`, and rebind the same object where modules of `package` have imported it by name."""
        before = vars(owner).get(name, _MISSING)
        self.set(owner, name, value)
        if before is _MISSING or before is None:
            return
        for module in self._that_have(name, package):
            if module is not owner and vars(module).get(name, _MISSING) is before:
                self.set(module, name, value)

    def _that_have(self, name: str, package: str) -> list[Any]:
        """The loaded modules of `package` with a global `name`; indexed, as hundreds are asked for."""
        index = _index(package)
        known = (len(sys.modules), next(reversed(sys.modules)))
        if self._known.get(package) != known:
            self._known[package] = known
            index.refresh()
        return list(index.holders.get(name, {}).values())

    def undo(self) -> None:
        """Put back what was there."""
        while self._done:
            owner, name, before = self._done.pop()
            if before is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

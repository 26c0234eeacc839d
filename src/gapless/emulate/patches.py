"""Attributes replaced for a while and put back afterwards."""

from __future__ import annotations

import sys
from typing import Any

_MISSING = object()


class Patches:
    """Replaces attributes and remembers what was there; `undo` puts everything back in reverse order."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any]] = []
        self._holders: dict[str, dict[str, list[Any]]] = {}
        self._known: tuple[int, str] | None = None

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
        known = (len(sys.modules), next(reversed(sys.modules)))
        if known != self._known:
            self._known = known
            self._holders = {}
        holders = self._holders.get(package)
        if holders is None:
            holders = self._holders[package] = {}
            for module_name, module in list(sys.modules.items()):
                if module_name == package or module_name.startswith(package + "."):
                    for held in getattr(module, "__dict__", ()):
                        holders.setdefault(held, []).append(module)
        return holders.get(name, [])

    def undo(self) -> None:
        """Put back what was there."""
        while self._done:
            owner, name, before = self._done.pop()
            if before is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

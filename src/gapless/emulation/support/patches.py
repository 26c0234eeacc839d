"""Replace attributes for a while and restore them afterwards."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

_MISSING = object()


class _ModuleIndex:
    """Modules of a package by the names they hold, for all emulations: most modules never change."""

    def __init__(self, package: str) -> None:
        self._prefix = package + "."
        self._sizes: dict[int, int] = {}
        self._modules: list[tuple[Any, dict[str, Any]]] = []
        self._loaded: tuple[int, ...] = ()
        self.holders: dict[str, dict[int, Any]] = {}

    def refresh(self) -> None:
        """Index modules that are new or whose number of names has changed."""
        # By identity, as a module may be replaced under its name; those of the package are kept alive here.
        loaded = tuple(map(id, sys.modules.values()))
        if self._loaded != loaded:
            self._loaded = loaded
            self._modules = [
                (module, getattr(module, "__dict__", {}))
                for name, module in list(sys.modules.items())
                if name.startswith(self._prefix) or name == self._prefix[:-1]
            ]
        for module, held in self._modules:
            if self._sizes.get(id(module)) != len(held):
                self._sizes[id(module)] = len(held)
                for attribute in held:
                    self.holders.setdefault(attribute, {})[id(module)] = module


@cache
def _index(package: str) -> _ModuleIndex:
    """Return the index of `package`, one per process."""
    return _ModuleIndex(package)


class Patches:
    """Replaces attributes and remembers their values; `undo` restores all in reverse order."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any]] = []
        self._everywhere: list[tuple[str, str, Any, Any]] = []
        self._indexed_state: dict[str, tuple[int, str]] = {}

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set ``owner.name`` to `value` until `undo`."""
        before = vars(owner).get(name, _MISSING)
        self._done.append((owner, name, before))
        setattr(owner, name, value)

    def set_everywhere(self, owner: Any, name: str, value: Any, package: str = "torch") -> None:
        """Like `set`, and rebind the same object where modules of `package` have imported it by name.

        `undo` also restores it in modules that import it by name until then.
        """
        before = vars(owner).get(name, _MISSING)
        self.set(owner, name, value)
        if before is _MISSING or before is None:
            return
        is_new = True
        for module in self._modules_with(name, package):
            if module is owner:
                continue
            held = vars(module).get(name, _MISSING)
            if held is before:
                self.set(module, name, value)
            elif held is value:
                is_new = False
        if is_new:
            self._everywhere.append((package, name, value, before))

    def _modules_with(self, name: str, package: str) -> list[Any]:
        """Return the loaded modules of `package` with a global `name`; indexed, as hundreds of names are
        looked up."""
        index = _index(package)
        state = (len(sys.modules), next(reversed(sys.modules)))
        if self._indexed_state.get(package) != state:
            self._indexed_state[package] = state
            index.refresh()
        return list(index.holders.get(name, {}).values())

    def undo(self) -> None:
        """Restore all replaced attributes."""
        while self._done:
            owner, name, before = self._done.pop()
            if before is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        self._indexed_state.clear()  # a package may have gained a name, not a module
        while self._everywhere:
            package, name, value, before = self._everywhere.pop()
            for module in self._modules_with(name, package):
                if vars(module).get(name, _MISSING) is value:
                    setattr(module, name, before)

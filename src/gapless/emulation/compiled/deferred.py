"""Import a module lazily: answer a few attributes at once, load it for any other.

torch's optimizers import its compiler, which takes seconds, only to exclude themselves from compilation.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from gapless.emulation.support.patches import Patches


def defer(name: str, answers: Mapping[str, Any], patches: Patches) -> None:
    """Let ``import name`` give a stand-in module with `answers`, loading the real one for anything else.

    Does nothing if the module is loaded already; undone with `patches`.
    """
    if name in sys.modules:
        return
    finder = _Finder(name, answers)
    patches.set(finder, "deferring", True)
    sys.meta_path.insert(0, finder)


class _Deferred(ModuleType):
    """The stand-in in `sys.modules`, replaced by the real module at the first unknown attribute."""

    def __getattr__(self, name: str) -> Any:
        is_registered = self.__name__ in sys.modules  # else it is still being created
        if not is_registered or (name.startswith("__") and name != "__path__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
            importlib.import_module(self.__name__)
        return getattr(sys.modules[self.__name__], name)


class DeferredPart(ModuleType):
    """A submodule of a deferred module: answers some attributes, is loaded for any other."""

    def __init__(self, name: str, answers: Mapping[str, Any]) -> None:
        super().__init__(name)
        vars(self)["_answers"] = answers

    def __getattr__(self, name: str) -> Any:
        """Return the answer for `name` until the module is loaded; load it for any other name."""
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self._answers and self.__name__ not in sys.modules:
            return self._answers[name]
        return getattr(importlib.import_module(self.__name__), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(importlib.import_module(self.__name__), name, value)


class _Finder(MetaPathFinder):
    """Finds the deferred module once, and afterwards the submodules loaded with it."""

    deferring = False

    def __init__(self, name: str, answers: Mapping[str, Any]) -> None:
        self._name, self._answers = name, answers

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == self._name and self.deferring:
            self.deferring = False
            return ModuleSpec(fullname, _ModuleLoader(_Deferred(fullname), self._answers))
        # Importing a submodule reads `__path__`, which loads the package and that submodule.
        loaded = sys.modules.get(fullname) if fullname.startswith(self._name + ".") else None
        return (
            None
            if loaded is None
            else ModuleSpec(fullname, _ModuleLoader(loaded, {"__spec__": loaded.__spec__}))
        )


class _ModuleLoader(Loader):
    """Loads an existing module object, with `members` set."""

    def __init__(self, module: ModuleType, members: Mapping[str, Any]) -> None:
        self._module, self._members = module, members

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(self._members)

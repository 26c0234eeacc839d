"""A module that is imported for something trivial, and loaded once somebody asks it for more.

torch's optimizers import its compiler, which takes seconds, to tell it that they are not to be compiled.
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
    """Let ``import name`` give a module that has `answers` alone, until something else is asked of it.

    Does nothing where the module is loaded already; undone with `patches`.
    """
    if name in sys.modules:
        return
    finder = _Finder(name, answers)
    patches.set(finder, "deferring", True)
    sys.meta_path.insert(0, finder)


class _Deferred(ModuleType):
    """Stands in `sys.modules` until it is asked for something that it cannot answer."""

    def __getattr__(self, name: str) -> Any:
        known = self.__name__ in sys.modules  # else it is just being made
        if not known or (name.startswith("__") and name != "__path__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
            importlib.import_module(self.__name__)
        return getattr(sys.modules[self.__name__], name)


class Part(ModuleType):
    """A module inside a deferred one: knows some of its values, and is loaded for anything else."""

    def __init__(self, name: str, answers: Mapping[str, Any]) -> None:
        super().__init__(name)
        vars(self)["_answers"] = answers

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self._answers and self.__name__ not in sys.modules:
            return self._answers[name]
        return getattr(importlib.import_module(self.__name__), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(importlib.import_module(self.__name__), name, value)


class _Finder(MetaPathFinder):
    """Finds the deferred module once, and afterwards what loading it has brought along."""

    deferring = False

    def __init__(self, name: str, answers: Mapping[str, Any]) -> None:
        self._name, self._answers = name, answers

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == self._name and self.deferring:
            self.deferring = False
            return ModuleSpec(fullname, _Made(_Deferred(fullname), self._answers))
        # Importing a part of it asks for `__path__`, which loads it, and that part with it.
        loaded = sys.modules.get(fullname) if fullname.startswith(self._name + ".") else None
        return None if loaded is None else ModuleSpec(fullname, _Made(loaded, {"__spec__": loaded.__spec__}))


class _Made(Loader):
    """Gives a module that is there."""

    def __init__(self, module: ModuleType, members: Mapping[str, Any]) -> None:
        self._module, self._members = module, members

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(self._members)

"""Change modules right after they are imported, whoever imports them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from gapless.emulation.support.patches import Patches

Change = Callable[[ModuleType], None]
Around = Callable[[], AbstractContextManager[object]]


def when_imported(name: str, change: Change, patches: Patches, around: Around | None = None) -> None:
    """Call `change` with the module `name`, now or right after its import, until `patches` are undone.

    A later import runs within the context that `around` returns.
    """
    module = sys.modules.get(name)
    if module is not None:
        change(module)
        return
    if not _change_finder.changes:
        patches.set(_change_finder, "changes", {})
        if _change_finder not in sys.meta_path:
            sys.meta_path.insert(0, _change_finder)
    _change_finder.changes.setdefault(name, []).append((change, around))


class _ChangeFinder(MetaPathFinder):
    """Import finder that applies changes to modules. Stays on `sys.meta_path`, idle without `changes`."""

    def __init__(self) -> None:
        self.changes: dict[str, list[tuple[Change, Around | None]]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.changes:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _ChangeLoader(spec.loader)
                return spec
        return None


class _ChangeLoader(Loader):
    """Loader that runs the original loader, then the changes."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        changes = _change_finder.changes.get(module.__name__, [])
        with ExitStack() as stack:
            for _, around in changes:
                if around is not None:
                    stack.enter_context(around())
            self._loader.exec_module(module)
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        for change, _ in _change_finder.changes.pop(module.__name__, ()):
            change(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


_change_finder = _ChangeFinder()

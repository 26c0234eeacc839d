"""Importing stand-ins: a finder behind all others, which also answers queries for installed packages."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from gapless.emulation.standins import guards, missing
from gapless.emulation.standins.launch import LaunchState
from gapless.emulation.standins.package import PACKAGES, Package
from gapless.emulation.standins.package_requests import Requests, find_requester

ORIGIN = "stand-in of Gapless"
"""The origin of stand-ins in error messages of imports and in ``__file__``."""


requests = Requests()
"""Who asked for packages, and who gets stand-ins."""


@cache
def package_names() -> frozenset[str]:
    """Return the names of packages that have a declaration."""
    files = Path(__file__).with_name(PACKAGES.rpartition(".")[2]).iterdir()
    return frozenset(file.stem for file in files if not file.name.startswith("_"))


def import_declaration(name: str) -> ModuleType:
    """Import and return the declaration of the package `name`."""
    return importlib.import_module(f"{PACKAGES}.{name}")


def package_of(name: str) -> Package | None:
    """Return the stand-in for the package `name`; None if there is none."""
    if name not in package_names():
        return None
    package: Package | None = getattr(import_declaration(name), "PACKAGE", None)
    return package


class _Distribution(importlib.metadata.Distribution):
    """The metadata of a stand-in for `importlib.metadata`: distribution, version and import name."""

    def __init__(self, package: Package) -> None:
        self._texts = {
            "METADATA": f"Metadata-Version: 2.1\nName: {package.distribution}\nVersion: {package.version}\n",
            "top_level.txt": f"{package.name}\n",
        }

    def read_text(self, filename: str) -> str | None:
        return self._texts.get(filename)

    def locate_file(self, path: Any) -> Any:
        return Path(str(path))


class _Module(ModuleType):
    """A module of a stand-in: imports submodules on access, and reports missing names."""

    def __getattr__(self, name: str) -> Any:
        inner = f"{self.__name__}.{name}"
        package = package_of(self.__name__.partition(".")[0])
        if package is not None and inner in package.modules:
            return importlib.import_module(inner)
        error = AttributeError(f"module {self.__name__!r} ({ORIGIN}) has no attribute {name!r}")
        frame = sys._getframe(1)
        how = missing.access_kind(frame)
        if package is None or name.startswith("__") or not how:
            raise error
        handled = missing.handled_error(frame, how)
        if how == "import":
            _finder.add_missing(inner)
        if handled == "import" and how == "attribute":  # the real package would fail to import
            raise ImportError(f"{error}", name=self.__name__)
        if handled:
            raise error
        return missing.make_placeholder(self.__name__, name, package.distribution)


class _Loader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        package = package_of(module.__name__.partition(".")[0])
        assert package is not None
        module.__file__ = f"<{ORIGIN}>"
        module.__dict__.update(package.modules.get(module.__name__, {}))


class StandinFinder(MetaPathFinder):
    """Finds stand-ins for packages that no other finder has found; idle unless `enabled`."""

    def __init__(self) -> None:
        self.enabled = False
        self.missing: dict[str, None] = {}
        """Names imported from stand-ins that lack them, in order."""

    def add_missing(self, name: str) -> None:
        self.missing.setdefault(name)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package = package_of(fullname.partition(".")[0]) if self.enabled else None
        if package is None or not _supports_gpu(package):
            return None
        if fullname == package.name:
            if not requests.is_available(package):
                return None
        elif not is_standin(sys.modules.get(package.name)):
            return None  # a submodule of the real package
        elif fullname not in package.modules:
            return self._find_placeholder(fullname)
        return ModuleSpec(fullname, _Loader(), origin=ORIGIN, is_package=True)

    def _find_placeholder(self, fullname: str) -> ModuleSpec | None:
        """Return the spec of a module whose names raise when used, if its importer cannot do without it."""
        asker = find_requester()
        if asker is not None and asker.is_importing and asker.imports_name:
            return None  # probably a class or function
        if asker is None or not asker.is_importing or guards.handles_import_error(asker.frame):
            self.add_missing(fullname)
            return None
        return ModuleSpec(fullname, _Loader(), origin=ORIGIN, is_package=True)

    def find_distributions(self, context: Any = None) -> Iterator[importlib.metadata.Distribution]:
        """Yield the distributions of available stand-ins, by `importlib.metadata`'s protocol."""
        if not self.enabled:
            return
        name = getattr(context, "name", None)
        wanted = None if name is None else _normalize(name)
        for name in sorted(package_names()):
            package = package_of(name)
            if package is None or wanted not in (None, _normalize(package.distribution)):
                continue
            answer = requests.is_listed if wanted is None else requests.is_available
            if _supports_gpu(package) and _is_free(name) and answer(package):
                yield _Distribution(package)

    def invalidate_caches(self) -> None:
        """Do nothing: this finder caches nothing."""


def _supports_gpu(package: Package) -> bool:
    """Whether the package supports the emulated GPU."""
    return LaunchState.core is None or LaunchState.core.gpu.capability >= package.capability


def _normalize(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def is_standin(module: ModuleType | None) -> bool:
    """Whether `module` is one of a stand-in."""
    return isinstance(module, _Module)


def imported_package(name: str) -> Package | None:
    """Return the stand-in for the package `name` if it is imported."""
    return package_of(name) if is_standin(sys.modules.get(name)) else None


def _is_free(name: str) -> bool:
    """Whether no other finder has a package of that name."""
    if name in sys.modules:
        return is_standin(sys.modules[name])
    for finder in sys.meta_path:
        if finder is _finder or not hasattr(finder, "find_spec"):
            continue
        spec = finder.find_spec(name, None)
        if spec is not None and spec.origin != ORIGIN:
            return False
    return True


_finder = StandinFinder()


def missing_names() -> tuple[str, ...]:
    """Return names imported from stand-ins that lack them, since they were switched on."""
    return tuple(_finder.missing)


def switch_on(for_everyone: bool | None = None) -> StandinFinder:
    """Find stand-ins from now on, if nothing else is found: for the script (None), everyone or nobody."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    sys.meta_path.append(_finder)
    _finder.enabled = True
    _finder.missing.clear()
    requests.clear(for_everyone)
    importlib.invalidate_caches()
    return _finder


def switch_off() -> None:
    """Find no more stand-ins, and remove the imported ones from `sys.modules`."""
    _finder.enabled = False
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    for name, module in list(sys.modules.items()):
        if is_standin(module):
            del sys.modules[name]

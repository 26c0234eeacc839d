"""Importing stand-ins: a finder that is asked last, and answers the questions libraries ask of a package."""

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
from gapless.emulation.standins.asking import Asking, asking
from gapless.emulation.standins.launch import State
from gapless.emulation.standins.package import PACKAGES, Package

ORIGIN = "stand-in of Gapless"
"""Where a stand-in says it comes from: in error messages of imports, and in ``__file__``."""


asks = Asking()
"""Who has asked, and for whom there are stand-ins."""


@cache
def names() -> frozenset[str]:
    """The packages that there is a file for."""
    files = Path(__file__).with_name(PACKAGES.rpartition(".")[2]).iterdir()
    return frozenset(file.stem for file in files if not file.name.startswith("_"))


def file_of(name: str) -> ModuleType:
    """The file for the package `name`, imported."""
    return importlib.import_module(f"{PACKAGES}.{name}")


def package_of(name: str) -> Package | None:
    """What stands in for the package `name`; None where nothing does."""
    if name not in names():
        return None
    package: Package | None = getattr(file_of(name), "PACKAGE", None)
    return package


class _Distribution(importlib.metadata.Distribution):
    """What `importlib.metadata` says of a stand-in: its name, its version and what it is imported as."""

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
    """A module of a stand-in: submodules are there when asked for, what is missing is told."""

    def __getattr__(self, name: str) -> Any:
        inner = f"{self.__name__}.{name}"
        package = package_of(self.__name__.partition(".")[0])
        if package is not None and inner in package.modules:
            return importlib.import_module(inner)
        error = AttributeError(f"module {self.__name__!r} ({ORIGIN}) has no attribute {name!r}")
        frame = sys._getframe(1)
        how = missing.read(frame)
        if package is None or name.startswith("__") or not how:
            raise error
        handled = missing.goes_on_without(frame, how)
        if how == "import":
            _finder.missed(inner)
        if handled == "import" and how == "attribute":  # the package would have failed at its import
            raise ImportError(f"{error}", name=self.__name__)
        if handled:
            raise error
        return missing.lacking(self.__name__, name, package.distribution)


class _Loader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        package = package_of(module.__name__.partition(".")[0])
        assert package is not None
        module.__file__ = f"<{ORIGIN}>"
        module.__dict__.update(package.modules.get(module.__name__, {}))


class Finder(MetaPathFinder):
    """Finds what nobody before it has found. Stays on `sys.meta_path`, idle unless it is on."""

    def __init__(self) -> None:
        self.on = False
        self.asked: dict[str, None] = {}
        """Names that stand-ins lack and somebody asked for."""

    def missed(self, name: str) -> None:
        self.asked.setdefault(name)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package = package_of(fullname.partition(".")[0]) if self.on else None
        if package is None or not _fits(package):
            return None
        if fullname == package.name:
            if not asks.answers(package):
                return None
        elif not is_standin(sys.modules.get(package.name)):
            return None  # a part of the real one
        elif fullname not in package.modules:
            return self._lacking(fullname)
        return ModuleSpec(fullname, _Loader(), origin=ORIGIN, is_package=True)

    def _lacking(self, fullname: str) -> ModuleSpec | None:
        """A module whose names refuse when they are used, for who imports it and does not go on without."""
        asker = asking()
        if asker is not None and asker.importing and asker.named:
            return None  # a class or function, as far as is known
        if asker is None or not asker.importing or guards.guarded(asker.frame):
            self.missed(fullname)
            return None
        return ModuleSpec(fullname, _Loader(), origin=ORIGIN, is_package=True)

    def find_distributions(self, context: Any = None) -> Iterator[importlib.metadata.Distribution]:
        """The distributions of the packages that would be found here, by `importlib.metadata`'s protocol."""
        if not self.on:
            return
        name = getattr(context, "name", None)
        wanted = None if name is None else _normal(name)
        for name in sorted(names()):
            package = package_of(name)
            if package is None or wanted not in (None, _normal(package.distribution)):
                continue
            answer = asks.lists if wanted is None else asks.answers
            if _fits(package) and _is_free(name) and answer(package):
                yield _Distribution(package)

    def invalidate_caches(self) -> None:
        """Nothing is cached."""


def _fits(package: Package) -> bool:
    """Whether the emulated GPU is one that the package is installed for."""
    return State.core is None or State.core.gpu.capability >= package.capability


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def is_standin(module: ModuleType | None) -> bool:
    """Whether `module` was imported from here."""
    return isinstance(module, _Module)


def standing_in(name: str) -> Package | None:
    """What stands in for the package `name`, where it was imported from here."""
    return package_of(name) if is_standin(sys.modules.get(name)) else None


def _is_free(name: str) -> bool:
    """Whether nobody else has a package of that name."""
    if name in sys.modules:
        return is_standin(sys.modules[name])
    for finder in sys.meta_path:
        if finder is _finder or not hasattr(finder, "find_spec"):
            continue
        spec = finder.find_spec(name, None)
        if spec is not None and spec.origin != ORIGIN:
            return False
    return True


_finder = Finder()


def asked() -> tuple[str, ...]:
    """Names that stand-ins lack and somebody asked for since they were switched on."""
    return tuple(_finder.asked)


def switch_on(wanted: bool | None = None) -> Finder:
    """Let stand-ins be found from now on, where nothing else is: by the script, by everyone, or by nobody."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    sys.meta_path.append(_finder)
    _finder.on = True
    _finder.asked.clear()
    asks.clear(wanted)
    importlib.invalidate_caches()
    return _finder


def switch_off() -> None:
    """Forget stand-ins: those that were imported are imported no more."""
    _finder.on = False
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    for name, module in list(sys.modules.items()):
        if is_standin(module):
            del sys.modules[name]

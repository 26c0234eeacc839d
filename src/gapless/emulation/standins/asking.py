"""Who asks for a package, and what the user's own code says of it.

A stand-in is for the script that uses the package. A library that only looks whether it is installed is told
what is true of this machine, unless the script imports the package, names it in a setting, or the library
cannot go on without it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple

from gapless.emulation.standins import guards, wording
from gapless.emulation.standins.package import Package
from gapless.emulation.support import stacks

_BOOTSTRAP = "<frozen importlib._bootstrap>"


class Refused(NamedTuple):
    """A library's module that was told that a package is not installed, and at which line it asked."""

    distribution: str
    library: str
    module: str
    file: str
    line: int


class Asker(NamedTuple):
    """The frame that asks, the library that it is of ("": the user's own), and whether it imports.

    `named`: it imports a name from a module, which may be no module itself.
    """

    frame: FrameType
    library: str
    importing: bool
    named: bool


class Asking:
    """Decides for whom there are stand-ins. `everyone`: for whoever asks; `nobody`: for none."""

    def __init__(self) -> None:
        self.everyone = self.nobody = False
        self._wanted: set[str] = set()
        self._refused: dict[Refused, None] = {}

    def clear(self, wanted: bool | None) -> None:
        """Begin anew: for everyone (True), for nobody (False), or for the script (None)."""
        self.everyone, self.nobody = wanted is True, wanted is False
        self._wanted.clear()
        self._refused.clear()

    @property
    def refused(self) -> tuple[Refused, ...]:
        """Those that were told that a package is not installed."""
        return tuple(self._refused)

    def answers(self, package: Package) -> bool:
        """Whether the package is there for who asks for it now."""
        if self.everyone or package.distribution in self._wanted:
            return True
        asker = asking()
        if asker is None:
            return not self.nobody
        if not self.nobody and (
            not asker.library
            or wording.names(package, asker.frame)
            or (asker.importing and not guards.guarded(asker.frame))
        ):
            self._want(package)
            return True
        self.refuse(package.distribution, asker)
        return False

    def lists(self, package: Package) -> bool:
        """Whether it is among all that are installed: who goes through these asks for none of them."""
        if self.nobody:
            return False
        return self.everyone or package.distribution in self._wanted or wording.names(package, None)

    def refuse(self, distribution: str, asker: Asker) -> None:
        """Note that a library was told that a package is not installed."""
        code, module = asker.frame.f_code, str(asker.frame.f_globals.get("__name__", ""))
        one = Refused(distribution, asker.library, module, code.co_filename, asker.frame.f_lineno)
        self._refused.setdefault(one)

    def _want(self, package: Package) -> None:
        """From now on it is there for whoever asks, also for those that have asked before."""
        self._wanted.add(package.distribution)
        for one in self.refused:
            if one.distribution == package.distribution:
                del self._refused[one]
                _forget_answers(one.module)

    @contextmanager
    def for_everyone(self) -> Iterator[None]:
        """Whoever asks within this gets the stand-ins."""
        before, self.everyone = self.everyone, not self.nobody
        try:
            yield
        finally:
            self.everyone = before


def asking() -> Asker | None:
    """Who asks, by the frames that led here; None where it is nobody but Python and Gapless."""
    frame: FrameType | None = sys._getframe(1)
    importing = named = False
    while frame is not None:
        file = frame.f_code.co_filename
        if stacks.is_command(file):
            return None
        library = stacks.library_of(file)
        if library not in ("python", "gapless"):
            return Asker(frame, library, importing, named)
        if file == _BOOTSTRAP:
            importing = importing or frame.f_code.co_name == "_find_and_load"
            named = named or frame.f_code.co_name == "_handle_fromlist"
        frame = frame.f_back
    return None


def _forget_answers(module: str) -> None:
    """Let `module` ask again what it keeps the answer of."""
    for value in list(vars(sys.modules.get(module, sys)).values()) if module in sys.modules else ():
        clear = getattr(value, "cache_clear", None)
        if callable(clear) and getattr(value, "__module__", None) == module:
            clear()

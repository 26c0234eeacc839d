"""Decides which code that asks for a missing package gets its stand-in.

A stand-in is for the script that uses the package. A library that only checks whether it is installed gets
the truth about this machine, unless the script imports the package, names it in a setting, or the library
cannot run without it.
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


class RefusedImport(NamedTuple):
    """A library's module for which a package counted as not installed, and the line that asked."""

    distribution: str
    library: str
    module: str
    file: str
    line: int


class Requester(NamedTuple):
    """The frame that asks for a package, its library ("": the user's code), and whether it imports.

    `imports_name`: it imports a name from a module, which need not be a module.
    """

    frame: FrameType
    library: str
    is_importing: bool
    imports_name: bool


class Requests:
    """Decides who gets stand-ins: all code if `is_for_everyone`, none if `is_for_nobody`, else the script."""

    def __init__(self) -> None:
        self.is_for_everyone = self.is_for_nobody = False
        self._available: set[str] = set()
        self._refused: dict[RefusedImport, None] = {}

    def clear(self, for_everyone: bool | None) -> None:
        """Reset, and give stand-ins to everyone (True), nobody (False) or the script (None)."""
        self.is_for_everyone, self.is_for_nobody = for_everyone is True, for_everyone is False
        self._available.clear()
        self._refused.clear()

    @property
    def refusals(self) -> tuple[RefusedImport, ...]:
        """The requests that were refused."""
        return tuple(self._refused)

    def is_available(self, package: Package) -> bool:
        """Whether the code that asks now gets the stand-in; remembers the answer."""
        if self.is_for_everyone or package.distribution in self._available:
            return True
        requester = find_requester()
        if requester is None:
            return not self.is_for_nobody
        if not self.is_for_nobody and (
            not requester.library
            or wording.requests_package(package, requester.frame)
            or (requester.is_importing and not guards.handles_import_error(requester.frame))
        ):
            self._make_available(package)
            return True
        self.add_refusal(package.distribution, requester)
        return False

    def is_listed(self, package: Package) -> bool:
        """Whether the package appears in a listing of all installed ones, which requests none of them."""
        if self.is_for_nobody:
            return False
        return (
            self.is_for_everyone
            or package.distribution in self._available
            or wording.requests_package(package, None)
        )

    def add_refusal(self, distribution: str, requester: Requester) -> None:
        """Remember that a package counted as not installed for a library."""
        code, module = requester.frame.f_code, str(requester.frame.f_globals.get("__name__", ""))
        refusal = RefusedImport(
            distribution, requester.library, module, code.co_filename, requester.frame.f_lineno
        )
        self._refused.setdefault(refusal)

    def _make_available(self, package: Package) -> None:
        """Give the package to all code from now on, including code that asked before."""
        self._available.add(package.distribution)
        for refusal in self.refusals:
            if refusal.distribution == package.distribution:
                del self._refused[refusal]
                _clear_cached_answers(refusal.module)

    @contextmanager
    def for_everyone(self) -> Iterator[None]:
        """Give stand-ins to all code that asks inside the block."""
        before, self.is_for_everyone = self.is_for_everyone, not self.is_for_nobody
        try:
            yield
        finally:
            self.is_for_everyone = before


def find_requester() -> Requester | None:
    """Return the caller that asks for a package; None if only Python and Gapless are on the stack."""
    frame: FrameType | None = sys._getframe(1)
    importing = imports_name = False
    while frame is not None:
        file = frame.f_code.co_filename
        if stacks.is_command(file):
            return None
        library = stacks.library_of(file)
        if library not in ("python", "gapless"):
            return Requester(frame, library, importing, imports_name)
        if file == _BOOTSTRAP:
            importing = importing or frame.f_code.co_name == "_find_and_load"
            imports_name = imports_name or frame.f_code.co_name == "_handle_fromlist"
        frame = frame.f_back
    return None


def _clear_cached_answers(module: str) -> None:
    """Clear the caches of functions of `module`, so that it asks again."""
    for value in list(vars(sys.modules.get(module, sys)).values()) if module in sys.modules else ():
        clear = getattr(value, "cache_clear", None)
        if callable(clear) and getattr(value, "__module__", None) == module:
            clear()

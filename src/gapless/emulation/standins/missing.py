"""Names that a stand-in lacks: an ImportError for code that handles it, else a placeholder that raises."""

from __future__ import annotations

import dis
from functools import cache
from types import FrameType
from typing import Any, NoReturn

from gapless.emulation.standins import guards
from gapless.emulation.support.refusals import requested_at
from gapless.errors import NotEmulated

_HANDLES_ATTRIBUTES = guards.ALL_ERRORS | {"AttributeError"}
_ATTRIBUTE_READS = ("LOAD_ATTR", "LOAD_METHOD")


class LacksName(NotEmulated, AttributeError):
    """The stand-in has no such attribute."""


def refusal_text(name: str, distribution: str) -> str:
    """Return the error message for the missing `name`."""
    return (
        f"Gapless's stand-in for {distribution} has no `{name}`{requested_at()}. Without the package "
        "(--no-standins) the script takes another path, if it has one"
    )


class _Placeholder(type):
    """A class that can be imported, subclassed and used in ``isinstance``, and raises on any other use."""

    lacks: tuple[str, str]

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotEmulated(refusal_text(*cls.lacks))

    def __getattr__(cls, name: str) -> NoReturn:
        whole, distribution = cls.lacks
        text = f"{whole}.{name}"
        if name.startswith("__"):
            raise AttributeError(text)
        raise LacksName(refusal_text(text, distribution))


@cache
def make_placeholder(module: str, name: str, distribution: str) -> type:
    """Return a class for the missing `module.name`: nothing is an instance, and calls raise NotEmulated."""
    values = {"__module__": module, "lacks": (f"{module}.{name}", distribution)}
    return _Placeholder(name, (), values)


def access_kind(frame: FrameType) -> str:
    """Return how `frame` accesses a name now: ``import``, ``attribute``, or "" (`hasattr` and the like)."""
    if frame.f_lasti < 0:
        return ""
    operation = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    if operation == "IMPORT_FROM":
        return "import"
    return "attribute" if operation in _ATTRIBUTE_READS else ""


def handled_error(frame: FrameType, how: str) -> str:
    """Return which error of a missing name `frame` handles: ``import``, ``attribute``, or "" for none."""
    if how == "attribute" and guards.handled_errors(frame) & _HANDLES_ATTRIBUTES:
        return "attribute"
    return "import" if guards.handles_import_error(frame) else ""

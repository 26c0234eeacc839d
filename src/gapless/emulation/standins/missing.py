"""What a stand-in lacks: an ImportError for code that goes on without it, else a name that refuses."""

from __future__ import annotations

import dis
from functools import cache
from types import FrameType
from typing import Any, NoReturn

from gapless.emulation.standins import guards
from gapless.emulation.support.refusals import asked_at
from gapless.errors import NotEmulated

_HANDLES_ATTRIBUTES = guards.ANY | {"AttributeError"}
_READS = ("LOAD_ATTR", "LOAD_METHOD")


class LacksName(NotEmulated, AttributeError):
    """The stand-in has no such attribute."""


def refusal(name: str, distribution: str) -> str:
    """What the error says of `name`."""
    return (
        f"Gapless's stand-in for {distribution} has no `{name}`{asked_at()}. Without the package "
        "(--no-standins) the script takes another path, if it has one"
    )


class _Lacking(type):
    """A class that can be imported, derived from and asked about, and refuses everything else."""

    lacks: tuple[str, str]

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotEmulated(refusal(*cls.lacks))

    def __getattr__(cls, name: str) -> NoReturn:
        whole, distribution = cls.lacks
        text = f"{whole}.{name}"
        if name.startswith("__"):
            raise AttributeError(text)
        raise LacksName(refusal(text, distribution))


@cache
def lacking(module: str, name: str, distribution: str) -> type:
    """What stands for `module.name`: no object is an instance of it, and to call it raises NotEmulated."""
    values = {"__module__": module, "lacks": (f"{module}.{name}", distribution)}
    return _Lacking(name, (), values)


def read(frame: FrameType) -> str:
    """How `frame` asks for a name now: ``import``, ``attribute``, or "" (`hasattr` and its like)."""
    if frame.f_lasti < 0:
        return ""
    operation = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    if operation == "IMPORT_FROM":
        return "import"
    return "attribute" if operation in _READS else ""


def goes_on_without(frame: FrameType, how: str) -> str:
    """Which error `frame` handles where a name is missing: ``import``, ``attribute``, or "" for none."""
    if how == "attribute" and guards.handled(frame) & _HANDLES_ATTRIBUTES:
        return "attribute"
    return "import" if guards.guarded(frame) else ""

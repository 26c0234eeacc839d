"""Failures of Gapless's own, told from what the script or torch got wrong.

A handler that raises does so on purpose, in CUDA's words or as a refusal. What fails in Gapless's own code in
any other way, a missing key or attribute, a value of an unexpected kind, is its own mistake.
"""

from __future__ import annotations

import dis
import os
import platform
from types import TracebackType
from typing import Any

from gapless import _version
from gapless.errors import EmulationDefect, GaplessError

_OWN = os.path.dirname(os.path.abspath(_version.__file__)) + os.sep
_STANDINS = os.path.join(_OWN, "emulation", "standins", "")
"""What is raised there is what the package that they stand for would raise."""
_NEVER_TORCHS = (AssertionError, AttributeError, KeyError, NameError, ZeroDivisionError)
"""What no operator raises when it is called from here."""
_MISUSE = (IndexError, TypeError, ValueError)
"""What an operator may raise when it is called; anything else that raises it is ours."""
_RAISE = dis.opmap["RAISE_VARARGS"]


def place(error: BaseException) -> str:
    """``file:line`` where Gapless itself failed; "" where it did not."""
    last = _last(error.__traceback__)
    if last is None or isinstance(error, GaplessError):
        return ""
    code = last.tb_frame.f_code
    if not code.co_filename.startswith(_OWN) or code.co_filename.startswith(_STANDINS):
        return ""
    operation = code.co_code[last.tb_lasti] if last.tb_lasti >= 0 else -1
    if operation == _RAISE and not isinstance(error, AssertionError):
        return ""
    calls = "CALL" in dis.opname[operation] if operation >= 0 else True
    if not isinstance(error, _NEVER_TORCHS) and (calls or not isinstance(error, _MISUSE)):
        return ""
    return f"{os.path.relpath(code.co_filename, os.path.dirname(_OWN[:-1]))}:{last.tb_lineno}"


def defect(error: BaseException, what: str) -> EmulationDefect:
    """The error that says that Gapless failed at `what`."""
    import torch

    first = (str(error).splitlines() or [""])[0]
    at = place(error)
    return EmulationDefect(
        f"Gapless failed while emulating {what}: {type(error).__name__}: {first} ({at}). This is a bug in "
        f"Gapless, not in the script; please report it with this line (gapless {_version.__version__}, torch "
        f"{torch.__version__}, Python {platform.python_version()})"
    )


def operator(error: BaseException) -> str:
    """The operator that was being run when `error` was raised, "" where none was."""
    found = ""
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_name == "__torch_dispatch__" and frame.f_code.co_filename.startswith(_OWN):
            found = named(frame.f_locals.get("func"))
        trace = trace.tb_next
    return found


def named(func: Any) -> str:
    """What a user calls a function, method or operator of torch."""
    schema = getattr(func, "_schema", None)
    if schema is not None or isinstance(getattr(func, "_name", None), str):
        return str(func.name())
    owner = getattr(func, "__objclass__", None) or getattr(func, "__module__", None) or "torch"
    name = getattr(func, "__qualname__", getattr(func, "__name__", repr(func)))
    return name if "." in name else f"{getattr(owner, '__name__', owner)}.{name}"


def _last(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace

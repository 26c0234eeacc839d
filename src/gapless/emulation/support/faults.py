"""Tell failures of Gapless's own code from mistakes of the script or torch.

A handler that uses `raise` does so on purpose, in CUDA's words or as a refusal. Any other failure in
Gapless's own code, a missing key or attribute, a value of an unexpected kind, is a bug of Gapless.
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
"""Path of this package."""
_STANDINS = os.path.join(_OWN, "emulation", "standins", "")
"""Errors raised here are those that the replaced package would raise."""
_NEVER_TORCHS = (AssertionError, AttributeError, KeyError, NameError, ZeroDivisionError)
"""Errors that no torch operator raises when Gapless calls it."""
_MISUSE = (IndexError, TypeError, ValueError)
"""Errors that a called operator may raise; raised by anything but a call they are a bug of Gapless."""
_RAISE = dis.opmap["RAISE_VARARGS"]


def find_failure(error: BaseException) -> str:
    """Return ``file:line`` where Gapless itself failed; "" if it did not."""
    last = _innermost(error.__traceback__)
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


def make_defect(error: BaseException, action: str) -> EmulationDefect:
    """Return the error that says that Gapless failed while emulating `action`."""
    import torch

    first = (str(error).splitlines() or [""])[0]
    at = find_failure(error)
    return EmulationDefect(
        f"Gapless failed while emulating {action}: {type(error).__name__}: {first} ({at}). This is a bug in "
        f"Gapless, not in the script; please report it with this line (gapless {_version.__version__}, torch "
        f"{torch.__version__}, Python {platform.python_version()})"
    )


def running_operator(error: BaseException) -> str:
    """Return the operator that was running when `error` was raised; "" if none was."""
    running = ""
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_name == "__torch_dispatch__" and frame.f_code.co_filename.startswith(_OWN):
            running = display_name(frame.f_locals.get("func"))
        trace = trace.tb_next
    return running


def display_name(func: Any) -> str:
    """Return the name by which a user calls a function, method or operator of torch."""
    schema = getattr(func, "_schema", None)
    if schema is not None or isinstance(getattr(func, "_name", None), str):
        return str(func.name())
    owner = getattr(func, "__objclass__", None) or getattr(func, "__module__", None) or "torch"
    name = getattr(func, "__qualname__", getattr(func, "__name__", repr(func)))
    return name if "." in name else f"{getattr(owner, '__name__', owner)}.{name}"


def _innermost(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace

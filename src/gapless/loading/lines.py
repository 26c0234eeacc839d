"""The user's lines: where an item is made, where an error comes from."""

from __future__ import annotations

import inspect
import linecache
import os
import sys
import sysconfig
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from gapless.model.source import SourceLine

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARIES = tuple(
    {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


def is_user(file: str) -> bool:
    """Whether `file` is neither a library's nor Gapless's own."""
    if file.startswith("<") or not file:
        return False
    real = os.path.realpath(file)
    return not real.startswith(_LIBRARIES) and not real.startswith(_OURS) and "site-packages" not in real


def source_line(file: str, line: int, function: str) -> SourceLine:
    """The line with its text."""
    return SourceLine(
        file=os.path.abspath(file), line=line, function=function, code=linecache.getline(file, line).strip()
    )


def calling_line() -> tuple[tuple[str, int], str] | None:
    """File, line and function of the user's innermost frame that led here; None where there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return None
    function: str = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)  # from Python 3.11 on
    return (frame.f_code.co_filename, frame.f_lineno), function


def calling_library() -> str:
    """The package whose code the user's innermost frame called to come here; "" where it is torch."""
    frame: FrameType | None = sys._getframe(1)
    found = ""
    while frame is not None and not is_user(frame.f_code.co_filename):
        found = str(frame.f_globals.get("__name__", "")).split(".")[0]
        frame = frame.f_back
    return "" if found in ("torch", "torchdata", "gapless") else found


def user_place(trace: TracebackType | None) -> str:
    """``file:line`` of the user's innermost line in `trace`; "" where there is none."""
    found = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if is_user(code.co_filename):
            found = f"{shown(code.co_filename)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def shown(file: str) -> str:
    """`file` from the working directory, where it lies there."""
    relative = os.path.relpath(file) if not file.startswith("<") else file
    return file if relative.startswith("..") else relative


def definition(function: Callable[..., Any] | None) -> SourceLine | None:
    """Where `function` is defined, if the user did; None for a library's."""
    code = getattr(inspect.unwrap(function), "__code__", None) if function is not None else None
    if code is None or not is_user(code.co_filename):
        return None
    return source_line(code.co_filename, code.co_firstlineno, getattr(function, "__qualname__", code.co_name))


def maker(dataset: Any) -> SourceLine | None:
    """The line of the dataset's ``__getitem__``, ``__getitems__`` or ``__iter__``, through its wrappers."""
    for _ in range(8):
        kind = type(dataset)
        for name in ("__getitems__", "__getitem__", "__iter__"):
            found = definition(getattr(kind, name, None))
            if found is not None:
                return found
        dataset = getattr(dataset, "dataset", None)  # Subset, and wrappers like it
        if dataset is None:
            return None
    return None

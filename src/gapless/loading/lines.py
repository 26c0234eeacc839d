"""Find the user's lines: where an item is made, where an error comes from."""

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

_OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARIES = tuple(
    {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


def is_user(file: str) -> bool:
    """Whether `file` belongs neither to a library nor to Gapless."""
    if file.startswith("<") or not file:
        return False
    real = os.path.realpath(file)
    return (
        not real.startswith(_LIBRARIES) and not real.startswith(_OWN_FOLDER) and "site-packages" not in real
    )


def source_line(file: str, line: int, function: str) -> SourceLine:
    """Return the line with its text."""
    return SourceLine(
        file=os.path.abspath(file), line=line, function=function, code=linecache.getline(file, line).strip()
    )


def calling_line() -> tuple[tuple[str, int], str] | None:
    """Return file, line and function of the user's innermost frame; None if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return None
    function: str = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)  # from Python 3.11 on
    return (frame.f_code.co_filename, frame.f_lineno), function


def calling_library() -> str:
    """Return the package that the user's innermost frame called to get here; "" for torch."""
    frame: FrameType | None = sys._getframe(1)
    package = ""
    while frame is not None and not is_user(frame.f_code.co_filename):
        package = str(frame.f_globals.get("__name__", "")).split(".")[0]
        frame = frame.f_back
    return "" if package in ("torch", "torchdata", "gapless") else package


def user_place(trace: TracebackType | None) -> str:
    """Return ``file:line`` of the user's innermost line in `trace`; "" if there is none."""
    place = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if is_user(code.co_filename):
            place = f"{short_path(code.co_filename)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def short_path(file: str) -> str:
    """Return `file` relative to the working directory if it is inside, else unchanged."""
    relative = os.path.relpath(file) if not file.startswith("<") else file
    return file if relative.startswith("..") else relative


def definition(function: Callable[..., Any] | None) -> SourceLine | None:
    """Return where `function` is defined if it is the user's; None for a library's."""
    code = getattr(inspect.unwrap(function), "__code__", None) if function is not None else None
    if code is None or not is_user(code.co_filename):
        return None
    return source_line(code.co_filename, code.co_firstlineno, getattr(function, "__qualname__", code.co_name))


def item_line(dataset: Any) -> SourceLine | None:
    """Return the line of the dataset's ``__getitem__``, ``__getitems__`` or ``__iter__``, through
    wrappers.
    """
    for _ in range(8):
        kind = type(dataset)
        for name in ("__getitems__", "__getitem__", "__iter__"):
            line = definition(getattr(kind, name, None))
            if line is not None:
                return line
        dataset = getattr(dataset, "dataset", None)  # Subset and similar wrappers
        if dataset is None:
            return None
    return None

"""A script's own failure, shown as Python would show it without Gapless."""

from __future__ import annotations

import os
import sys
import traceback
from types import TracebackType

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def show(error: BaseException) -> None:
    """Print the traceback of `error` through `sys.excepthook`, without Gapless's own frames."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        current.__traceback__ = without_own_frames(current.__traceback__)
        pending += [current.__cause__, current.__context__]
        pending += getattr(current, "exceptions", ())  # an exception group's
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException:  # the script's own hook failed; Python falls back likewise
        sys.__excepthook__(type(error), error, error.__traceback__)


def without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """`trace` without the frames of Gapless's own files, wherever in it they stand."""
    kept = [one for one in _links(trace) if not one.tb_frame.f_code.co_filename.startswith(_OWN)]
    following: TracebackType | None = None
    for one in reversed(kept):
        following = TracebackType(following, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return following


def _links(trace: TracebackType | None) -> list[TracebackType]:
    links = []
    while trace is not None:
        links.append(trace)
        trace = trace.tb_next
    return links


def place(error: BaseException, folder: str) -> str:
    """``file:line`` of the innermost frame below `folder` in the traceback of `error`, else of the outermost."""
    frames = traceback.extract_tb(without_own_frames(error.__traceback__))
    mine = [frame for frame in frames if frame.filename.startswith(folder + os.sep)] or frames[:1]
    return f"{mine[-1].filename}:{mine[-1].lineno}" if mine else ""


def message(error: BaseException) -> str:
    """``ValueError: what it says``, in one line."""
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    return text.splitlines()[-1] if text else type(error).__name__

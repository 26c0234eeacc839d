"""SIGTERM, as a time limit sends it: it ends the script and not the report."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_forks_are_watched = False


class Terminated(BaseException):
    """SIGTERM arrived."""


def _handle(number: int, frame: FrameType | None) -> None:
    raise Terminated


@contextmanager
def terminable() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM, where nobody has asked for something else."""
    if not _on_main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    _watch_forks()
    signal.signal(signal.SIGTERM, _handle)
    try:
        yield
    finally:
        _reset()


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _reset() -> bool:
    """Let SIGTERM do what it does by default; whether it was ours until now."""
    if not _on_main_thread() or signal.getsignal(signal.SIGTERM) is not _handle:
        return False
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return True


def _watch_forks() -> None:
    """Have children of the script begin with the default: SIGTERM must end them at once.

    The handler is taken away before the fork and not after it, because Python forgets signals that arrive
    in a child before it has looked after itself.
    """
    global _forks_are_watched
    if _forks_are_watched or not hasattr(os, "register_at_fork"):
        return
    _forks_are_watched = True
    taken: list[bool] = []

    def restore() -> None:
        if taken.pop():
            signal.signal(signal.SIGTERM, _handle)

    os.register_at_fork(before=lambda: taken.append(_reset()), after_in_parent=restore, after_in_child=_reset)

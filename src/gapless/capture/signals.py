"""SIGTERM, as a time limit or a launcher sends it: it ends the script and not the report."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

GRACE = 2.0
"""Seconds the script has for noticing SIGTERM before it is taken to be stuck."""

_forks_are_watched = False
_noticed = threading.Event()


class Terminated(BaseException):
    """SIGTERM arrived."""


def _handle(number: int, frame: FrameType | None) -> None:
    _noticed.set()
    raise Terminated


@contextmanager
def terminable(when_stuck: Callable[[], None] | None = None) -> Iterator[None]:
    """Raise `Terminated` on SIGTERM, where nobody has asked for something else.

    Python handles signals between two of its own instructions, and a rank that waits for another one in a
    collective executes none. With `when_stuck` a thread watches for that: it calls `when_stuck` `GRACE`
    seconds after a SIGTERM that nothing came of.
    """
    if not _on_main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    _watch_forks()
    _noticed.clear()
    signal.signal(signal.SIGTERM, _handle)
    if when_stuck is not None:
        _start_watching(when_stuck)
    try:
        yield
    finally:
        _reset()


def _start_watching(when_stuck: Callable[[], None]) -> None:
    """The C handler writes the number of each signal into a pipe, whatever Python is doing."""
    read, write = os.pipe()
    os.set_blocking(write, False)

    def watch() -> None:
        while signal.SIGTERM not in os.read(read, 64):
            pass
        if not _noticed.wait(GRACE):
            when_stuck()

    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    threading.Thread(target=watch, name="gapless-signals", daemon=True).start()


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _reset() -> bool:
    """Let SIGTERM do what it does by default; whether it was ours until now."""
    if not _on_main_thread() or signal.getsignal(signal.SIGTERM) is not _handle:
        return False
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return True


def _leave_child() -> None:
    _reset()
    if _on_main_thread():
        signal.set_wakeup_fd(-1)  # a child's signals are not its parent's


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

    os.register_at_fork(
        before=lambda: taken.append(_reset()), after_in_parent=restore, after_in_child=_leave_child
    )

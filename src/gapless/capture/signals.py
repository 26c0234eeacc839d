"""SIGTERM (a time limit, a launcher) and SIGHUP (a closed terminal) end the script, and not the report."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM
"""Exit statuses, as shells give them, of processes that signals ended."""

GRACE = 2.0
"""Seconds the script has for noticing SIGTERM before it is taken to be stuck."""

Handler = Callable[[int, FrameType | None], None]
_handlers: list[Handler] = []
"""Handlers of Gapless, which forked processes do not keep."""
_forks_are_watched = False
_noticed = threading.Event()


ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that end a process by default and leave it time to save."""


class Terminated(BaseException):
    """A signal of `ENDING` arrived; `status` is what the process ends with."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


def _handle(number: int, frame: FrameType | None) -> None:
    _noticed.set()
    raise Terminated(number)


def raise_on_signals(
    exception: Callable[[int], BaseException | None], when_stuck: Callable[[], None]
) -> None:
    """Raise ``exception(number)``, if it is one, on each signal of `ENDING` from now on.

    Where somebody has asked for something else, or in another thread than the main one, nothing changes.
    `when_stuck` is as in :func:`terminable`.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        _noticed.set()
        error = exception(number)
        if error is not None:
            raise error

    numbers = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]
    if _on_main_thread() and numbers:
        _noticed.clear()
        handle_in_this_process(numbers, handle)
        _start_watching(when_stuck)


@contextmanager
def terminable(when_stuck: Callable[[], None] | None = None) -> Iterator[None]:
    """Raise `Terminated` on each signal of `ENDING`, where nobody has asked for something else.

    Python handles signals between two of its own instructions, and a rank that waits for another one in a
    collective executes none. With `when_stuck` a thread watches for that: it calls `when_stuck` `GRACE`
    seconds after a SIGTERM that nothing came of.
    """
    numbers = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]
    if not _on_main_thread() or not numbers:
        yield
        return
    _noticed.clear()
    handle_in_this_process(numbers, _handle)
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
        while not set(ENDING) & set(os.read(read, 64)):
            pass
        if not _noticed.wait(GRACE):
            when_stuck()

    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    threading.Thread(target=watch, name="gapless-signals", daemon=True).start()


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def handle_in_this_process(numbers: Iterable[int], handler: Handler) -> None:
    """Install `handler` for signals, and have processes that are forked meanwhile begin with the default."""
    _watch_forks()
    if handler not in _handlers:
        _handlers.append(handler)
    for number in numbers:
        signal.signal(number, handler)


def _reset() -> dict[int, Handler]:
    """Let signals do what they do by default, and return the handlers of Gapless that they had until now."""
    if not _on_main_thread():
        return {}
    current = {number: signal.getsignal(number) for number in (signal.SIGINT, *ENDING)}
    handled = {number: handler for number, handler in current.items() if handler in _handlers}
    for number in handled:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    return handled


def _leave_child() -> None:
    _reset()
    if _on_main_thread():
        signal.set_wakeup_fd(-1)  # a child's signals are not its parent's


def _watch_forks() -> None:
    """Have children of the script begin with the default: signals must end them at once.

    The handler is taken away before the fork and not after it, because Python forgets signals that arrive
    in a child before it has looked after itself.
    """
    global _forks_are_watched
    if _forks_are_watched or not hasattr(os, "register_at_fork"):
        return
    _forks_are_watched = True
    taken: list[dict[int, Handler]] = []

    def restore() -> None:
        for number, handler in taken.pop().items():
            signal.signal(number, handler)

    os.register_at_fork(
        before=lambda: taken.append(_reset()), after_in_parent=restore, after_in_child=_leave_child
    )

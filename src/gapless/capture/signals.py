"""Let SIGTERM (a time limit, a launcher) and SIGHUP (a closed terminal) end the script but not the report."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM
"""Exit statuses, as shells give them, of processes ended by a signal."""

GRACE_SECONDS = 2.0
"""Seconds that the script has to notice SIGTERM before it counts as stuck."""

Handler = Callable[[int, FrameType | None], None]
_handlers: list[Handler] = []
"""Gapless's handlers, which forked processes drop."""
_forks_are_watched = False
_noticed = threading.Event()


ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that end a process by default but leave it time to save."""


class Terminated(BaseException):
    """A signal of `ENDING` arrived; `status` is the exit status for it."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


def _handle(number: int, frame: FrameType | None) -> None:
    _noticed.set()
    raise Terminated(number)


def raise_on_signals(
    exception: Callable[[int], BaseException | None], when_stuck: Callable[[], None]
) -> None:
    """Raise ``exception(number)``, unless it is None, on each signal of `ENDING` from now on.

    Signals with another handler are left alone, and so is everything outside the main thread. `when_stuck` is
    as in :func:`terminable`.
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
    """Raise `Terminated` on each signal of `ENDING` that has no other handler.

    Python handles signals between two instructions, but a rank that waits in a collective executes none. With
    `when_stuck` a thread watches for that: it calls `when_stuck` `GRACE_SECONDS` after a SIGTERM without
    effect.
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
    """Call `when_stuck` if a signal is not noticed; its number comes through a pipe that the C handler
    writes."""
    read, write = os.pipe()
    os.set_blocking(write, False)

    def watch() -> None:
        while not set(ENDING) & set(os.read(read, 64)):
            pass
        if not _noticed.wait(GRACE_SECONDS):
            when_stuck()

    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    threading.Thread(target=watch, name="gapless-signals", daemon=True).start()


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def handle_in_this_process(numbers: Iterable[int], handler: Handler) -> None:
    """Install `handler` for signals; processes forked meanwhile start with the default handler."""
    _watch_forks()
    if handler not in _handlers:
        _handlers.append(handler)
    for number in numbers:
        signal.signal(number, handler)


def _reset() -> dict[int, Handler]:
    """Restore the default handlers, and return Gapless's handlers that were replaced."""
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
    """Make the script's children start with the default handlers: signals must end them at once.

    The handlers are removed before the fork and not after it, because Python forgets signals that arrive in a
    child before it is set up.
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

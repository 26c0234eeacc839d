"""Handle signals after the script has ended, while its session is saved and reported."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, TypeVar

from gapless.capture.signals import ENDING, Terminated, handle_in_this_process

Result = TypeVar("Result")
_HURRY = "finishing the report without further measurements; a second signal saves the session and leaves"


class Abandoned(BaseException):
    """A second signal arrived: save the session and leave with `status`."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


class Finishing:
    """Keeps signals from ending the process before the session is saved and reported.

    From :meth:`begin` to the end of the ``with`` block, the first signal only cuts short what :meth:`attempt`
    runs; a second one raises `Abandoned`, once :meth:`may_leave` was called. Ignored signals (``nohup``) stay
    ignored; other threads than the main one change nothing.

    Args:
        say: shows a line to the user; it is called in a signal handler, and so must not use buffers.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._before: dict[int, Any] = {}
        self._attempting = False
        self._may_leave = False
        self.hurried = False

    def __enter__(self) -> Finishing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def begin(self) -> None:
        """The script has ended: handle signals from now on."""
        if self._before or threading.current_thread() is not threading.main_thread():
            return
        current = {number: signal.getsignal(number) for number in (signal.SIGINT, *ENDING)}
        free = (signal.SIG_DFL, signal.default_int_handler)
        self._before = {number: handler for number, handler in current.items() if handler in free}
        handle_in_this_process(self._before, self._handle)

    def hurry(self) -> None:
        """Skip optional work: a time limit ended the script, and may kill this process soon."""
        self.hurried = True

    def may_leave(self) -> None:
        """Allow leaving on a second signal: there is a session to save."""
        self._may_leave = True

    def attempt(self, function: Callable[[], Result], instead: Result) -> Result:
        """Return ``function()``; `instead` if there is no time or a signal arrives."""
        if self.hurried:
            return instead
        self._attempting = True
        try:
            return function()
        except (KeyboardInterrupt, Terminated):
            return instead
        finally:
            self._attempting = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.hurried and self._may_leave:
            raise Abandoned(number)
        first, self.hurried = not self.hurried, True
        if first:
            self._say(_HURRY)
        if self._attempting:
            raise KeyboardInterrupt if number == signal.SIGINT else Terminated(number)

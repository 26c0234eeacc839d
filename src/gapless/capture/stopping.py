"""Stop a script once enough of its steps were recorded."""

from __future__ import annotations

import os
import sys
import threading
from collections import ChainMap, Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from types import FrameType
from typing import Any

from gapless.model import Recurrence, StepMark
from gapless.model.planned import Planned

MAX_STOP_REQUESTS = 5
"""How often a script that swallows the request to stop is asked again."""


class EnoughSteps(BaseException):
    """Stops the script from inside the first superfluous optimizer step.

    It is not an `Exception`, because scripts catch those.
    """


class Watcher:
    """Follows a script's steps and says when they are enough; this base class never does."""

    def enough(self, mark: StepMark) -> bool:
        """Whether to stop the script at `mark`."""
        return False

    def overdue(self, seconds: float) -> bool:
        """Whether to stop it between two marks, `seconds` after the capture began."""
        return False

    def phases(self) -> tuple[Recurrence, ...]:
        """The recurring parts between steps, as far as known."""
        return ()

    def planned(self) -> Planned:
        """How many steps the whole run has, if the script's loops tell."""
        return Planned()


@dataclass
class Stopper:
    """Raises `EnoughSteps` when `watcher` says so; `requests` counts how often.

    `cut` is the time of a stop between two marks, for example in a long evaluation. Threads and asyncio tasks
    that train side by side are each asked.
    """

    watcher: Watcher = field(default_factory=Watcher)
    requests: int = 0
    cut: float = 0.0
    pid: int = field(default_factory=os.getpid)
    _request_counts: Counter[int] = field(default_factory=Counter)
    _lock: Lock = field(default_factory=Lock)

    @property
    def ignored(self) -> bool:
        """Whether the script, or one of its threads, went on despite every request."""
        return max(self._request_counts.values(), default=0) > MAX_STOP_REQUESTS

    def __call__(self, mark: StepMark) -> None:
        if os.getpid() != self.pid:
            return  # a forked child is the script's own affair
        with self._lock:
            enough = self.watcher.enough(mark)
        if enough:
            self._stop(mark.strand)

    def between(self, seconds: float) -> None:
        """Ask the watcher in the main thread, `seconds` after the capture began, between two marks."""
        here = os.getpid() == self.pid and threading.current_thread() is threading.main_thread()
        if here and self.watcher.overdue(seconds):
            self.cut = self.cut or seconds
            self._stop(0)

    def _stop(self, strand: int) -> None:
        if self._request_counts[strand] > MAX_STOP_REQUESTS:
            return
        self.requests += 1
        self._request_counts[strand] += 1
        if self._request_counts[strand] <= MAX_STOP_REQUESTS:
            raise EnoughSteps


def variables(file: str, first: int, last: int) -> Mapping[str, object] | None:
    """Return the variables of the innermost running function at lines `first` to `last` of `file`; None if
    none.

    Call it in the thread that makes the step, during the step.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == file and first <= frame.f_lineno <= last:
            return ChainMap(frame.f_locals, frame.f_globals)
        frame = frame.f_back
    return None


def hide_in_threads() -> None:
    """Let `EnoughSteps` end a thread without a traceback."""
    shown = threading.excepthook

    def excepthook(args: Any) -> None:
        if args.exc_type is None or not issubclass(args.exc_type, EnoughSteps):
            shown(args)

    threading.excepthook = excepthook


def comes_from_stopping(error: BaseException) -> bool:
    """Whether `error` results from `EnoughSteps` and is not the script's own."""
    return any(isinstance(link, EnoughSteps) for link in chain(error))


def chain(error: BaseException) -> list[BaseException]:
    """Return `error` and all its causes, contexts and group members, each once."""
    errors: dict[int, BaseException] = {}
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is None or id(current) in errors:
            continue
        errors[id(current)] = current
        pending += [current.__cause__, current.__context__]
        pending += getattr(current, "exceptions", ())  # an exception group's
    return list(errors.values())

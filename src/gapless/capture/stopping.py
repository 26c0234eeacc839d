"""Stopping a script once enough of its steps have been seen."""

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

from gapless.model import Mark, Recurrence
from gapless.model.planned import Planned

GIVE_UP = 5
"""A script that swallows the request to stop is asked this many times."""


class EnoughSteps(BaseException):
    """Stops the script from inside the optimizer step that was one too many.

    Not an `Exception`: scripts catch those.
    """


class Watcher:
    """Looks on while a script makes its steps, and says when enough of it was seen: as it stands, never."""

    def enough(self, mark: Mark) -> bool:
        """Whether the script is to be stopped at `mark`."""
        return False

    def overdue(self, seconds: float) -> bool:
        """Whether it is to be stopped between two marks, `seconds` since the capture began."""
        return False

    def phases(self) -> tuple[Recurrence, ...]:
        """What is known of the parts that recur between steps."""
        return ()

    def planned(self) -> Planned:
        """How many steps the whole run has, where the script's loops tell."""
        return Planned()


@dataclass
class Stopper:
    """Raises `EnoughSteps` where `watcher` has seen enough; `requests` counts how often it has.

    `cut` is when that was between two marks, as an evaluation may be long. Threads and asyncio tasks that
    train side by side are each asked.
    """

    watcher: Watcher = field(default_factory=Watcher)
    requests: int = 0
    cut: float = 0.0
    pid: int = field(default_factory=os.getpid)
    _asked: Counter[int] = field(default_factory=Counter)
    _lock: Lock = field(default_factory=Lock)

    @property
    def ignored(self) -> bool:
        """Whether the script, or one of its threads, went on in spite of every request."""
        return max(self._asked.values(), default=0) > GIVE_UP

    def __call__(self, mark: Mark) -> None:
        if os.getpid() != self.pid:
            return  # a forked child is the script's own affair
        with self._lock:
            enough = self.watcher.enough(mark)
        if enough:
            self._stop(mark.strand)

    def between(self, seconds: float) -> None:
        """At `seconds` since the capture began, somewhere in what the main thread does between two marks."""
        here = os.getpid() == self.pid and threading.current_thread() is threading.main_thread()
        if here and self.watcher.overdue(seconds):
            self.cut = self.cut or seconds
            self._stop(0)

    def _stop(self, strand: int) -> None:
        if self._asked[strand] > GIVE_UP:
            return
        self.requests += 1
        self._asked[strand] += 1
        if self._asked[strand] <= GIVE_UP:
            raise EnoughSteps


def variables(file: str, first: int, last: int) -> Mapping[str, object] | None:
    """What names stand for in the innermost running function that is at a line of `file` from `first` to
    `last`; None where none is. To be called in the thread that made the step, while it does."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == file and first <= frame.f_lineno <= last:
            return ChainMap(frame.f_locals, frame.f_globals)
        frame = frame.f_back
    return None


def hide_in_threads() -> None:
    """Let `EnoughSteps` end a thread quietly: the script should not print a traceback for it."""
    shown = threading.excepthook

    def excepthook(args: Any) -> None:
        if args.exc_type is None or not issubclass(args.exc_type, EnoughSteps):
            shown(args)

    threading.excepthook = excepthook


def comes_from_stopping(error: BaseException) -> bool:
    """Whether `error` was raised while `EnoughSteps` was on its way, and is not the script's own."""
    return any(isinstance(one, EnoughSteps) for one in chain(error))


def chain(error: BaseException) -> list[BaseException]:
    """`error` and every exception it names as its cause, its context or its part, each once."""
    found: dict[int, BaseException] = {}
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is None or id(current) in found:
            continue
        found[id(current)] = current
        pending += [current.__cause__, current.__context__]
        pending += getattr(current, "exceptions", ())  # an exception group's
    return list(found.values())

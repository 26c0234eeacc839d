"""Stopping a script once enough of its steps have been seen."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gapless.model import Mark

GIVE_UP = 5
"""A script that swallows the request to stop is asked this many times."""


class EnoughSteps(BaseException):
    """Stops the script from inside the optimizer step that was one too many.

    Not an `Exception`: scripts catch those.
    """


@dataclass
class Stopper:
    """Raises `EnoughSteps` at a step mark when `enough` says so; `requests` counts how often it has."""

    enough: Callable[[Mark], bool]
    requests: int = 0
    pid: int = field(default_factory=os.getpid)

    @property
    def ignored(self) -> bool:
        """Whether the script went on in spite of every request."""
        return self.requests > GIVE_UP

    def __call__(self, mark: Mark) -> None:
        if os.getpid() != self.pid:
            return  # a forked child is the script's own affair
        if not self.enough(mark) or self.ignored:
            return
        self.requests += 1
        if not self.ignored:
            raise EnoughSteps


def hide_in_threads() -> None:
    """Let `EnoughSteps` end a thread quietly: the script should not print a traceback for it."""
    shown = threading.excepthook

    def excepthook(args: Any) -> None:
        if args.exc_type is None or not issubclass(args.exc_type, EnoughSteps):
            shown(args)

    threading.excepthook = excepthook


def comes_from_stopping(error: BaseException) -> bool:
    """Whether `error` was raised while `EnoughSteps` was on its way: a consequence and not the script's own."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        if isinstance(current, EnoughSteps):
            return True
        seen.add(id(current))
        current = current.__cause__ or current.__context__
    return False

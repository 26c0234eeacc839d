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

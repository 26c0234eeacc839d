"""Run an action before `os._exit` ends the process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import NoReturn


def precede(action: Callable[[int], object]) -> None:
    """Call `action` with the status before `os._exit` ends this process or a fork of it."""
    real = os._exit

    @wraps(real)
    def hard_exit(status: int) -> NoReturn:
        os._exit = real  # an action that itself calls os._exit is not called again
        action(status)
        real(status)

    os._exit = hard_exit


@contextmanager
def preceding(action: Callable[[int], object]) -> Iterator[Callable[[int], NoReturn]]:
    """Do as :func:`precede` within this block; yields the real `os._exit`."""
    real = os._exit
    precede(action)
    try:
        yield real
    finally:
        os._exit = real

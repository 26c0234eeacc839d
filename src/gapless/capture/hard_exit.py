"""`os._exit`, which ends a process on the spot: what is to happen before."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import NoReturn


def precede(action: Callable[[int], object]) -> None:
    """Call `action` with the status before `os._exit` ends this process, or one forked from it."""
    real = os._exit

    @wraps(real)
    def hard_exit(status: int) -> NoReturn:
        os._exit = real  # an action that leaves so itself is not asked again
        action(status)
        real(status)

    os._exit = hard_exit


@contextmanager
def preceded(action: Callable[[int], object]) -> Iterator[Callable[[int], NoReturn]]:
    """As :func:`precede`, in this block alone; yields what ends the process without."""
    real = os._exit
    precede(action)
    try:
        yield real
    finally:
        os._exit = real

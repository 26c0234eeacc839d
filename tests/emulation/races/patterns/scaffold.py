"""What patterns are made of, and how they are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

import torch
import torch.distributed as dist

N = 1024
PATTERNS: dict[str, Callable[[], None]] = {}
RANKS: set[str] = set()
"""Those that run as one of two ranks."""
DEVICES: set[str] = set()
"""Those that run with two devices."""


def pattern(function: Callable[[], None]) -> Callable[[], None]:
    PATTERNS[function.__name__] = function
    return function


def versions(**named: tuple[Any, ...]) -> Any:
    """Patterns that are one function, by name, with what each of them calls it with."""

    def register(function: Any) -> Any:
        PATTERNS.update({name: partial(function, *arguments) for name, arguments in named.items()})
        return function

    return register


def ranks(function: Callable[[], None]) -> Callable[[], None]:
    """A pattern that runs as one of two ranks, in a group."""

    @wraps(function)
    def grouped() -> None:
        dist.init_process_group("nccl")
        function()

    PATTERNS[function.__name__] = grouped
    RANKS.add(function.__name__)
    return function


def two_devices(function: Callable[[], None]) -> Callable[[], None]:
    DEVICES.add(function.__name__)
    return pattern(function)


def gpu(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (N,)), device="cuda")


def pinned(*shape: int) -> torch.Tensor:
    return torch.zeros(*(shape or (N,)), pin_memory=True)


def current() -> Any:
    return torch.cuda.current_stream()


def nothing(*_: Any) -> None:
    """Where right code waits."""


@contextmanager
def beside(side: Any = None, waits: bool = True, joins: bool = False) -> Iterator[Any]:
    """A block on a stream that `waits` for the current one before, which `joins` it behind."""
    side = side or torch.cuda.Stream()
    if waits:
        side.wait_stream(current())
    with torch.cuda.stream(side):
        yield side
    if joins:
        current().wait_stream(side)

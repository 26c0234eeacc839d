"""A script run as it is, and told of its steps."""

from __future__ import annotations

import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


class Enough(BaseException):
    """Ends a script that has been seen for long enough."""


def run(path: Path, words: list[str], on_step: Callable[[int], object]) -> None:
    """Run a script as it is, and call `on_step` with the number of each optimizer step."""
    count = 0

    def hook(*_: object) -> None:
        nonlocal count
        count += 1
        on_step(count)

    sys.argv = [str(path), *words]
    sys.path.insert(0, str(path.parent))
    handle = register_optimizer_step_post_hook(hook)
    try:
        runpy.run_path(str(path), run_name="__main__")
    except Enough:
        pass
    finally:
        handle.remove()


def seconds(path: Path, words: list[str], warm_up: int, timed: int) -> float:
    """Seconds per step of those behind the warm-up; the device is done when the clock is read."""
    read: list[float] = []

    def step(number: int) -> None:
        if number in (warm_up, warm_up + timed):
            torch.cuda.synchronize()
            read.append(time.perf_counter())
        if number >= warm_up + timed:
            raise Enough

    run(path, words, step)
    if len(read) < 2:
        raise RuntimeError(f"{path.name} has fewer than {warm_up + timed} steps")
    return (read[1] - read[0]) / timed

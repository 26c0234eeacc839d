"""A script run as it is, and told of its steps."""

from __future__ import annotations

import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


class StopScript(BaseException):
    """Ends a script after enough steps."""


def run(path: Path, words: list[str], on_step: Callable[[int], object]) -> None:
    """Run a script unchanged, calling `on_step` with the number of each optimizer step."""
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
    except StopScript:
        pass
    finally:
        handle.remove()


def seconds(path: Path, words: list[str], warm_up: int, timed: int) -> float:
    """Return the seconds per step after the warm-up, synchronized at both ends."""
    read: list[float] = []

    def step(number: int) -> None:
        if number in (warm_up, warm_up + timed):
            torch.cuda.synchronize()
            read.append(time.perf_counter())
        if number >= warm_up + timed:
            raise StopScript

    run(path, words, step)
    if len(read) < 2:
        raise RuntimeError(f"{path.name} has fewer than {warm_up + timed} steps")
    return (read[1] - read[0]) / timed

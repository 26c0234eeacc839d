"""Progress while traces are read: a bar with the time left on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


class Reading:
    """What is told while it goes on."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def files(self, done: int, of: int) -> None:
        """`done` of `of` files are read."""
        self._progress.update(self._task, completed=done, total=of)

    def within(self, size: int) -> Callable[[int], None]:
        """For one file of `size` bytes (0: unknown): what to call with the bytes read so far."""

        def told(done: int) -> None:
            self._progress.update(self._task, completed=done, total=size or None)

        return told


@contextmanager
def reading(files: int, *, quiet: bool) -> Iterator[Reading]:
    """A bar on standard error for as long as this lasts; it leaves nothing behind."""
    console = Console(file=sys.stderr)
    columns = (TextColumn("gapless: reading"), BarColumn(), TimeRemainingColumn())
    shown = console.is_terminal and not quiet
    with Progress(*columns, console=console, transient=True, disable=not shown) as progress:
        name = "1 trace" if files == 1 else f"{files} traces"
        yield Reading(progress, progress.add_task(name, total=None))

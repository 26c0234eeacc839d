"""A bar with the time left on standard error, for as long as something lasts; on terminals only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

Told = Callable[[float, float, str], None]
"""``told(done, of, what)``: `of` is 0 where it is unknown; `what` is going on, "" for the same as before."""


@contextmanager
def bar(what: str, *, quiet: bool) -> Iterator[Told]:
    """A bar that says `what` is going on, and leaves nothing behind; plain under ``--no-color``, too."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield lambda done, of, what: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(file=sys.stderr, no_color=True if _plain() else None, force_jupyter=False)
    columns = (TextColumn("gapless: {task.description}", markup=False), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=None)
        now = what

        def told(done: float, of: float, what: str) -> None:
            nonlocal now
            if what and what != now:  # the time left is that of this part: speed is measured anew
                now = what
                progress.reset(task, total=of or None, description=what)
            progress.update(task, completed=done, total=of or None)

        yield told


def _plain() -> bool:
    """Whether the command that is running was given ``--no-color``."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.params.get("no_color"))

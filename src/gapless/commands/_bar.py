"""A progress bar with the time left on standard error, shown on terminals only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

UpdateBar = Callable[[float, float, str], None]
"""``update(done, of, activity)``: `of` is 0 if unknown; an `activity` of "" keeps the previous one."""


@contextmanager
def bar(description: str, *, quiet: bool) -> Iterator[UpdateBar]:
    """Show a progress bar with `description` and remove it at the end; ``--no-color`` turns off its
    colours."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield lambda done, of, activity: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(file=sys.stderr, no_color=True if _is_color_off() else None, force_jupyter=False)
    columns = (TextColumn("gapless: {task.description}", markup=False), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(description, total=None)
        now = description

        def update(done: float, of: float, activity: str) -> None:
            nonlocal now
            if activity and activity != now:  # the time left is that of this activity: measure its speed anew
                now = activity
                progress.reset(task, total=of or None, description=activity)
            progress.update(task, completed=done, total=of or None)

        yield update


def _is_color_off() -> bool:
    """Whether the running command was given ``--no-color``."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.params.get("no_color"))

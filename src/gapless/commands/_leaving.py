"""The end of a command that has stopped a script."""

from __future__ import annotations

import atexit
import os

from gapless.capture.threads import abandon
from gapless.commands._progress import Progress
from gapless.model import Ending

PATIENCE = 5.0
"""Seconds for what a stopped script leaves running."""


def leave_behind(progress: Progress, ending: Ending, status: int) -> None:
    """Do not wait forever for threads that wait for a script that was stopped."""
    if ending.how not in ("enough-steps", "interrupted"):
        return
    left = abandon(PATIENCE)
    if left:
        progress.problem(f"exiting although {left} of the script's threads did not end")
        atexit._run_exitfuncs()
        os._exit(status)

"""Leave the process after a script was stopped."""

from __future__ import annotations

import atexit
import os

from gapless.capture.threads import abandon
from gapless.commands._progress import Progress
from gapless.model import Ending

MAX_SECONDS_TO_LEAVE = 5.0
"""Seconds that threads of a stopped script get to end."""


def exit_despite_threads(progress: Progress, ending: Ending, status: int) -> None:
    """Exit now if threads of a stopped script do not end, instead of waiting for them forever."""
    if ending.how not in ("enough-steps", "interrupted"):
        return
    left = abandon(MAX_SECONDS_TO_LEAVE)
    if left:
        progress.problem(f"exiting although {left} of the script's threads did not end")
        atexit._run_exitfuncs()
        os._exit(status)

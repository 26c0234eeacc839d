"""What other processes are given to do: functions of a module, as the commands' own are."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from gapless.errors import UnreadableInput
from gapless.model import Profile


def read(path: str) -> Profile:
    """A profile that tells its file and its process; the file says what goes wrong."""
    text = Path(path).read_text()
    if text == "bad":
        raise UnreadableInput(f"{path} is no trace")
    if text == "huge":
        raise MemoryError
    if text == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if text == "defect":
        raise ZeroDivisionError("a defect")
    return Profile(path=path, span=int(text), rank=os.getpid())


def killed_among_others(path: str) -> Profile:
    """The process is killed unless it is alone, as where several together take too much memory."""
    mark = Path(path).with_suffix(".tried")
    if Path(path).read_text() == "killed" and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return Profile(path=path, span=1)


def hang(path: str) -> Profile:
    """Says that it began, then never ends."""
    Path(path).with_suffix(".begun").write_text(str(os.getpid()))
    signal.pause()
    raise AssertionError("unreachable")

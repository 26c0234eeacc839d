"""A terminal for commands: what they write to it, and how wide it is."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys
import termios
import time
from pathlib import Path

_STEERS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOR = re.compile(r"\x1b\[[0-9;]*m")


def run(program: str, *, columns: int, folder: Path, seconds: float = 60, **environment: str) -> str:
    """What the Python `program` writes to a terminal that is its standard output and error."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, (40, columns)) if hasattr(termios, "tcsetwinsize") else _size(ours, columns)
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "TERM")}
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env={**kept, "TERM": "xterm-256color", **environment},
    )
    os.close(theirs)
    written = b""
    end = time.monotonic() + seconds
    with contextlib.suppress(OSError):  # Linux says so that nobody has the terminal any more
        while time.monotonic() < end and (more := os.read(ours, 1 << 16)):
            written += more
    os.close(ours)
    assert child.wait(seconds) == 0
    return written.decode()


def _size(descriptor: int, columns: int) -> None:
    """As Python 3.11's ``termios.tcsetwinsize`` does."""
    import fcntl
    import struct

    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))


def lines(written: str) -> list[str]:
    """What is left on the terminal, line by line; of a line that was written again the last."""
    plain = _STEERS.sub("", written).replace("\r\n", "\n")
    return [line.rsplit("\r", 1)[-1] for line in plain.split("\n")]

"""The script run again, in a process of its own, with something changed; what it prints goes nowhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gapless.errors import UnreadableInput
from gapless.model import Session
from gapless.model.session import load

_PATIENCE = 60.0
"""Seconds for a process that is interrupted to save what it saw."""
_LAST = 400
"""Characters of what a process wrote last that may be the reason."""
_QUIET = ("--find", "", "--no-loader", "--no-compile-pass", "--quiet", "--silent", "--memory")


@dataclass(frozen=True)
class Ran:
    """What came of it: the session, or why there is none; and how many seconds it took."""

    session: Session | None
    seconds: float
    why: str = ""


@dataclass(frozen=True)
class Again:
    """How the command line began: Gapless's own `options`, and the `words` of the script (or the arguments of
    the module, which is named at the end of `options`), in the folder and the environment of then."""

    options: Sequence[str]
    words: Sequence[str]
    module: bool = False
    folder: str = field(default_factory=os.getcwd)
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))

    def __call__(
        self,
        words: Sequence[str],
        *more: str,
        quiet: Sequence[str] = _QUIET,
        limit: float | None = None,
    ) -> Ran:
        """Run it with these `words`, and these further options of Gapless's, some of which keep it `quiet`.

        After `limit` seconds it is interrupted, as by the user.
        """
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="gapless-", ignore_cleanup_errors=True) as folder:
            path = Path(folder) / "again.gapless.json"
            command = self.command(words, *quiet, *more, "-o", str(path))
            with open(Path(folder) / "errors", "w+b") as errors:
                process = subprocess.Popen(
                    command,
                    cwd=self.folder,
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                )
                try:
                    status = _waited(process, limit)
                except BaseException:
                    process.kill()
                    process.wait()
                    raise
                errors.seek(0)
                told = errors.read().decode("utf-8", "replace")
            seconds = time.monotonic() - began
            try:
                session = load(str(path))
            except (UnreadableInput, OSError):
                return Ran(None, seconds, _why(status, told))
        return Ran(session, seconds, _why(session.ending.status, told) if session.ending.status else "")

    def command(self, words: Sequence[str], *more: str) -> list[str]:
        """The words that run it so."""
        named = self.options[-self._naming :] if self.module else ()
        own = self.options[: len(self.options) - len(named)]
        return [sys.executable, "-m", "gapless", "check", *own, *more, *named, *words]

    @property
    def _naming(self) -> int:
        """How many words name the module: ``-m train``, or ``--module=train``."""
        return 2 if self.options[-2:-1] in (["-m"], ["--module"], ("-m",), ("--module",)) else 1


def _waited(process: subprocess.Popen[bytes], limit: float | None) -> int:
    """The status with which it ends, once it has ended or is interrupted."""
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    try:
        return process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _why(status: int, told: str) -> str:
    """The reason why a process ended so: the last line of what it wrote."""
    if status == -signal.SIGKILL:
        return "the process was killed, as it is when this machine's memory runs out"
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    last = lines[-1][-_LAST:].removeprefix("gapless: ") if lines else ""
    return last or f"it left with status {status}"

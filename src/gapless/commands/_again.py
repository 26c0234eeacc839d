"""Run the script again in its own process with something changed, discarding its output."""

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

_MAX_SECONDS_TO_STOP = 60.0
"""Seconds that an interrupted process gets to save its session."""
_MAX_REASON_LENGTH = 400
"""Characters kept of the last line that a process wrote, which usually names the reason."""
_QUIET_OPTIONS = ("--find", "", "--no-loader", "--no-compile-pass", "--quiet", "--silent", "--memory")


@dataclass(frozen=True)
class RunResult:
    """The session of a run, or `why` there is none, and how many seconds the run took."""

    session: Session | None
    seconds: float
    why: str = ""


@dataclass(frozen=True)
class Rerun:
    """The command line to repeat: Gapless's own `options` (ending with the module's name, if any) and the
    script's `words`, with the folder and environment they were started in.
    """

    options: Sequence[str]
    words: Sequence[str]
    module: bool = False
    folder: str = field(default_factory=os.getcwd)
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))

    def __call__(
        self,
        words: Sequence[str],
        *more: str,
        quiet: Sequence[str] = _QUIET_OPTIONS,
        limit: float | None = None,
    ) -> RunResult:
        """Run the script with these `words` and `more` options of Gapless; `quiet` options suppress extra
        passes.

        After `limit` seconds the run is interrupted as by Ctrl-C.
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
                    status = _wait_for_status(process, limit)
                except BaseException:
                    process.kill()
                    process.wait()
                    raise
                errors.seek(0)
                error_text = errors.read().decode("utf-8", "replace")
            seconds = time.monotonic() - began
            try:
                session = load(str(path))
            except (UnreadableInput, OSError):
                return RunResult(None, seconds, _find_reason(status, error_text))
        return RunResult(
            session, seconds, _find_reason(session.ending.status, error_text) if session.ending.status else ""
        )

    def command(self, words: Sequence[str], *more: str) -> list[str]:
        """Return the command line of such a run."""
        named = self.options[-self._module_word_count :] if self.module else ()
        own = self.options[: len(self.options) - len(named)]
        return [sys.executable, "-m", "gapless", "check", *own, *more, *named, *words]

    @property
    def _module_word_count(self) -> int:
        """How many words name the module: ``-m train``, or ``--module=train``."""
        return 2 if self.options[-2:-1] in (["-m"], ["--module"], ("-m",), ("--module",)) else 1


def _wait_for_status(process: subprocess.Popen[bytes], limit: float | None) -> int:
    """Wait at most `limit` seconds, then interrupt; return the process's exit status."""
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    try:
        return process.wait(_MAX_SECONDS_TO_STOP)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _find_reason(status: int, error_text: str) -> str:
    """Return why a process failed: the last line that it wrote, or its exit status."""
    if status == -signal.SIGKILL:
        return "the process was killed, as it is when this machine's memory runs out"
    lines = [line.strip() for line in error_text.splitlines() if line.strip()]
    last = lines[-1][-_MAX_REASON_LENGTH:].removeprefix("gapless: ") if lines else ""
    return last or f"it left with status {status}"

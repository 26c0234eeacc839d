"""Run scripts by ``gapless check``, each in a process of its own, to compare their sessions."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from gapless.errors import GaplessError
from gapless.model import Session
from gapless.model.session import load


class ScriptFailed(GaplessError):
    """A script ended with an error; the exit status is the script's."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.exit_code = status


def record_script(words: tuple[str, ...], steps: str, gpu: str | None = None) -> Session:
    """Return the session of ``gapless check`` for the script and arguments `words` over `steps` steady steps.

    The script's output and traceback go to standard error.

    Raises:
        ScriptFailed: the script's exit status was not 0.
    """
    with tempfile.TemporaryDirectory(prefix="gapless-") as folder:
        path = os.path.join(folder, "run.gapless.json")
        options = ["--steps", steps, "-q", "-f", "json", "-o", path, *(("--gpu", gpu) if gpu else ())]
        command = [sys.executable, "-m", "gapless", "check", *options, *words]
        # Its report is in the session; the script's own output must not mix with the comparison.
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=None, stdin=subprocess.DEVNULL)
        sys.stderr.flush()
        printed = done.stdout.rsplit(b"\n", 2)[0] if done.stdout.endswith(b"}\n") else done.stdout
        if printed.strip():
            sys.stderr.write(printed.decode(errors="backslashreplace").rstrip() + "\n")
        if done.returncode or not os.path.exists(path):
            status = done.returncode if done.returncode > 0 else 128 - done.returncode
            raise ScriptFailed(f"{' '.join(words)} ended with status {status}: nothing to compare", status)
        return load(path)

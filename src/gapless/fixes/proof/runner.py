"""Run versions of a project in child processes, within limits of time."""

from __future__ import annotations

import hashlib
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import msgspec

from gapless.capture.options import CaptureOptions
from gapless.errors import GaplessError
from gapless.fixes.proof.printed_text import PrintedLine, split_lines
from gapless.fixes.proof.project import COPIES_PREFIX, ProjectVersion
from gapless.fixes.proof.reached_lines import LineMap
from gapless.fixes.proof.run_record import RunPlan, RunRecord
from gapless.model import Ending, Session
from gapless.model.session import load

_SECONDS_TO_SAVE = 10.0
"""Seconds that a run gets to save its record once it is told to end."""
_SECONDS_TO_START = 180.0
"""Seconds for importing torch on a busy machine."""
_MAX_TEXT_BYTES = 4 << 20
"""Larger text files that the script wrote are not compared."""
_DATA_ENDINGS = (".npy", ".npz", ".pickle", ".pkl", ".png", ".safetensors")
"""Files that hold no time of their own, so that the same data are the same bytes."""


@dataclass(frozen=True)
class Run:
    """What one run showed. `why` says why there is no record; `steps` it made are known even so.

    `output` and `errors` are the printed lines, `warnings` those of Python, `files` the lines of files that
    the script wrote, of data a digest and of what is not compared None, `lines` the lines that ran.
    """

    version: ProjectVersion
    record: RunRecord
    session: Session
    output: list[PrintedLine]
    errors: list[PrintedLine]
    warnings: list[str]
    files: dict[str, list[PrintedLine] | None]
    lines: dict[str, frozenset[int]]
    folder: Path
    root: Path
    why: str = ""

    @property
    def values(self) -> Path:
        """The file of stored elements."""
        return self.folder / "values"

    def discard(self) -> None:
        """Remove the files of this run, once it was compared."""
        shutil.rmtree(self.folder, ignore_errors=True)


class VersionRunner:
    """Runs versions of projects, one after the other, each in a process of its own.

    Every copy lies at the same place while it runs, so that what depends on the path is the same.
    Use it as a context manager: it ends all processes and removes all copies.
    """

    def __init__(self, capture: CaptureOptions, arguments: tuple[str, ...], seed: int = 0) -> None:
        self._capture = capture
        self._arguments = arguments
        self._seed = seed
        self._folder = Path(tempfile.mkdtemp(prefix=COPIES_PREFIX)).resolve()
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._number = 0

    def __enter__(self) -> VersionRunner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all processes and remove all files."""
        self._stop_process()
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(
        self, version: ProjectVersion, *, max_steps: int | None, seconds: float | None, limit: float
    ) -> Run:
        """Run `version`, for at most `limit` seconds; see `RunPlan` for `max_steps` and `seconds`."""
        self._number += 1
        results = self._folder / f"run{self._number}"
        results.mkdir()
        root = self._folder / "copy" / (version.project.root.name or "project")
        shutil.rmtree(root, ignore_errors=True)
        version.copy_to(root)
        sources = version.sources()
        before = _stamps(root)
        plan = RunPlan(
            root=str(root),
            script=version.project.script,
            folder=version.project.folder,
            original=str(version.project.root),
            results=str(results),
            sources=sources,
            arguments=self._arguments,
            capture=self._capture,
            max_steps=max_steps,
            seconds=seconds,
            seed=self._seed,
        )
        try:
            status = self._follow(plan, limit)
        except BaseException:
            self._kill()
            raise
        output, warnings = split_lines(_read(results / "output"))
        errors, more = split_lines(_read(results / "errors"))
        record, session, why = _load(results, status, limit, errors)
        written = {
            path: _read_lines(root / path)
            for path, stamp in _stamps(root).items()
            if before.get(path) != stamp
        }
        lines = LineMap(str(results / "lines"), str(root), sources).read()
        return Run(
            version, record, session, output, errors, warnings + more, written, lines, results, root, why
        )

    def _follow(self, plan: RunPlan, limit: float) -> int | None:
        """Have the plan run, and return the exit status; None if it was ended after `limit` seconds."""
        process = self._start()
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(plan) + b"\n")
        process.stdin.flush()
        self._pid = self._read_number(_SECONDS_TO_START) or 0
        status = self._read_number(limit)
        timed_out = status is None and process.poll() is None
        if timed_out:
            self._signal(signal.SIGTERM)
            self._read_number(_SECONDS_TO_SAVE)
        self._kill()  # what the script has left behind, too
        if timed_out:  # it may wait for what is gone
            self._stop_process()
        return None if timed_out else status

    def _stop_process(self) -> None:
        """End the process that forks and the script that runs."""
        self._kill()
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            environment = {**os.environ, "PYTHONHASHSEED": "0", "GIT_OPTIONAL_LOCKS": "0"}
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gapless.fixes.proof.child"],
                cwd=self._folder,  # where no module of the user's is in the way
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
        return self._process

    def _read_number(self, seconds: float) -> int | None:
        """Return the next number that the process answers; None if there is none in time."""
        assert self._process is not None
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as ears:
            ears.register(self._process.stdout, selectors.EVENT_READ)
            if not ears.select(seconds):
                return None
        line = self._process.stdout.readline()
        if not line:  # it runs the plan itself, or was killed
            return self._process.wait()
        return int(line)

    def _signal(self, number: int) -> None:
        if self._pid:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, number)

    def _kill(self) -> None:
        if self._pid:
            self._signal(signal.SIGKILL)
            self._pid = 0


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _stamps(root: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of change of the files below `root`, by relative path."""
    stamps = {}
    for place, folders, names in os.walk(root):
        folders[:] = [folder for folder in folders if folder not in (".git", "__pycache__")]
        for name in names:
            path = Path(place, name)
            if path.is_file() and not path.is_symlink():
                stat = path.stat()
                stamps[path.relative_to(root).as_posix()] = stat.st_size, stat.st_mtime_ns
    return dict(sorted(stamps.items()))


def _read_lines(path: Path) -> list[PrintedLine] | None:
    """Return the lines of a text file, a line for all of a file of data, or None if they say nothing."""
    if path.name.endswith(_DATA_ENDINGS):
        digest = f"data with digest {hashlib.sha256(_read(path)).hexdigest()[:12]}"
        return [PrintedLine(digest, digest, 0)]
    data = _read(path) if path.stat().st_size <= _MAX_TEXT_BYTES else b"\0"
    if b"\0" in data:
        return None
    try:
        data.decode()
    except UnicodeDecodeError:
        return None
    return split_lines(data)[0]


def _load(
    results: Path, status: int | None, limit: float, errors: list[PrintedLine]
) -> tuple[RunRecord, Session, str]:
    """Return the record and the session of a run, and why it says nothing ("" if it does)."""
    nothing = RunRecord(ending=Ending(how="interrupted")), Session()
    path = results / "record"
    if not path.exists():
        if status is None:
            return *nothing, f"did not end in {limit:.0f} s"
        if status == -signal.SIGKILL:
            return *nothing, "was killed, as it is when this machine's memory runs out"
        last = errors[-1].text.removeprefix("gapless: ") if errors else f"it left with status {status}"
        return *nothing, f"did not run: {last}"
    try:
        record = msgspec.msgpack.decode(path.read_bytes(), type=RunRecord)
        session = load(str(results / "session.gapless.json"))
    except (msgspec.DecodeError, GaplessError) as error:
        return *nothing, f"left a record that cannot be read: {error}"
    if status is None:
        steps = len(record.steps)
        return record, session, f"did not end in {limit:.0f} s: it was at step {steps}"
    return record, session, ""

"""Fixtures for every room."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fork_server
import hypothesis
import pytest

os.environ["GAPLESS_HOST"] = "usual"  # no test depends on how fast this machine is

if "PYTEST_XDIST_WORKER" not in os.environ:  # a worker inherits all this
    # Pytest keeps what failed tests wrote where it would without this.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    # Killed processes leave files; the path is short, since sockets in it may have 108 characters.
    tempfile.tempdir = tempfile.mkdtemp(prefix="t-")
    os.environ["TMPDIR"] = fork_server.ENVIRONMENT["TMPDIR"] = tempfile.tempdir
    atexit.register(shutil.rmtree, tempfile.tempdir, ignore_errors=True)

# How long an example takes is no property of the code: other processes use the machine, too.
# Two runs of one commit test the same examples; `make fuzz` draws new ones.
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis.settings.register_profile("random", deadline=None)
hypothesis.settings.load_profile(os.environ.get("GAPLESS_EXAMPLES", "repeatable"))


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: going through it at each collection is a fourth of a
    test run's time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """And so does what the tests of a module have imported."""
    if nextitem is None or nextitem.path != item.path:
        pytest_collection_finish()


HERE = Path(__file__).parent
Process = subprocess.CompletedProcess[str]


def start(*words: str, cwd: Path, **environment: str) -> subprocess.Popen[str]:
    """Start Python with `words` in `cwd`, with none of the variables that change what is tested."""
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=cwd,
        env={**fork_server.ENVIRONMENT, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="backslashreplace",
        preexec_fn=fork_server.heed_interrupts if os.name == "posix" else None,
    )


def finish(process: subprocess.Popen[str], timeout: float = fork_server.LIMIT) -> Process:
    """Wait for `process`, and end it where it does not end."""
    try:
        out, err = process.communicate(timeout=fork_server.patience(timeout))
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        pytest.fail(f"no end after {timeout} s\n{out}\n{err}")
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., Process]:
    """``python(*words)`` runs Python in an empty folder."""
    return lambda *words, **changes: fork_server.run(words, tmp_path, **changes)


@pytest.fixture
def plain_python(tmp_path: Path) -> Callable[..., Process]:
    """``plain_python(*words)``: the same where nothing is imported yet, and no copy of a process is."""
    return lambda *words: finish(start(*words, cwd=tmp_path))


@pytest.fixture
def fake_gapless(python: Callable[..., Process]) -> Callable[..., Process]:
    """``fake_gapless("check", "train.py")``: the command line on the device that only counts."""
    return lambda *words, **environment: python(str(HERE / "fake_gapless.py"), *words, **environment)


@pytest.fixture(scope="module")
def emulation() -> Iterator[Any]:
    """One emulated device, shared by the tests of a module that use it."""
    import gapless  # not all that is tested here does with torch

    with gapless.emulate() as emulation:
        yield emulation


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """``write(name, text)`` makes a file in the folder the processes run in."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write

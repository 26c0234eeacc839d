"""What was collected is reported or saved, whatever happens after the script has ended."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import fork_server
import pytest

from gapless.model.session import load

HERE = Path(__file__).parent.parent
TRAIN = "import gpu\nfor step in range(5):\n    gpu.wait()\n    gpu.step()\n"
RUN = f"""
import os, runpy, signal, sys
import gapless.commands._checking as checking
import gapless.commands._output as output
{{change}}
sys.argv = ["gapless", "check", "-q", *sys.argv[1:], "train.py"]
runpy.run_path({str(HERE / "fake_gapless.py")!r}, run_name="__main__")
"""
SIGNALS_DURING_THE_REPORT = """
render = checking.renderer
def with_signals(form):
    for number in numbers:
        signal.raise_signal(number)
    return render(form)
checking.renderer = with_signals
numbers = {numbers}
"""
FAILING_STREAM = """
def fail(text):
    raise OSError({number}, os.strerror({number}))
own_copy = output.own_copy
def failing_copy(stream):
    copy = own_copy(stream)
    if stream is sys.stdout:
        copy.write = fail
    return copy
output.own_copy = failing_copy
"""


@pytest.fixture
def check(write, python, tmp_path, monkeypatch):
    """``check(change, *options)`` runs `gapless check` with something changed; temporary files stay here."""
    write("train.py", TRAIN)
    folder = tmp_path / "temporary"
    folder.mkdir()

    def run(change, *options):
        write("run.py", RUN.format(change=change))
        return python("run.py", *options, TMPDIR=str(folder))

    return run


def saved_elsewhere(saved_report, tmp_path):
    """The session that the command saved by itself, and named."""
    (path,) = (tmp_path / "temporary").glob("gapless-*.gapless.json")
    assert f"gapless show {path}" in saved_report.stderr
    return load(str(path))


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_one_signal_lets_the_report_come(name, check):
    report = check(SIGNALS_DURING_THE_REPORT.format(numbers=f"[signal.{name}]"))
    assert report.returncode == 0, report.stderr
    assert "train.py:3" in report.stdout
    assert "finishing the report without further measurements" in report.stderr


@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_second_signal_saves_and_leaves(name, status, check, tmp_path):
    report = check(SIGNALS_DURING_THE_REPORT.format(numbers=f"[signal.{name}] * 2"))
    assert report.returncode == status
    assert report.stdout == ""
    assert "Traceback" not in report.stderr
    assert len(saved_elsewhere(report, tmp_path).marks) == 5


def test_a_session_that_was_asked_for_is_named_instead(check, tmp_path):
    report = check(SIGNALS_DURING_THE_REPORT.format(numbers="[signal.SIGTERM] * 2"), "-o", "run.json")
    assert (
        "stopped before the report was written; the session is saved: gapless show run.json" in report.stderr
    )
    assert len(load(str(tmp_path / "run.json")).marks) == 5
    assert not list((tmp_path / "temporary").glob("gapless-*.json"))


def test_ignored_signals_stay_ignored(check):
    change = SIGNALS_DURING_THE_REPORT.format(numbers="[signal.SIGHUP] * 3")
    report = check(change + "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n")
    assert report.returncode == 0
    assert "train.py:3" in report.stdout
    assert "finishing" not in report.stderr


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_report_that_cannot_be_written_is_saved(number, check, tmp_path):
    report = check(FAILING_STREAM.format(number=number))
    assert report.returncode == 3
    assert f"cannot write the report: {os.strerror(number)}; the session is saved" in report.stderr
    assert len(saved_elsewhere(report, tmp_path).marks) == 5


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
def test_a_pipe_that_nobody_reads_is_no_error_and_loses_nothing(write, tmp_path):
    write("train.py", TRAIN)
    (tmp_path / "temporary").mkdir()
    read, written = os.pipe()
    os.close(read)
    result = subprocess.run(
        [sys.executable, str(HERE / "fake_gapless.py"), "check", "-q", "train.py"],
        cwd=tmp_path,
        env={**fork_server.ENVIRONMENT, "TMPDIR": str(tmp_path / "temporary")},
        stdout=written,
        stderr=subprocess.PIPE,
        text=True,
        timeout=fork_server.patience(fork_server.LIMIT),
        check=False,
    )
    os.close(written)
    assert result.returncode == 0
    assert "the report's reader has gone" in result.stderr
    assert len(saved_elsewhere(result, tmp_path).marks) == 5

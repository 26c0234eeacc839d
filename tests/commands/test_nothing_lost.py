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

    def run(change, *options, **environment):
        write("run.py", RUN.format(change=change))
        return python("run.py", *options, TMPDIR=str(folder), **environment)

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


RANK_1 = {"RANK": "1", "WORLD_SIZE": "2"}


def test_another_rank_that_fails_names_its_session_behind_its_own_error(check, write, tmp_path):
    write("train.py", TRAIN + "raise ValueError('no luck')\n")
    report = check("", **RANK_1)
    assert (report.returncode, report.stdout) == (1, "")
    *_, error, line = report.stderr.splitlines()
    assert error == "ValueError: no luck"
    assert line.startswith("gapless: rank 1 failed; the session is saved: gapless show ")
    assert len(saved_elsewhere(report, tmp_path).marks) == 5


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("interrupted", "rank 1 was stopped by SIGTERM"),
        ("raise KeyboardInterrupt", ""),
        ("raise SystemExit(0)", ""),
        ("raise SystemExit(3)", "rank 1 failed"),
    ],
)
def test_another_rank_that_was_stopped_names_its_session(how, said, check, write, tmp_path):
    stop = "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n" if how == "interrupted" else how
    write("train.py", TRAIN + stop)
    report = check("", "-o", "run.json", **RANK_1)
    line = f"gapless: {said}; the session is saved: gapless show run.rank1.json"
    assert (line in report.stderr.splitlines()) is bool(said)
    assert len(load(str(tmp_path / "run.rank1.json")).marks) == 5
    assert not list((tmp_path / "temporary").iterdir())


LAUNCHED = """
import os, signal
exec(open("train.py").read())
if os.environ["RANK"] == "0":
    open("pipe").read()
    os.kill(os.getpid(), signal.SIGKILL)
open("pipe", "w").close()
while True:
    signal.pause()
"""


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_where_rank_0_is_killed_the_other_names_its_session(write, python, tmp_path):
    pytest.importorskip("torch")
    write("train.py", TRAIN)
    write("launched.py", LAUNCHED)
    (tmp_path / "temporary").mkdir()
    os.mkfifo(tmp_path / "pipe")
    words = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(HERE / "fake_gapless.py"))
    report = python("-m", *words, "check", "-q", "launched.py", TMPDIR=str(tmp_path / "temporary"))
    assert report.returncode != 0
    assert report.stdout == ""
    assert "rank 1 was stopped by SIGTERM; the session is saved" in report.stderr
    assert len(saved_elsewhere(report, tmp_path).marks) == 5

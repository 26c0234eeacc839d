"""Every option that names a file to write: what the name may be, and that no report is lost."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from typing import Any

import click
import pytest
from trace_builder import training

from gapless.commands import cli, main
from gapless.errors import UnreadableInput
from gapless.files import output

SAVED = Path(__file__).parents[1] / "model" / "saved"


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "trace.json"
    path.write_bytes(training(steps=3).text())
    return path


def file_options() -> list[tuple[str, str]]:
    """Every command's options that name a file to write."""
    context = click.Context(cli)
    return [
        (name, option.opts[0])
        for name in cli.list_commands(context)
        for option in getattr(cli.get_command(context, name), "params", ())
        if getattr(option, "help", None)
        and str(option.help).startswith(("Save", "Write"))
        and option.metavar == "FILE"
    ]


def test_the_options_that_write_are_known() -> None:
    assert set(file_options()) == {
        ("check", "-o"),
        ("compare", "-o"),
        ("loader", "-o"),
        ("memory", "-o"),
        ("memory", "--export"),
        ("trace", "-o"),
        ("trace", "--perfetto"),
    }


@pytest.mark.parametrize("name", [".", "", "folder", "folder/", "no/file", "x" * 300])
@pytest.mark.parametrize(("command", "option"), file_options())
def test_an_impossible_name_is_refused_before_anything_runs(trace, capsys, command, option, name):
    Path("folder").mkdir()
    Path("train.py").write_text("raise SystemError('it ran')\n")
    words = {"compare": ["train.py:a", "train.py:b"], "loader": ["train.py:a"]}.get(command, ["train.py"])
    assert main([command, option, name, *words]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("gapless: cannot write ")
    assert err.count("\n") == 1


WRITES = {
    "trace -o": ["trace", "-q", "-o", "FILE", "trace.json"],
    "trace --perfetto": ["trace", "-q", "--perfetto", "FILE", "trace.json"],
    "trace --evidence": ["trace", "-q", "--evidence", "-o", "FILE", "trace.json"],
    "memory -o": ["memory", "-q", "-o", "FILE", str(SAVED / "memory.json")],
    "memory --export": ["memory", "-q", "--export", "FILE", str(SAVED / "memory.json")],
    "loader -o": ["loader", "-o", "FILE", str(SAVED / "loader.json")],
}


def run(capsys: pytest.CaptureFixture[str], how: str, name: str) -> tuple[int, str, str]:
    status = main([name if word == "FILE" else word for word in WRITES[how]])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.parametrize("how", WRITES)
def test_links_stay_and_modes_stay(trace, capsys, how):
    Path("real").write_text("old")
    Path("real").chmod(0o640)
    os.link("real", "other")
    Path("link").symlink_to("real")
    assert run(capsys, how, "link")[0] == 0
    assert Path("link").is_symlink()
    assert Path("real").stat().st_size > 3
    assert stat.S_IMODE(Path("real").stat().st_mode) == 0o640
    assert Path("other").samefile("real")


@pytest.mark.parametrize("name", ["trace.json", "link", "./trace.json"])
def test_a_trace_is_not_written_over(trace, capsys, name):
    Path("link").symlink_to("trace.json")
    before = trace.read_bytes()
    assert run(capsys, "trace -o", name) == (2, "", f"gapless: {name} is read: write to another file\n")
    assert trace.read_bytes() == before


@pytest.mark.parametrize("how", WRITES)
def test_a_pipe_gets_what_a_file_would(trace, capsys, how):
    assert run(capsys, how, "file")[0] == 0
    os.mkfifo("pipe")
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(Path("pipe").read_bytes()))
    reader.start()
    assert run(capsys, how, "pipe")[0] == 0
    reader.join()
    assert got == [Path("file").read_bytes()]
    assert stat.S_ISFIFO(os.stat("pipe").st_mode)


@pytest.mark.parametrize("how", WRITES)
def test_a_full_disk_costs_neither_the_old_file_nor_the_report(trace, capsys, monkeypatch, how):
    usual = run(capsys, how, "file")[1]
    Path("file").write_text("old")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(output, "_install", full)
    status, out, err = run(capsys, how, "file")
    assert (status, out) == (3, usual) or "--evidence" in how
    assert err.endswith("gapless: cannot write file: No space left on device\n")
    assert Path("file").read_text() == "old"
    assert sorted(os.listdir()) == ["file", "trace.json"]


def test_nothing_but_the_writer_replaces_or_opens_files_for_writing() -> None:
    """Whatever writes goes through the writer; the exceptions write what they made themselves."""
    import re

    own = re.compile(
        r"os\.replace\(|os\.rename\(|\.rename\(|\.write_text\(|\.write_bytes\(|open\([^)\n]*\"[wxa]b?\""
    )
    allowed = {
        "files/output.py",
        "emulation/cuda_api/smi.py",
        "emulation/graphs/graph.py",
        "metrics/logging.py",
    }
    allowed |= {"commands/_output.py", "commands/_again.py", "capture/profiling_others.py"}
    # A proof runs copies of a project in a folder of its own.
    allowed |= {f"fixes/proof/{name}.py" for name in ("child", "project", "states")}
    source = Path(output.__file__).parents[1]
    paths = {
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if "rules/" not in str(path) and own.search(path.read_text())
    }
    assert paths <= allowed
    assert issubclass(UnreadableInput, Exception)

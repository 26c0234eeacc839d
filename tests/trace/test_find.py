"""Which files are meant."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
from trace_builder import Trace

from gapless.errors import UnreadableInput
from gapless.trace.find import find_traces


def trace() -> bytes:
    written = Trace()
    written.operator("aten::mm", 0, 1)
    return written.text()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run" / "deep").mkdir(parents=True)
    for name in ("run/rank_10.json", "run/rank_2.pt.trace.json", "run/deep/x.json"):
        (tmp_path / name).write_bytes(trace())
    (tmp_path / "run/rank_1.pt.trace.json.gz").write_bytes(gzip.compress(trace()))
    (tmp_path / "run/config.json").write_text('{"lr": 0.1}')
    (tmp_path / "run/log.txt").write_text("hello")
    return tmp_path


def path(*parts: str) -> str:
    return os.path.join(*parts)


def test_a_folder(folder: Path) -> None:
    skipped: list[str] = []
    assert find_traces(["run"], skipped) == [
        path("run", "rank_1.pt.trace.json.gz"),
        path("run", "rank_2.pt.trace.json"),
        path("run", "rank_10.json"),
        path("run", "deep", "x.json"),
    ]
    assert skipped == [path("run", "config.json")]


def test_patterns(folder: Path) -> None:
    assert find_traces(["run/rank_*.json"]) == ["run/rank_2.pt.trace.json", "run/rank_10.json"]
    assert find_traces(["**/x.json"]) == [path("run", "deep", "x.json")]
    assert find_traces(["ru?"]) == find_traces(["run"])
    assert set(find_traces(["run/**"])) >= {
        "run/rank_10.json",
        "run/log.txt",
    }  # what was named is taken at its word


def test_files_as_given_and_once(folder: Path) -> None:
    assert find_traces(["run/log.txt", "run/rank_10.json", "-", "run/rank_10.json"]) == [
        "run/log.txt",
        "run/rank_10.json",
        "-",
    ]


def test_a_name_with_brackets_is_a_name(folder: Path) -> None:
    (folder / "run[1].json").write_bytes(trace())
    assert find_traces(["run[1].json"]) == ["run[1].json"]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("none.json", "cannot read none.json: there is no such file or folder"),
        ("none*.json", "no file matches none*.json"),
        ("empty", "empty is a folder without traces: it contains no *.json or *.json.gz"),
        ("others", "others is a folder without traces: it contains only a.json, which is not a trace"),
        ("many", "many is a folder without traces: it contains 2 JSON files, none of which is a trace"),
    ],
)
def test_nothing_found(folder: Path, argument: str, message: str) -> None:
    for name, count in (("empty", 0), ("others", 1), ("many", 2)):
        (folder / name).mkdir()
        for number in range(count):
            (folder / name / f"{'ab'[number]}.json").write_text("[1]")
    with pytest.raises(UnreadableInput) as caught:
        find_traces([argument])
    assert str(caught.value) == message


@pytest.mark.parametrize("name", ["events.out.tfevents.17.host.1.0", "plugins/profile/1/host.xplane.pb"])
def test_a_tensorboard_log_is_read_where_it_holds_traces(folder: Path, name: str) -> None:
    written = folder / "empty" / name
    written.parent.mkdir(parents=True)
    written.write_bytes(b"")
    with pytest.raises(UnreadableInput, match=r"^empty is a TensorBoard log .*gapless profile$"):
        find_traces(["empty"])
    (folder / "empty" / "host_1.17.pt.trace.json").write_bytes(trace())
    assert find_traces(["empty"]) == [path("empty", "host_1.17.pt.trace.json")]


def test_a_file_that_cannot_be_opened_is_not_passed_over(folder: Path) -> None:
    (folder / "run" / "gone.json").symlink_to(folder / "nowhere")
    assert path("run", "gone.json") in find_traces(["run"])


def test_remote(folder: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for number in (1, 2, 10):
        memory.pipe(f"/found/run/rank_{number}.json", trace())
    memory.pipe("/found/run/config.json", b"{}")
    names = [f"memory:///found/run/rank_{number}.json" for number in (1, 2, 10)]
    assert find_traces(["memory://found/run/rank_*.json"]) == names
    skipped: list[str] = []
    assert find_traces(["memory://found/run"], skipped) == names
    assert skipped == ["memory:///found/run/config.json"]
    with pytest.raises(UnreadableInput, match=r"^no file matches memory://found/x\*$"):
        find_traces(["memory://found/x*"])

"""What files are, by how they begin; those of other programs by name, with what to record instead."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import pickle
import sqlite3
import struct
from pathlib import Path
from typing import Any

import pytest
from trace_builder import Trace, training

from gapless.commands import main
from gapless.errors import UnreadableInput
from gapless.files.kinds import kind_of, recognize
from gapless.trace.find import find_traces
from gapless.trace.read import read

SAVED = Path(__file__).parents[1] / "model" / "saved"


def database(folder: Path, table: str) -> bytes:
    with sqlite3.connect(folder / "made") as connection:
        connection.execute(f"CREATE TABLE {table} (start INTEGER, value TEXT)")
    connection.close()
    return (folder / "made").read_bytes()


def event(name: str, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "pid": 1, "tid": 2, "ts": 1.0, "dur": 2.0, "name": name, **more}


def chrome(*names: str, **head: Any) -> bytes:
    metadata = [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": name}} for name in names]
    return json.dumps({**head, "traceEvents": [*metadata, event("work"), event("more")]}).encode()


def record(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + b"\1\2\3\4" + data + b"\1\2\3\4"


FOREIGN: dict[str, tuple[str, Any, str]] = {
    "execution trace": (
        "et.json",
        b'{\n  "schema": "1.1.1-chakra.0.0.4", "pid": 7, "time": "2026", "start_ts": 1,\n  "nodes": [\n'
        b'  {"id": 2, "name": "x", "ctrl_deps": 1}]}',
        "a PyTorch execution trace",
    ),
    "older execution trace": (
        "et.json",
        b'{"schema": "1.0.1", "pid": 7, "nodes": [{"id": 2}]}',
        "a PyTorch execution trace",
    ),
    "rocprof's JSON": ("r.json", b'{"rocprofiler-sdk-tool": [{"metadata": {}}]}', "a result of rocprof"),
    "rocprof's table": ("r.csv", b'"Kind","Agent_Id","Queue_Id","Kernel_Name"\n', "a table of rocprof"),
    "older rocprof's table": ("r.csv", b'"Index","KernelName","gpu-id"\n', "a table of rocprof"),
    "rocprof's database": ("r.db", lambda folder: database(folder, "rocpd_kernel"), "a database of rocprof"),
    "Nsight Systems": ("r.nsys-rep", b"\0\1\2\3\4", "a report of Nsight Systems"),
    "older Nsight Systems": ("r.qdrep", b"\0\1\2\3\4", "a report of Nsight Systems"),
    "Nsight Compute": ("r.ncu-rep", b"NVR\0\1\2", "a report of Nsight Compute"),
    "Nsight Compute by its content": ("report", b"NVR\0\1\2", "a report of Nsight Compute"),
    "Nsight's database": (
        "r.sqlite",
        lambda folder: database(folder, "CUPTI_ACTIVITY_KIND_KERNEL"),
        "a database that Nsight Systems exported",
    ),
    "Ascend's database": (
        "msprof_0.db",
        lambda folder: database(folder, "CANN_API"),
        "a profile of an Ascend NPU",
    ),
    "JAX": ("host.xplane.pb", b"\n\x10\x12\x0e/host:metadata", "a profile of JAX or TensorFlow"),
    "JAX by its content": ("profile", b"\n\x10\x12\x0e/device:GPU:0", "a profile of JAX or TensorFlow"),
    "memory timeline": ("m.json", b"[[1, 2, 3], [[0, 1], [2, 3], [4, 5]]]", "a memory timeline"),
    "raw memory timeline": (
        "m.json",
        b"[[12345, 0, 512, 1], [12346, 3, -512, null]]",
        "a raw memory timeline",
    ),
    "picture of a memory timeline": (
        "m.html",
        b'<html>\n<head><meta charset="utf-8" /><title>GPU Memory Timeline HTML</title></head>',
        "a picture of PyTorch's memory timeline",
    ),
    "Ascend": ("trace_view.json", chrome("Ascend Hardware", "CANN"), "a profile of an Ascend NPU"),
    "TensorBoard": (
        "events.out.tfevents.17.host",
        record(b"\x09\0\0\0\0\0\0\0\0\x1a\x0dbrain.Event:2"),
        "a TensorBoard event file",
    ),
    "TensorFlow": (
        "t.trace.json",
        chrome("/host:CPU", displayTimeUnit="ns", metadata={"highres-ticks": True}),
        "a trace of JAX or TensorFlow",
    ),
    "Chrome": ("chrome.json", chrome("CrBrowserMain"), "a trace of the browser Chrome"),
    "VizTracer": ("v.json", chrome(viztracer_metadata={"version": "1"}), "a trace of VizTracer"),
    "speedscope": (
        "p.json",
        b'{"$schema": "https://www.speedscope.app/file-format-schema.json", "profiles": []}',
        "a profile of py-spy or speedscope",
    ),
    "memray": ("m.bin", b"memray\0\1", "a recording of memray"),
    "perf": ("perf.data", b"PERFILE2\0", "a recording of perf"),
    "xz": ("t.json.xz", lzma.compress(b"{}"), "compressed with xz"),
    "bzip2": ("t.json.bz2", bz2.compress(b"{}"), "compressed with bzip2"),
}


def write(folder: Path, name: str) -> Path:
    file, data, _ = FOREIGN[name]
    path = folder / file
    path.write_bytes(data(folder) if callable(data) else data)
    return path


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_of_another_program_is_called_by_its_name(tmp_path, capsys, name, packed):
    path = write(tmp_path, name)
    if packed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    for command in ("trace", "show", "memory"):
        assert main([command, str(path)]) == 3
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"gapless: {path} is {FOREIGN[name][2]}")
        assert err.count("\n") == 1
        assert ": " in err.removeprefix(f"gapless: {path} is ")


def test_in_a_folder_it_is_left_out_with_its_name(tmp_path):
    (tmp_path / "trace.json").write_bytes(training(steps=1).text())
    write(tmp_path, "Ascend")
    skipped: list[str] = []
    assert find_traces([str(tmp_path)], skipped) == [str(tmp_path / "trace.json")]
    assert skipped == [f"{tmp_path / 'trace_view.json'} (a profile of an Ascend NPU)"]


@pytest.mark.parametrize("dialect", ["new", "middle", "old"])
@pytest.mark.parametrize("text", sorted({"/host:CPU", "CrBrowserMain", "CANN", "rocprof", "nodes", "schema"}))
def test_what_a_profile_says_does_not_make_it_another_programs(tmp_path, dialect, text):
    trace = Trace(dialect=dialect)
    trace.operator(text, 0, 5)
    trace.operator("aten::mm", 5, 5)
    path = tmp_path / "trace.json"
    path.write_bytes(trace.text())
    assert kind_of(str(path)) == "trace"
    assert text in read(path).names


def test_what_gapless_reads_has_a_name(tmp_path):
    for path in SAVED.glob("*.json"):
        assert recognize(str(path)).name == path.stem
    contents = {
        "trace": training(steps=1).text(),
        "snapshot": pickle.dumps({"segments": [], "device_traces": []}),
        "": b"hello",
    }
    for name, data in contents.items():
        for ending, pack in (("", bytes), (".gz", gzip.compress)):
            path = tmp_path / f"file{ending}"
            path.write_bytes(pack(data))
            assert recognize(str(path)).name == name


class TestFolders:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "a.json").write_bytes(training(steps=1).text())
        (tmp_path / "other.json").write_bytes(training(steps=1).text())
        return tmp_path / "run"

    def find(self, folder: Path, name: str = "") -> tuple[list[str], list[str]]:
        skipped: list[str] = []
        paths = find_traces([name or str(folder)], skipped)
        return [Path(path).name for path in paths], [Path(path).name for path in skipped]

    @pytest.mark.parametrize("pattern", ["", "*.json", "**/*.json"])
    def test_pipes_sockets_and_links_to_devices_are_skipped(self, folder, pattern):
        os.mkfifo(folder / "pipe.json")
        (folder / "null.json").symlink_to(os.devnull)
        paths, skipped = self.find(folder, f"{folder}/{pattern}" if pattern else "")
        assert paths == ["a.json"]
        assert sorted(skipped) == ["null.json (a device)", "pipe.json (a pipe)"]

    def test_links_out_of_the_folder_are_skipped_and_links_inside_are_not(self, folder):
        (folder / "out.json").symlink_to("../other.json")
        (folder / "in.json").symlink_to("a.json")
        assert self.find(folder) == (["a.json", "in.json"], ["out.json (a link out of the folder)"])

    @pytest.mark.parametrize("pattern", ["", "**/*.json", "**"])
    def test_loops_of_links_end(self, folder, pattern):
        for name in ("one", "two", "three"):
            (folder / name).symlink_to(".", target_is_directory=True)
        assert self.find(folder, f"{folder}/{pattern}" if pattern else "")[0] == ["a.json"]

    def test_the_report_says_what_was_skipped(self, folder, capsys, monkeypatch):
        os.mkfifo(folder / "pipe.json")
        monkeypatch.chdir(folder)
        assert main(["trace", "-q", "."]) == 0
        assert "pipe.json (a pipe)" in " ".join(capsys.readouterr().out.split())

    def test_nothing_but_a_pipe(self, folder, capsys):
        (folder / "a.json").unlink()
        os.mkfifo(folder / "pipe.json")
        with pytest.raises(UnreadableInput, match=r"only pipe.json \(a pipe\), which is not a trace"):
            find_traces([str(folder)])


BOMB = b'{"schemaVersion": 1, "traceEvents": [' + b'{"ph": "X", "name": "a", "ts": 1, "dur": 1},' * (1 << 20)


def packed_zip(data: bytes) -> bytes:
    import io
    import zipfile

    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.json", data)
    return held.getvalue()


def packed_zstd(data: bytes) -> bytes:
    compressed: bytes = pytest.importorskip("zstandard").compress(data)
    return compressed


@pytest.mark.parametrize("pack", [gzip.compress, packed_zip, packed_zstd])
@pytest.mark.parametrize("command", ["trace", "memory"])
def test_what_unpacks_to_far_too_much_is_refused(tmp_path, capsys, command, pack):
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(pack(BOMB))
    assert main([command, "-q", str(path)]) == 3
    err = capsys.readouterr().err
    assert "unpack to more than" in err
    assert err.count("\n") == 1

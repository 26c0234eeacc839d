"""Where traces come from, and what is said where there is none."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import sys
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from timeline_checks import assert_same
from trace_builder import Trace, training

from gapless.errors import UnreadableInput
from gapless.files import sources
from gapless.trace.read import read, read_bytes

DATA = training(steps=1).text()


class Stdin:
    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)


def refusal(path: Path | str) -> str:
    with pytest.raises(UnreadableInput) as caught:
        read(path)
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.exit_code == 3
    assert message.startswith(str(path))
    return message.removeprefix(str(path)).strip()


@pytest.mark.parametrize("compressed", [False, True])
def test_files_and_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compressed: bool) -> None:
    data = gzip.compress(DATA) if compressed else DATA
    path = tmp_path / "trace"  # what it is does not depend on its name
    path.write_bytes(data)
    expected = read_bytes(DATA)
    assert_same(read(path), expected)
    monkeypatch.setattr(sys, "stdin", Stdin(data))
    assert_same(read("-"), expected)
    assert not sys.stdin.buffer.closed


def test_members_of_gzip_and_padding(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    cuts = [0, 1, 500, len(DATA)]
    parts = [gzip.compress(DATA[a:b]) for a, b in pairwise(cuts)]
    path.write_bytes(b"".join(parts) + b"\0" * 512)
    assert_same(read(path), read_bytes(DATA))


def test_what_follows_gzip(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(DATA) + b"garbage")
    timeline = read(path)
    assert timeline.notes == ("The data after the compressed part is not gzip and was skipped",)
    assert len(timeline.host) == len(read_bytes(DATA).host)


def long_trace() -> bytes:
    trace = Trace()
    for number in range(3000):
        trace.operator(f"aten::op{number * 7919 % 3001}", 10 * number, 5)
    return trace.text()


def test_a_cut_gzip_yields_what_it_holds(tmp_path: Path) -> None:
    data = long_trace()
    packed = gzip.compress(data, mtime=0)
    path = tmp_path / "a.json.gz"
    counts = []
    for share in (0.25, 0.5, 0.75, 1.0):
        path.write_bytes(packed[: int(len(packed) * share) - 1])
        timeline = read(path)
        counts.append(len(timeline.host))
        assert timeline.facts.truncated
        assert timeline.notes[0] == "The compressed file is truncated: the rest is missing"
    assert counts == sorted(counts)
    assert counts[0] > 300
    assert counts[-1] == 3000


def test_a_damaged_gzip_yields_what_comes_before(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(long_trace(), mtime=0))
    middle = len(packed) // 2
    packed[middle : middle + 64] = b"\xff" * 64
    path = tmp_path / "a.json.gz"
    path.write_bytes(packed)
    timeline = read(path)
    assert 500 < len(timeline.host) < 3000
    assert timeline.notes[0] == "The compressed file is damaged: everything after the damage is missing"


def test_a_wrong_checksum_costs_nothing(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(DATA, mtime=0))
    packed[-6] ^= 1
    path = tmp_path / "a.json.gz"
    path.write_bytes(packed)
    assert len(read(path).host) == len(read_bytes(DATA).host)


def test_progress(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(long_trace()))
    progress: list[int] = []
    read(path, progress.append)
    assert progress == sorted(progress)
    assert progress[-1] == path.stat().st_size == sources.stored_size(str(path))


def test_remote_files() -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.pipe("/gapless/run/rank_0.json.gz", gzip.compress(DATA))
    assert_same(read("memory://gapless/run/rank_0.json.gz"), read_bytes(DATA))
    assert refusal("memory://gapless/none.json") == "cannot be read: there is no such file"
    assert "cannot be opened" in refusal("nosuch://bucket/a.json")


def test_remote_files_without_fsspec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    assert refusal("s3://bucket/a.json") == "is remote: to read it, install fsspec (pip install fsspec)"


def test_a_zip_with_one_trace(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("inside/trace.json", DATA)
    assert_same(read(path), read_bytes(DATA))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("inside/other.json", DATA)
    assert refusal(path) == "is a zip archive with 2 JSON files: unpack it first"


def test_zstd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd" + b"\0" * 20)
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert "pip install zstandard" in refusal(path)


def test_zstd_is_read(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    path = tmp_path / "a.json.zst"
    path.write_bytes(zstandard.ZstdCompressor().compress(DATA))
    assert_same(read(path), read_bytes(DATA))


def test_what_unpacks_to_very_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece that becomes more than is taken at once."""
    trace = Trace()
    trace.operator("aten::mm", 0, 5, note="x" * 300_000)
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(trace.text()))
    for most in (1000, 4096, len(trace.text())):
        monkeypatch.setattr(sources, "_MAX_UNPACKED_CHUNK", most)
        timeline = read(path)
        assert (len(timeline.host), timeline.notes) == (1, ())


def saved_by_torch() -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}))
    return held.getvalue()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty: the profiler wrote nothing, or was killed before it could"),
        (b" \n\0\0", "is empty"),
        (gzip.compress(b"", mtime=0), "is empty"),
        (gzip.compress(b"", mtime=0)[:10], "is empty"),
        (b"hello, world", "is not JSON: it starts with 'hello, world'"),
        (b"<html>\n<body>", "is not JSON: it starts with '<html>'"),
        (bytes(range(128, 256)) * 4, "is a binary file, not JSON: it starts with 80 81 82"),
        (pickle.dumps({"segments": []}), "is a Python pickle (such as a memory snapshot), not a trace"),
        (b"SQLite format 3\0" + bytes(100), "is a database (such as Nsight Systems exports)"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1a\nsize 9\n", "is a Git LFS pointer"),
        (saved_by_torch(), "was written by torch.save: it contains tensors, not a trace"),
        (b"{}", 'it is an empty JSON object, but no "traceEvents"'),
        (b'{"a": 1, "b": 2}', "it is JSON with 'a', 'b', but no \"traceEvents\""),
        (b"[1, 2, 3]", "it is a JSON list, but not of events"),
        (b"[]", "it is a JSON list, but not of events"),
        (b'{"a": 1, "b', "ends before its first event"),
        (b'{"a": x}', 'has no "traceEvents", and is broken JSON'),
        (b'{"traceEvents": []}', "is a trace without events: nothing was recorded"),
        (b'{"traceEvents": [', "was cut off before its first event"),
        (b'{"traceEvents": [{"ph": "X", "na', "was cut off before its first event"),
        (b'{"traceEvents": 5}', 'no "traceEvents"'),
        (b'{"format": "gapless-session", "version": 1}', "is a Gapless session, not a trace: gapless show"),
        (b'{"a":' * 200_000, "endlessly nested JSON"),
        (b'{"traceEvents":' + b"[" * 200_000, "its first event nests too deep"),
        (b'{"traceEvents": [' + b'{"a":' * 200_000, "its first event nests too deep"),
        (
            b'{"traceEvents": [{"ph":"X","args":' + b"[" * 200_000,
            "its first event nests too deep",
        ),
    ],
)
def test_refusals(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "given.json"
    path.write_bytes(data)
    assert said in refusal(path)


def test_no_file_and_a_folder(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.json") == "cannot be read: there is no such file"
    assert refusal(tmp_path) == "cannot be read: it is a directory"


def test_permission_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refused)
    assert refusal(tmp_path / "a.json") == "cannot be read: permission denied"


def test_a_file_that_fails_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell():
                raise OSError(5, "Input/output error")
            return super().read(100)

    class Broken:
        buffer = Failing(DATA)

    monkeypatch.setattr(sys, "stdin", Broken())
    assert refusal("-") == "cannot be read: Input/output error"


def test_large_head_before_the_events() -> None:
    trace = training(steps=1)
    trace.head["metadata"] = {"text": ["x" * 1000] * 3000}
    timeline = read_bytes(json.dumps(trace.document()).encode(), chunk=10_000)
    assert timeline.names == trace.timeline().names
    assert timeline.facts.gpus[0].name.startswith("NVIDIA")

"""The one opener: what is read, what is refused, and that nothing hangs."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from sockets import a_socket

from gapless.errors import UnreadableInput
from gapless.files import input as files
from gapless.files.input import open_rereadable, read_beginning, read_whole, source_text

DATA = b"0123456789" * 1000


def fed(path: Path, data: bytes) -> threading.Thread:
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(data,))
    writer.start()
    return writer


def test_a_file_is_read_again_and_again(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(DATA)
    assert read_beginning(path, 15) == DATA[:15]
    assert read_whole(path) == DATA


@pytest.mark.parametrize("data", [DATA, DATA * 100])
def test_a_pipe_is_read_once_and_has_its_bytes_each_time(tmp_path, data):
    path = tmp_path / "pipe"
    writer = fed(path, data)
    assert read_beginning(path, 15) == data[:15]
    writer.join()
    assert read_whole(path) == data
    with open_rereadable(path) as stream:
        assert stream.read(5) == data[:5]


def test_a_pipe_is_read_in_pieces_as_it_comes(tmp_path):
    path = tmp_path / "pipe"
    writer = fed(path, DATA)
    with files.open_unbuffered(str(path)) as stream:
        parts = list(iter(lambda: stream.read(7), b""))
    writer.join()
    assert b"".join(parts) == DATA


def test_a_pipe_that_nobody_writes_to_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_WRITER_TIMEOUT", 0.0)
    monkeypatch.setattr(files, "_WRITER_POLL", 0.0)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnreadableInput, match="nobody writes to this pipe"):
        read_whole(tmp_path / "pipe")


REFUSED = {
    "folder": (str, "it is a folder"),
    "no name": (lambda folder: "", "cannot read a file without a name"),
    "nothing": (lambda folder: f"{folder}/none", "No such file"),
    "zero byte": (lambda folder: f"{folder}/a\0b", "zero byte"),
    "device": (lambda folder: os.devnull, "it is a device"),
    "socket": (lambda folder: a_socket(folder / "socket"), "it is a socket"),
    "long name": (lambda folder: f"{folder}/{'x' * 300}", "name too long"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("read", [read_whole, lambda path: read_beginning(path, 10), open_rereadable])
def test_a_path_that_is_no_file_is_refused_in_one_line(tmp_path, name, read):
    make, message = REFUSED[name]
    with pytest.raises(UnreadableInput, match=message) as raised:
        read(make(tmp_path))
    assert "\n" not in str(raised.value)


def test_a_loop_of_links(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UnreadableInput, match="symbolic links"):
        read_whole(tmp_path / "loop")


def test_files_too_large_to_read_whole_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_WHOLE_BYTES", 100)
    (tmp_path / "file").write_bytes(DATA)
    with pytest.raises(UnreadableInput, match="too large"):
        read_whole(tmp_path / "file")


class TestSource:
    def test_its_encoding_is_its_own(self, tmp_path):
        path = tmp_path / "a.py"
        path.write_bytes("# coding: latin-1\r\nx = 'é'\n".encode("latin-1"))
        assert source_text(path) == "# coding: latin-1\nx = 'é'\n"

    def test_what_a_file_names_is_not_waited_for(self, tmp_path):
        os.mkfifo(tmp_path / "a.py")
        for path in (tmp_path / "a.py", tmp_path, tmp_path / "none.py", Path(os.devnull)):
            with pytest.raises(OSError, match="no such file"):
                source_text(path)

    def test_a_python_file_may_not_exceed_the_limit_of_source(self, tmp_path, monkeypatch):
        monkeypatch.setattr(files, "_MAX_SOURCE_BYTES", 100)
        (tmp_path / "a.py").write_bytes(DATA)
        with pytest.raises(OSError, match="too large"):
            source_text(tmp_path / "a.py")

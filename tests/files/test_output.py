"""The one writer: what a name can mean, and what failures leave behind."""

from __future__ import annotations

import ast
import errno
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from sockets import a_socket

from gapless.errors import UnreadableInput
from gapless.files import output
from gapless.files.output import is_stream, refuse_unwritable, write_whole, writing, writing_file

OLD, NEW = b"old", b"what is new, and longer"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@contextmanager
def limited(size: int) -> Iterator[None]:
    """No file may grow beyond `size`: as on a full disk, for root, too."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class TestRegularFiles:
    def test_a_new_file_has_the_mode_of_new_files(self, tmp_path):
        write_whole(NEW, tmp_path / "new")
        (tmp_path / "usual").write_bytes(b"")
        assert (tmp_path / "new").read_bytes() == NEW
        assert (tmp_path / "new").stat().st_mode == (tmp_path / "usual").stat().st_mode
        assert names(tmp_path) == ["new", "usual"]

    @pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o755])
    def test_the_mode_stays(self, tmp_path, mode):
        path = tmp_path / "file"
        path.write_bytes(OLD)
        path.chmod(mode)
        write_whole(NEW, path)
        assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (NEW, mode)

    @pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
    def test_the_owner_stays(self, tmp_path):
        path = tmp_path / "file"
        path.write_bytes(OLD)
        os.chown(path, 1234, 4321)
        write_whole(NEW, path)
        assert (path.stat().st_uid, path.stat().st_gid) == (1234, 4321)

    @pytest.mark.skipif(not hasattr(os, "setxattr"), reason="this system's Python has no attributes")
    def test_extended_attributes_stay(self, tmp_path):
        path = tmp_path / "file"
        path.write_bytes(OLD)
        try:
            os.setxattr(path, "user.note", b"mine")
        except OSError:
            pytest.skip("this file system has no attributes")
        write_whole(NEW, path)
        assert (path.read_bytes(), os.getxattr(path, "user.note")) == (NEW, b"mine")

    @pytest.mark.parametrize("old", [OLD, b"much longer than what is new and longer" * 9])
    def test_a_hard_link_is_not_cut(self, tmp_path, old):
        path, other = tmp_path / "file", tmp_path / "other"
        path.write_bytes(old)
        os.link(path, other)
        write_whole(NEW, path)
        assert other.read_bytes() == NEW
        assert other.samefile(path)
        assert names(tmp_path) == ["file", "other"]

    @pytest.mark.parametrize("error", sorted(output._NO_REPLACEMENT))
    def test_where_nothing_takes_its_place_it_is_overwritten(self, tmp_path, monkeypatch, error):
        path = tmp_path / "file"
        path.write_bytes(OLD)
        before = path.stat().st_ino

        def refused(*_: Any) -> None:
            raise OSError(error, os.strerror(error))

        monkeypatch.setattr(output.os, "replace", refused)
        write_whole(NEW, path)
        assert (path.read_bytes(), path.stat().st_ino) == (NEW, before)
        assert names(tmp_path) == ["file"]


class TestLinks:
    @pytest.mark.parametrize("exists", [True, False])
    @pytest.mark.parametrize("relative", [True, False])
    def test_a_link_is_followed(self, tmp_path, exists, relative):
        (tmp_path / "there").mkdir()
        real, link = tmp_path / "there" / "real", tmp_path / "link"
        if exists:
            real.write_bytes(OLD)
        link.symlink_to("there/real" if relative else real)
        write_whole(NEW, link)
        assert link.is_symlink()
        assert not real.is_symlink()
        assert real.read_bytes() == NEW
        assert (names(tmp_path), names(real.parent)) == (["link", "there"], ["real"])

    def test_links_of_links_are_followed(self, tmp_path):
        (tmp_path / "real").write_bytes(OLD)
        for number, aim in enumerate(["real", "link0", "link1"]):
            (tmp_path / f"link{number}").symlink_to(aim)
        write_whole(NEW, tmp_path / "link2")
        assert (tmp_path / "real").read_bytes() == NEW

    def test_a_loop_is_refused(self, tmp_path):
        (tmp_path / "a").symlink_to("b")
        (tmp_path / "b").symlink_to("a")
        with pytest.raises(UnreadableInput, match=r"cannot write .*symbolic links"):
            write_whole(NEW, tmp_path / "a")
        assert names(tmp_path) == ["a", "b"]


class TestStreams:
    def test_a_pipe_is_written_to(self, tmp_path):
        pipe, got = tmp_path / "pipe", []
        os.mkfifo(pipe)
        reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
        reader.start()
        write_whole(NEW, pipe)
        reader.join()
        assert got == [NEW]
        assert stat.S_ISFIFO(pipe.stat().st_mode)
        assert names(tmp_path) == ["pipe"]

    def test_a_pipe_without_a_reader_is_given_up(self, tmp_path, monkeypatch):
        os.mkfifo(tmp_path / "pipe")
        monkeypatch.setattr(output, "_READER_TIMEOUT", 0.0)
        monkeypatch.setattr(output, "_READER_POLL", 0.0)
        with pytest.raises(UnreadableInput, match="nobody reads from this pipe"):
            write_whole(NEW, tmp_path / "pipe")
        assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)

    @pytest.mark.parametrize("folder", ["/dev/fd", "/proc/self/fd", "/proc/thread-self/fd", "link"])
    def test_an_open_descriptor_is_written_to(self, tmp_path, folder):
        if folder != "link" and not os.path.isdir(folder):
            pytest.skip("this system has no such folder")
        path = tmp_path / "file"
        with path.open("w+b") as file:
            file.write(b"before ")
            file.flush()
            name = Path(f"{folder}/{file.fileno()}")
            if folder == "link":
                name = tmp_path / "link"
                name.symlink_to(f"/dev/fd/{file.fileno()}")
            assert is_stream(name)
            write_whole(NEW, name)
            file.write(b" after")
        assert path.read_bytes() == b"before " + NEW + b" after"
        assert not path.is_symlink()

    def test_a_device_stays_one(self):
        write_whole(NEW, os.devnull)
        assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
        assert is_stream(os.devnull)

    def test_what_writes_only_by_name_reaches_a_pipe(self, tmp_path):
        pipe, got = tmp_path / "pipe", []
        os.mkfifo(pipe)
        reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
        reader.start()
        with writing_file(pipe, ".json.gz") as part:
            assert part.endswith(".json.gz")
            Path(part).write_bytes(NEW)
        reader.join()
        assert (got, os.path.exists(part)) == ([NEW], False)


REFUSED: dict[str, tuple[Callable[[Path], str], str]] = {
    "folder": (str, "it is a folder"),
    "dot": (lambda folder: ".", "it is a folder"),
    "folder, with a slash": (lambda folder: f"{folder}/", "it is a folder"),
    "no name": (lambda folder: "", "the name is empty"),
    "zero byte": (lambda folder: f"{folder}/a\0b", "zero byte"),
    "no folder": (lambda folder: f"{folder}/no/file", "there is no folder"),
    "no folder, with a slash": (lambda folder: f"{folder}/no/", "there is no such folder"),
    "below a file": (lambda folder: f"{folder}/file/new", "there is no folder|Not a directory"),
    "long name": (lambda folder: f"{folder}/{'x' * 300}", "name too long"),
    "long path": (lambda folder: f"{folder}{'/x' * 5000}", "name too long"),
    "socket": (lambda folder: a_socket(folder / "socket"), "it is a socket"),
    "closed descriptor": (lambda folder: "/dev/fd/987", "Bad file descriptor"),
    "descriptor of another process": (
        lambda folder: "/proc/1/fd/1",
        "open in another process|Permission denied",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize(
    "write", [lambda path: write_whole(NEW, path), refuse_unwritable], ids=["write", "refuse"]
)
def test_what_cannot_be_written_is_refused_in_one_line(tmp_path, name, write):
    make, message = REFUSED[name]
    (tmp_path / "file").write_bytes(OLD)
    path = make(tmp_path)
    before = names(tmp_path)
    with pytest.raises(UnreadableInput, match=message) as raised:
        write(path)
    assert "\n" not in str(raised.value)
    assert names(tmp_path) == before


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_file_that_may_not_be_written_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(OLD)
    path.chmod(0o444)
    with pytest.raises(UnreadableInput, match="Permission denied"):
        write_whole(NEW, path)
    assert path.read_bytes() == OLD


class TestFailures:
    @pytest.mark.parametrize("linked", [False, True])
    @pytest.mark.parametrize("size", [0, 1, 100])
    def test_a_full_disk_leaves_the_old_file(self, tmp_path, linked, size):
        path = tmp_path / "file"
        path.write_bytes(OLD * 10)
        if linked:
            os.link(path, tmp_path / "other")
        before = names(tmp_path)
        with limited(size), pytest.raises(UnreadableInput, match=r"cannot write .*too large"):
            write_whole(NEW * 1000, path)
        assert path.read_bytes() == OLD * 10
        assert names(tmp_path) == before

    def test_a_disk_that_is_full_while_a_linked_file_grows(self, tmp_path, monkeypatch):
        path = tmp_path / "file"
        path.write_bytes(OLD)
        os.link(path, tmp_path / "other")

        def full(*_: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(output.os, "posix_fallocate", full)
        with pytest.raises(UnreadableInput, match="No space left"):
            write_whole(NEW, path)
        assert path.read_bytes() == OLD

    def test_a_disk_that_fails_half_way_through_a_linked_file(self, tmp_path, monkeypatch):
        path, failures = tmp_path / "file", [True]
        path.write_bytes(OLD * 10)
        os.link(path, tmp_path / "other")
        copy = output._copy

        def half(source: Any, into: Any) -> None:
            if failures and failures.pop():
                into.seek(0)
                into.write(NEW)
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            copy(source, into)

        monkeypatch.setattr(output, "_copy", half)
        with pytest.raises(UnreadableInput, match="Input/output error"):
            write_whole(NEW * 100, path)
        assert path.read_bytes() == OLD * 10

    @staticmethod
    def interrupted(path: Path, error: type[BaseException]) -> None:
        with writing(path) as out:
            out.write(NEW)
            raise error

    @pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
    def test_what_ends_the_block_changes_nothing(self, tmp_path, error):
        path = tmp_path / "file"
        path.write_bytes(OLD)
        with pytest.raises(error):
            self.interrupted(path, error)
        assert path.read_bytes() == OLD
        assert names(tmp_path) == ["file"]


@hypothesis.given(st.lists(st.binary(max_size=2000), min_size=1, max_size=4), st.booleans())
@hypothesis.settings(max_examples=30)
def test_the_last_write_is_kept(tmp_path_factory, written, linked):
    path = tmp_path_factory.mktemp("folder") / "file"
    for data in written:
        write_whole(data, path)
        if linked and not path.with_name("other").exists():
            os.link(path, path.with_name("other"))
    assert path.read_bytes() == written[-1]
    assert names(path.parent) == (["file", "other"] if linked else ["file"])


_ENDED_WHILE_WRITING = """
import os, signal, sys
from gapless.files.output import writing

number = getattr(signal, sys.argv[2])
signal.signal(number, signal.SIG_DFL)  # nohup has it ignored
with writing(sys.argv[1]) as out:
    out.write(b"half")
    os.kill(os.getpid(), number)
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("before", [b"old", None])
def test_a_signal_that_ends_the_process_leaves_no_part(tmp_path, name, before):
    path = tmp_path / "report.json"
    if before is not None:
        path.write_bytes(before)
    command = [sys.executable, "-c", _ENDED_WHILE_WRITING, str(path), name]
    ended = subprocess.run(command, timeout=120, check=False)
    assert ended.returncode == -getattr(signal, name)
    assert [path.name for path in tmp_path.iterdir()] == (["report.json"] if before is not None else [])
    assert before is None or path.read_bytes() == before


def test_handlers_of_signals_are_as_before(tmp_path):
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with writing(tmp_path / "report.json") as out:
        out.write(b"whole")
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers


def write_name(path: Path) -> None:
    with writing_file(path, ".json") as part:
        Path(part).write_bytes(NEW)


def write_stream(path: Path) -> None:
    with writing(path) as out:
        out.write(NEW)


WRITERS = {"whole": lambda path: write_whole(NEW, path), "stream": write_stream, "by name": write_name}
"""The ways to write a file; `test_nothing_else_writes_files` says that there are no others."""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("before", [OLD, None])
def test_a_killed_process_leaves_the_old_file_and_the_next_one_cleans_up(tmp_path, name, before):
    path = tmp_path / "file"
    if before is not None:
        path.write_bytes(before)
    child = os.fork()
    if not child:
        output._install = lambda part, target: os.kill(os.getpid(), signal.SIGKILL)
        WRITERS[name](path)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert (path.read_bytes() if path.exists() else None) == before
    (part,) = (entry for entry in tmp_path.iterdir() if entry != path)
    assert part.read_bytes() == NEW
    WRITERS[name](path)
    assert path.read_bytes() == NEW
    assert part.exists()  # it could be another process's that is still writing
    os.utime(part, (0, 0))
    WRITERS[name](path)
    assert names(tmp_path) == ["file"]


def test_only_parts_of_files_are_cleaned_up(tmp_path):
    part = ".gapless-0123456789abcdef.part"
    kept = [f"{part}s", part.upper(), ".gapless-0123.part", part[1:]]
    for name in (part, f"{part}.pt.trace.json.gz", *kept):
        (tmp_path / name).write_bytes(OLD)
        os.utime(tmp_path / name, (0, 0))
    (tmp_path / part.replace("0", "1")).symlink_to(tmp_path / kept[0])
    (tmp_path / part.replace("0", "2")).mkdir()
    write_whole(NEW, tmp_path / "file")
    assert names(tmp_path) == sorted(["file", *kept, part.replace("0", "1"), part.replace("0", "2")])


OTHER_WRITERS = {
    "emulation/cuda_api/smi.py": "a folder of its own",
    "emulation/graphs/graph.py": "CUDA's debug_dump, which the script calls",
    "commands/_output.py": "a copy of a stream",
    "commands/_again.py": "a folder of its own",
    "metrics/logging.py": "a row at a time, behind those of before",
}
"""Modules that write files in another way, and what they write."""


def test_nothing_else_writes_files():
    package = Path(output.__file__).parents[1]
    writing_modules = set()
    for module in package.rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            modes = [
                each.value
                for each in (*node.args[:2], *(keyword.value for keyword in node.keywords))
                if isinstance(each, ast.Constant) and isinstance(each.value, str)
            ]
            opens = name in ("open", "fdopen") and any(
                re.fullmatch("[rwaxbt+]*[wax+][bt+]*", m) for m in modes
            )
            if opens or name in ("write_text", "write_bytes"):
                writing_modules.add(module.relative_to(package).as_posix())
    assert {each for each in writing_modules if not each.startswith("fixes/proof/")} == {
        "files/output.py", *OTHER_WRITERS,
    }  # fmt: skip

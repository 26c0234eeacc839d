"""Open files for reading: regular files and named pipes, without ever waiting forever."""

from __future__ import annotations

import errno
import io
import os
import stat
import time
import tokenize
from io import FileIO
from typing import Any, BinaryIO, cast

from gapless.errors import UnreadableInput

PathName = str | os.PathLike[str]

MAX_WHOLE_BYTES = 2 << 30
"""Largest file or pipe that is read as a whole; more would fill the memory."""
_MAX_SOURCE_BYTES = 4 << 20
"""Largest file that is read as source code; whatever names it may name any file."""
_WRITER_TIMEOUT = 10.0
"""Seconds to wait for a writer of a named pipe."""
_WRITER_POLL = 0.02
"""Seconds between two checks for a writer."""
_CHUNK_BYTES = 1 << 20
"""Large enough that the number of reads does not matter."""
_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)
_KINDS = (
    (stat.S_ISDIR, "it is a folder"),
    (stat.S_ISCHR, "it is a device"),
    (stat.S_ISBLK, "it is a disk"),
    (stat.S_ISSOCK, "it is a socket"),
)

_pipe_contents: dict[tuple[str, int, int], bytes] = {}
"""What pipes contained, by name, device and number: a pipe can be read only once."""


def why_not_readable(mode: int) -> str:
    """Return why a file of this `mode` cannot be read, such as ``it is a device``; "" for files and pipes."""
    return next((reason for kind, reason in _KINDS if kind(mode)), "")


def open_rereadable(path: PathName) -> BinaryIO:
    """Open `path` for reading; a pipe is read to its end at first and can be opened again.

    Raises:
        UnreadableInput: it cannot be opened, or a pipe holds more than `MAX_WHOLE_BYTES`.
    """
    name = os.fspath(path)
    try:
        _check_name(name)
        key = _pipe_key(name)
        if key is not None and key not in _pipe_contents:
            with open_unbuffered(name) as pipe:
                _pipe_contents[key] = _read_all(pipe, name)
        return open_unbuffered(name)
    except OSError as error:
        raise _unreadable(path, error) from None


def read_whole(path: PathName) -> bytes:
    """Return all bytes of `path`.

    Raises:
        UnreadableInput: it cannot be read, or is larger than `MAX_WHOLE_BYTES`.
    """
    with open_rereadable(path) as file:
        try:
            return _read_all(file, os.fspath(path))
        except OSError as error:
            raise _unreadable(path, error) from None


def read_beginning(path: PathName, size: int) -> bytes:
    """Return the first `size` bytes of `path`, or all if it has fewer.

    Raises:
        UnreadableInput: it cannot be read.
    """
    with open_rereadable(path) as file:
        try:
            parts, length = [], 0
            while length < size and (piece := file.read(size - length)):
                parts.append(piece)
                length += len(piece)
            return b"".join(parts)
        except OSError as error:
            raise _unreadable(path, error) from None


def _unreadable(path: PathName, error: Exception) -> UnreadableInput:
    shown = os.fspath(path) or "a file without a name"
    return UnreadableInput(f"cannot read {shown}: {getattr(error, 'strerror', None) or error}")


def open_unbuffered(path: str) -> BinaryIO:
    """Open the file or pipe `path` without a buffer.

    Raises:
        OSError: it cannot be read, is a folder or a device, or is a pipe without a writer.
    """
    _check_name(path)
    key = _pipe_key(path)
    if key in _pipe_contents:
        return io.BytesIO(_pipe_contents[key])
    if key is None and os.path.exists(path):
        _refuse_special(os.stat(path).st_mode)  # opening a device may do something
    stream = open(path, "rb", 0, opener=lambda name, _: os.open(name, _FLAGS))  # noqa: SIM115 - it is returned
    try:
        mode = os.fstat(stream.fileno()).st_mode
        _refuse_special(mode)
        return _wait_for_writer(stream) if stat.S_ISFIFO(mode) else stream
    except BaseException:
        stream.close()
        raise


def _check_name(name: str) -> None:
    if "\0" in name:
        raise OSError(errno.EINVAL, "its name contains a zero byte")


def _pipe_key(path: str) -> tuple[str, int, int] | None:
    """Return what identifies a pipe; None for everything else."""
    try:
        status = os.stat(path)
    except OSError:  # opening it reports the error
        return None
    return (path, status.st_dev, status.st_ino) if stat.S_ISFIFO(status.st_mode) else None


def _refuse_special(mode: int) -> None:
    reason = why_not_readable(mode)
    if reason:
        kind = IsADirectoryError if stat.S_ISDIR(mode) else OSError
        raise kind(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, reason)


def _wait_for_writer(stream: FileIO) -> BinaryIO:
    """Return the pipe's stream once somebody writes to it.

    Raises:
        OSError: nobody does.
    """
    until = time.monotonic() + _WRITER_TIMEOUT
    start = b""
    while not start:
        try:
            start = os.read(stream.fileno(), _CHUNK_BYTES)
        except BlockingIOError:  # there is a writer, who has not written yet
            break
        if not start:
            if time.monotonic() > until:
                raise OSError(errno.EPIPE, "nobody writes to this pipe")
            time.sleep(_WRITER_POLL)
    os.set_blocking(stream.fileno(), True)
    return cast(BinaryIO, _WithStart(start, stream))


class _WithStart(io.RawIOBase):
    """A stream that yields `start`, which was already read from `stream`, before the rest."""

    def __init__(self, start: bytes, stream: FileIO) -> None:
        self._start, self._stream = start, stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        if self._start:
            piece, self._start = self._start[: len(buffer)], self._start[len(buffer) :]
        else:
            piece = self._stream.read(len(buffer)) or b""
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        self._stream.close()
        super().close()


def _read_all(stream: BinaryIO, name: str) -> bytes:
    parts, length = [], 0
    while piece := stream.read(_CHUNK_BYTES):
        parts.append(piece)
        length += len(piece)
        if length > MAX_WHOLE_BYTES:
            raise UnreadableInput(f"{name} is larger than {MAX_WHOLE_BYTES >> 30} GiB: too large to be read")
    return b"".join(parts)


def source_text(file: PathName) -> str:
    """Return the text of the source file `file`, decoded as it declares.

    Raises:
        OSError: it cannot be read, or is too large for source code.
        SyntaxError: it declares an unknown encoding.
        ValueError: it is not text in its encoding.
    """
    if not os.path.isfile(file):
        raise FileNotFoundError(errno.ENOENT, "there is no such file")
    with open_unbuffered(os.fspath(file)) as stream:
        data = stream.read(_MAX_SOURCE_BYTES + 1) or b""
    if len(data) > _MAX_SOURCE_BYTES:
        raise OSError(errno.EFBIG, "it is too large for source")
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    return io.TextIOWrapper(io.BytesIO(data), encoding).read()

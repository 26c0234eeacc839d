"""The one opener: it opens regular files, and pipes that the user named, and waits for none for ever."""

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

Name = str | os.PathLike[str]

MOST_WHOLE = 2 << 30
"""Bytes of the largest file or pipe that is read as a whole: more would fill the memory."""
_MOST_SOURCE = 4 << 20
"""Bytes of the largest file that is read as source: what names it may name anything."""
_WRITER_PATIENCE = 10.0
"""Seconds in which somebody has to begin to write into a named pipe."""
_WRITER_LOOK = 0.02
"""Seconds between two looks for a writer."""
_PIECE = 1 << 20
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

_kept: dict[tuple[str, int, int], bytes] = {}
"""What pipes held, by name, device and number: a pipe gives its bytes only once."""


def special(mode: int) -> str:
    """What keeps a file of this `mode` from being read as one: ``it is a device``; "" for files and pipes."""
    return next((reason for kind, reason in _KINDS if kind(mode)), "")


def open_again(path: Name) -> BinaryIO:
    """The bytes of `path`; a pipe has them again each time, for it is read to its end at first.

    Raises:
        UnreadableInput: it cannot be opened, or a pipe holds more than `MOST_WHOLE`.
    """
    name = os.fspath(path)
    try:
        _check_name(name)
        key = _pipe_key(name)
        if key is not None and key not in _kept:
            with opened(name) as pipe:
                _kept[key] = _whole(pipe, name)
        return opened(name)
    except OSError as error:
        raise _unreadable(path, error) from None


def read_whole(path: Name) -> bytes:
    """All bytes of `path`.

    Raises:
        UnreadableInput: it cannot be read, or is larger than `MOST_WHOLE`.
    """
    with open_again(path) as file:
        try:
            return _whole(file, os.fspath(path))
        except OSError as error:
            raise _unreadable(path, error) from None


def beginning(path: Name, size: int) -> bytes:
    """The first `size` bytes of `path`, or all of it where it has fewer.

    Raises:
        UnreadableInput: it cannot be read.
    """
    with open_again(path) as file:
        try:
            parts, length = [], 0
            while length < size and (piece := file.read(size - length)):
                parts.append(piece)
                length += len(piece)
            return b"".join(parts)
        except OSError as error:
            raise _unreadable(path, error) from None


def _unreadable(path: Name, error: Exception) -> UnreadableInput:
    shown = os.fspath(path) or "a file without a name"
    return UnreadableInput(f"cannot read {shown}: {getattr(error, 'strerror', None) or error}")


def opened(path: str) -> BinaryIO:
    """The bytes of the file or pipe `path`, without a buffer.

    Raises:
        OSError: it cannot be read, is a folder or a device, or is a pipe that nobody writes to.
    """
    _check_name(path)
    key = _pipe_key(path)
    if key in _kept:
        return io.BytesIO(_kept[key])
    if key is None and os.path.exists(path):
        _refuse(os.stat(path).st_mode)  # opening a device may do something
    stream = open(path, "rb", 0, opener=lambda name, _: os.open(name, _FLAGS))  # noqa: SIM115 - it is returned
    try:
        mode = os.fstat(stream.fileno()).st_mode
        _refuse(mode)
        return _pipe(stream) if stat.S_ISFIFO(mode) else stream
    except BaseException:
        stream.close()
        raise


def _check_name(name: str) -> None:
    if "\0" in name:
        raise OSError(errno.EINVAL, "its name contains a zero byte")


def _pipe_key(path: str) -> tuple[str, int, int] | None:
    """What a pipe is known by; None for everything else."""
    try:
        status = os.stat(path)
    except OSError:  # which is said when it is opened
        return None
    return (path, status.st_dev, status.st_ino) if stat.S_ISFIFO(status.st_mode) else None


def _refuse(mode: int) -> None:
    reason = special(mode)
    if reason:
        kind = IsADirectoryError if stat.S_ISDIR(mode) else OSError
        raise kind(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, reason)


def _pipe(stream: FileIO) -> BinaryIO:
    """The pipe's stream, once somebody writes to it.

    Raises:
        OSError: nobody does.
    """
    until = time.monotonic() + _WRITER_PATIENCE
    start = b""
    while not start:
        try:
            start = os.read(stream.fileno(), _PIECE)
        except BlockingIOError:  # there is a writer, who has not written yet
            break
        if not start:
            if time.monotonic() > until:
                raise OSError(errno.EPIPE, "nobody writes to this pipe")
            time.sleep(_WRITER_LOOK)
    os.set_blocking(stream.fileno(), True)
    return cast(BinaryIO, _Begun(start, stream))


class _Begun(io.RawIOBase):
    """The rest of `stream` behind `start`, which was read from it already."""

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


def _whole(stream: BinaryIO, name: str) -> bytes:
    parts, length = [], 0
    while piece := stream.read(_PIECE):
        parts.append(piece)
        length += len(piece)
        if length > MOST_WHOLE:
            raise UnreadableInput(f"{name} is larger than {MOST_WHOLE >> 30} GiB: too large to be read")
    return b"".join(parts)


def source_text(file: Name) -> str:
    """The text of the regular file `file`, which holds source, in the encoding that it declares.

    Raises:
        OSError: it cannot be read, or is larger than source is.
        SyntaxError: it declares an encoding that does not exist.
        ValueError: it is not text in its encoding.
    """
    if not os.path.isfile(file):
        raise FileNotFoundError(errno.ENOENT, "there is no such file")
    with opened(os.fspath(file)) as stream:
        data = stream.read(_MOST_SOURCE + 1) or b""
    if len(data) > _MOST_SOURCE:
        raise OSError(errno.EFBIG, "it is too large for source")
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    return io.TextIOWrapper(io.BytesIO(data), encoding).read()

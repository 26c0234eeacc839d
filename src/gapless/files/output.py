"""Write files whole or leave them unchanged.

Links are followed. A regular file is replaced atomically, keeping its mode, owner and attributes; if the
system does not allow that (hard links, a read-only folder, a file mounted alone), it is overwritten in place,
once it is certain that the new content fits. Pipes, terminals and open descriptors are written to directly.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import BinaryIO

from gapless.errors import UnreadableInput

Name = str | os.PathLike[str]

_READER_TIMEOUT = 5.0
"""Seconds to wait for a reader of a named pipe, so that opening it cannot hang."""
_READER_POLL = 0.02
"""Seconds between two checks for a reader."""
_STREAM_FLAGS = (
    os.O_WRONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_CLOEXEC", 0)
)
"""Flags to open a pipe or a terminal without waiting for a reader."""
_COPY_CHUNK = 1 << 20
"""Bytes copied at once from a finished file into a target that stays in place."""
_MAX_LINKS = 40
"""Number of links after which Linux gives up, too."""
_DESCRIPTOR = re.compile(r"/(?:proc/(?:self|thread-self|\d+(?:/task/\d+)?)|dev)/fd/(\d+)")
_STANDARD = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
_PART = re.compile(r"\.gapless-[0-9a-f]{16}\.part(\.[\w.]+)?")
"""Names of files that are being written."""
_ABANDONED_AFTER = 3600.0
"""Seconds without a write after which such a file belongs to a process that was killed."""
_NO_REPLACEMENT = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.EXDEV})
"""Errors that prevent a file beside the target from replacing it, although the target may be writable."""


@dataclass(frozen=True)
class _OutputTarget:
    """The output: `file` behind all links, or an open `descriptor` (-1: none).

    `before` is the status of the existing file; None if there is none.
    """

    name: str
    file: str
    descriptor: int = -1
    before: os.stat_result | None = None

    @property
    def is_streamed(self) -> bool:
        """Whether bytes go directly to a reader."""
        return self.descriptor >= 0 or (self.before is not None and not stat.S_ISREG(self.before.st_mode))


def write_whole(data: bytes, path: Name) -> None:
    """Write `data` to `path`, whole or not at all.

    Raises:
        UnreadableInput: `path` cannot be written.
    """
    with writing(path) as out:
        out.write(data)


def refuse_unwritable(path: Name) -> None:
    """Refuse a `path` that cannot be written to, before there is anything to write.

    Raises:
        UnreadableInput: it is a folder, a disk, a socket or empty, its folder is missing, or it is not
            writable.
    """
    with _as_unreadable(os.fspath(path)):
        target = _find_target(os.fspath(path))
        if target.descriptor >= 0:
            return
        folder = os.path.dirname(target.file)
        if target.before is None and not os.access(folder, os.W_OK | os.X_OK):
            raise OSError(errno.EACCES, f"the folder {folder} is not writable")


def is_stream(path: Name) -> bool:
    """Whether output to `path` goes directly to a reader, so that it cannot be replaced later."""
    try:
        return _find_target(os.fspath(path)).is_streamed
    except OSError:
        return False


@contextmanager
def writing(path: Name) -> Iterator[BinaryIO]:
    """Yield a stream whose bytes become the content of `path` at the block's end; if it fails, nothing
    changes.

    Raises:
        UnreadableInput: `path` cannot be written.
    """
    with _as_unreadable(os.fspath(path)):
        target = _find_target(os.fspath(path))
        if target.is_streamed:
            with _open_stream(target) as out:
                yield out
            return
        with _temporary_file(target) as part:
            with open(part, "r+b") as out:
                yield out
            _install(part, target)


@contextmanager
def writing_file(path: Name, ending: str = "") -> Iterator[str]:
    """Yield the name of an empty file whose content becomes that of `path` when the block ends.

    It is for writers that need a file name; the name ends with `ending`.

    Raises:
        UnreadableInput: `path` cannot be written.
    """
    with _as_unreadable(os.fspath(path)):
        target = _find_target(os.fspath(path))
        with _temporary_file(target, ending) as part:
            yield part
            if target.is_streamed:
                with _open_stream(target) as out, open(part, "rb") as source:
                    shutil.copyfileobj(source, out, _COPY_CHUNK)
            else:
                _install(part, target)


@contextmanager
def _as_unreadable(name: str) -> Iterator[None]:
    """Turn the system's errors into one line about `name`."""
    try:
        yield
    except OSError as error:
        shown = name or "a file without a name"
        raise UnreadableInput(f"cannot write {shown}: {error.strerror or error}") from None


# What the name means -----------------------------------------------------------------------------


def _find_target(name: str) -> _OutputTarget:
    """Return the output target that `name` denotes.

    Raises:
        OSError: it cannot be written to.
    """
    if not name:
        raise OSError(errno.ENOENT, "the name is empty")
    if "\0" in name:
        raise OSError(errno.EINVAL, "the name contains a zero byte")
    if not os.path.basename(name) and not os.path.isdir(name):
        raise OSError(errno.ENOENT, "there is no such folder, and a file's name does not end with a slash")
    file, descriptor = _follow_links(name)
    if descriptor >= 0:
        os.fstat(descriptor)
        return _OutputTarget(name, file, descriptor)
    try:
        before = os.stat(file)
    except FileNotFoundError:
        folder = os.path.dirname(file)
        if not os.path.isdir(folder):
            raise OSError(errno.ENOENT, f"there is no folder {folder}") from None
        return _OutputTarget(name, file)
    for kind, reason in _REFUSED:
        if kind(before.st_mode):
            raise OSError(errno.EINVAL, reason)
    if not os.access(file, os.W_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    return _OutputTarget(name, file, -1, before)


_REFUSED = (
    (stat.S_ISDIR, "it is a folder"),
    (stat.S_ISBLK, "it is a disk"),
    (stat.S_ISSOCK, "it is a socket"),
)


def _follow_links(name: str) -> tuple[str, int]:
    """Return the file behind all links, and the open descriptor that `name` denotes, or -1."""
    file = os.path.abspath(name)
    for _ in range(_MAX_LINKS):
        if file in _STANDARD:
            return file, _STANDARD[file]
        file = os.path.join(os.path.realpath(os.path.dirname(file)), os.path.basename(file))
        match = _DESCRIPTOR.fullmatch(file)
        if match:
            if not file.startswith(("/dev/", f"/proc/{os.getpid()}/")):
                raise OSError(errno.EINVAL, "it is open in another process")
            return file, int(match.group(1))
        try:
            aim = os.readlink(file)
        except OSError:  # no link, or nothing yet
            return file, -1
        file = os.path.join(os.path.dirname(file), aim)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


# Those who take bytes as they come ---------------------------------------------------------------


@contextmanager
def _open_stream(target: _OutputTarget) -> Iterator[BinaryIO]:
    """Open a stream to a pipe, a terminal or an open descriptor."""
    out = os.fdopen(_open_descriptor(target), "wb")
    try:
        yield out
        out.flush()
    finally:
        with suppress(OSError):  # what could not be flushed was said
            out.close()


def _open_descriptor(target: _OutputTarget) -> int:
    if target.descriptor >= 0:
        return os.dup(target.descriptor)
    until = time.monotonic() + _READER_TIMEOUT
    while True:
        try:
            opened = os.open(target.file, _STREAM_FLAGS)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() > until:
                raise OSError(errno.ENXIO, "nobody reads from this pipe") from None
            time.sleep(_READER_POLL)
        else:
            os.set_blocking(opened, True)
            return opened


# Regular files -----------------------------------------------------------------------------------


@contextmanager
def _temporary_file(target: _OutputTarget, ending: str = "") -> Iterator[str]:
    """Create an empty file, beside the target if possible; it is removed when the block ends."""
    name = f".gapless-{os.urandom(8).hex()}.part{ending}"
    beside = tempfile.gettempdir() if target.is_streamed else os.path.dirname(target.file)
    part = os.path.join(beside, name)
    flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_CLOEXEC", 0)
    mode = 0o666 if target.before is None and not target.is_streamed else 0o600
    try:
        os.close(os.open(part, flags, mode))
    except OSError as error:
        if target.before is None or error.errno not in _NO_REPLACEMENT:
            raise
        part = os.path.join(tempfile.gettempdir(), name)
        os.close(os.open(part, flags, 0o600))
    _remove_leftovers(os.path.dirname(part), os.stat(part))
    try:
        with _remove_on_signal(part):
            yield part
    finally:
        with suppress(FileNotFoundError):
            os.unlink(part)


def _remove_leftovers(folder: str, fresh: os.stat_result) -> None:
    """Remove what killed processes of this user left in `folder`, by the clock of the `fresh` file there."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not _PART.fullmatch(entry.name) or not entry.is_file(follow_symlinks=False):
                continue
            status = entry.stat(follow_symlinks=False)
            if status.st_uid == fresh.st_uid and status.st_mtime < fresh.st_mtime - _ABANDONED_AFTER:
                os.unlink(entry.path)


_ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextmanager
def _remove_on_signal(part: str) -> Iterator[None]:
    """Remove `part` if a signal ends the process, which runs no `finally`."""

    def end(number: int, frame: FrameType | None) -> None:
        with suppress(OSError):
            os.unlink(part)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    handled: list[int] = []
    if threading.current_thread() is threading.main_thread():
        handled = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in handled:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


def _install(part: str, target: _OutputTarget) -> None:
    """Make the content of the file `part` that of the target."""
    try:
        if target.before is not None:
            if target.before.st_nlink > 1:
                return _overwrite(part, target.file)
            _copy_metadata(part, target.file, target.before)
        os.replace(part, target.file)
    except OSError as error:
        if target.before is None or error.errno not in {*_NO_REPLACEMENT, errno.ENOTSUP}:
            raise
        _overwrite(part, target.file)
    return None


def _copy_metadata(part: str, file: str, before: os.stat_result) -> None:
    """Give `part` the owner, mode and attributes of `file`.

    Raises:
        OSError: the system does not allow it.
    """
    now = os.stat(part)
    if hasattr(os, "chown") and (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid):
        os.chown(part, before.st_uid, before.st_gid)
    os.chmod(part, stat.S_IMODE(before.st_mode))
    if hasattr(os, "listxattr"):
        for attribute in _attributes(file):
            os.setxattr(part, attribute, os.getxattr(file, attribute))


def _attributes(file: str) -> list[str]:
    """Return the extended attributes of `file`; none if its file system has none."""
    try:
        return os.listxattr(file)
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return []
        raise


def _overwrite(part: str, file: str) -> None:
    """Copy `part` into `file` in place; on failure the old content is restored."""
    with open(part, "rb") as new, open(file, "r+b", buffering=0) as old, tempfile.TemporaryFile() as kept:
        before, after = os.fstat(old.fileno()).st_size, os.fstat(new.fileno()).st_size
        shutil.copyfileobj(old, kept, _COPY_CHUNK)
        try:
            if after > before:
                _reserve(old.fileno(), after)
            _copy(new, old)
            old.truncate(after)
        except OSError:
            kept.seek(0)
            with suppress(OSError):
                _copy(kept, old)
            old.truncate(before)
            raise


def _reserve(descriptor: int, size: int) -> None:
    """Reserve `size` bytes for the file, if the file system can."""
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise


def _copy(source: BinaryIO, into: BinaryIO) -> None:
    """Write `source` over the beginning of the unbuffered `into`, whose writes may be partial."""
    into.seek(0)
    while piece := source.read(_COPY_CHUNK):
        rest = memoryview(piece)
        while rest:
            rest = rest[into.write(rest) :]

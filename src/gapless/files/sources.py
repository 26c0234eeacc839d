"""Sources of bytes: files, compressed or not, standard input, or anything that fsspec opens."""

from __future__ import annotations

import io
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, BinaryIO, cast

from gapless.errors import UnreadableInput
from gapless.files.input import open_unbuffered

Progress = Callable[[int], None]
_CHUNK_BYTES = 1 << 18
"""Small enough to report progress often."""
_MAX_UNPACKED_CHUNK = 16 << 20
"""Bytes that one compressed chunk may unpack to at once."""
_UNCHECKED_SIZE = 32 << 20
"""Bytes that any compressed file may unpack to."""
_MAX_RATIO = 100
"""Largest compression ratio beyond that; traces reach thirty, decompression bombs a thousand."""
_ZSTD_CHUNK = 1 << 10
"""Bytes of zstd unpacked at once: every four of them may become 128 kB."""
_GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"
_ZIP = b"PK\x03\x04"


def is_url(path: str) -> bool:
    """Whether fsspec has to open `path`."""
    return "://" in path


def filesystem(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of `url` and the path in it.

    Raises:
        UnreadableInput: fsspec, or what it needs for this kind of URL, is not installed.
    """
    try:
        fsspec: Any = import_module("fsspec")
    except ImportError:
        raise UnreadableInput(f"{url} is remote: to read it, install fsspec (pip install fsspec)") from None
    try:
        located: tuple[Any, str] = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise UnreadableInput(f"{url} needs a package that is not installed: {_line(error)}") from None
    except Exception as error:
        raise UnreadableInput(f"{url} cannot be opened: {_line(error)}") from None
    return located


@contextmanager
def open_source(path: str, progress: Progress | None = None) -> Iterator[Source]:
    """Open the uncompressed bytes of `path` (``-``: standard input), to be read in chunks.

    `progress` is called after every chunk with the number of compressed bytes read so far.

    Raises:
        UnreadableInput: it cannot be opened, or its compression is unknown.
    """
    raw = _open(path)
    try:
        yield Source(raw, path, progress)
    except (OSError, EOFError) as error:
        raise UnreadableInput(f"{path} cannot be read: {_reason(error)}") from None
    finally:
        if path != "-":
            raw.close()


def decompress(data: bytes, name: str) -> bytes:
    """Decompress the `data` of the file `name`.

    Raises:
        UnreadableInput: it is damaged, or grows too much.
    """
    source = Source(io.BytesIO(data), name)
    parts = list(iter(lambda: source.read(_CHUNK_BYTES), b""))
    if source.trouble:
        raise UnreadableInput(f"{name} is damaged: {source.trouble}")
    return b"".join(parts)


class Source:
    """Uncompressed bytes in chunks.

    Once all is read, `trouble` describes damage to the compressed data, and `short` says whether bytes are
    missing.
    """

    def __init__(self, raw: BinaryIO, name: str, progress: Progress | None = None) -> None:
        self._raw = raw
        self._name = name
        self._progress = progress
        self._taken = 0
        self._start = b""
        self.trouble = ""
        self.short = False
        while len(self._start) < 4 and (more := self._take(_CHUNK_BYTES)):
            self._start += more
        self._length = 0
        self._plain = not self._start.startswith((_GZIP, ZSTD, _ZIP))
        self._pieces = self._unpack()

    def read(self, size: int, /) -> bytes:
        """Return the next `size` bytes or a little more; none at the end."""
        if self._plain:
            start, self._start = self._start, b""
            return start or self._take(size)
        parts: list[bytes] = []
        length = 0
        while length < size and (more := next(self._pieces, None)) is not None:
            parts.append(more)
            length += len(more)
            self._count_bytes(len(more))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _count_bytes(self, length: int) -> None:
        """Count unpacked bytes.

        Raises:
            UnreadableInput: there are far more than the packed bytes could hold.
        """
        self._length += length
        if self._length > max(_UNCHECKED_SIZE, _MAX_RATIO * self._taken):
            raise UnreadableInput(
                f"{self._name} is not what it should be: its first {self._taken:,} bytes unpack to more than "
                f"{self._length >> 20} MiB"
            )

    def _take(self, size: int) -> bytes:
        data = self._raw.read(size)
        self._taken += len(data or b"")
        if data and self._progress is not None:
            self._progress(self._taken)
        return data or b""

    def _raw_chunks(self) -> Iterator[bytes]:
        start, self._start = self._start, b""
        if start:
            yield start
        while more := self._take(_CHUNK_BYTES):
            yield more

    def _unpack(self) -> Iterator[bytes]:
        if self._start[:2] == _GZIP:
            return self._unpack_gzip()
        if self._start[:4] == ZSTD:
            return self._unpack_zstd()
        if self._start[:4] == _ZIP:
            return self._unpack_zip()
        return self._raw_chunks()

    def _unpack_gzip(self) -> Iterator[bytes]:
        """Unpack gzip with any number of members, as far as a damaged or truncated file allows."""
        machine: Any = None
        for data in self._raw_chunks():
            more = False  # than was asked for came out of the piece, and waits
            while data or more:
                if machine is None:
                    data = data.lstrip(b"\0")  # padding between members
                    if not data:
                        break
                    if not _GZIP.startswith(data[:2]):
                        self.trouble = "The data after the compressed part is not gzip and was skipped"
                        return
                    machine = zlib.decompressobj(31)
                before = machine.copy()
                try:
                    unpacked = machine.decompress(data, _MAX_UNPACKED_CHUNK)
                except zlib.error:
                    yield _salvage(before, data)
                    self._note_damage()
                    return
                yield unpacked
                data = machine.unused_data if machine.eof else machine.unconsumed_tail
                more = len(unpacked) >= _MAX_UNPACKED_CHUNK and not machine.eof
                if machine.eof:
                    machine = None
        if machine is not None:
            self.trouble, self.short = "The compressed file is truncated: the rest is missing", True

    def _note_damage(self) -> None:
        self.trouble = "The compressed file is damaged: everything after the damage is missing"
        self.short = True

    def _unpack_zstd(self) -> Iterator[bytes]:
        machine, has_output = _zstd_decompressor(self._name)(), False
        for data in (
            piece[at : at + _ZSTD_CHUNK]
            for piece in self._raw_chunks()
            for at in range(0, len(piece), _ZSTD_CHUNK)
        ):
            try:
                more = machine.decompress(data)
            except Exception as error:
                if not has_output:
                    raise UnreadableInput(f"{self._name} is damaged zstd: {_line(error)}") from None
                self._note_damage()
                return
            has_output = has_output or bool(more)
            yield more
        if has_output and not getattr(machine, "eof", True):
            self.trouble, self.short = "The compressed file is truncated: the rest is missing", True

    def _unpack_zip(self) -> Iterator[bytes]:
        if not self._raw.seekable():
            raise UnreadableInput(f"{self._name} is a zip archive: unpack it first")
        import zipfile  # and all that it stands on, for a rare kind of file

        try:
            archive = zipfile.ZipFile(self._raw)
            names = archive.namelist()
        except zipfile.BadZipFile as error:
            raise UnreadableInput(f"{self._name} is a damaged zip archive: {error}") from None
        if any(name.endswith("data.pkl") for name in names):
            raise UnreadableInput(f"{self._name} was written by torch.save: it contains tensors, not a trace")
        inside = [name for name in names if name.endswith(".json")]
        if len(inside) != 1:
            raise UnreadableInput(
                f"{self._name} is a zip archive with {len(inside)} JSON files: unpack it first"
            )
        self._taken = archive.getinfo(inside[0]).compress_size
        try:
            with archive.open(inside[0]) as member:
                while more := member.read(_CHUNK_BYTES):
                    yield more
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
            raise UnreadableInput(f"{self._name} is a damaged zip archive: {_line(error)}") from None


def _open(path: str) -> BinaryIO:
    if path == "-":
        return sys.stdin.buffer
    try:
        if is_url(path):
            system, inside = filesystem(path)
            return cast(BinaryIO, system.open(inside, "rb"))
        return open_unbuffered(path)
    except UnreadableInput:
        raise
    except OSError as error:
        raise UnreadableInput(f"{path} cannot be read: {_reason(error)}") from None
    except Exception as error:  # file systems behind URLs raise exceptions of their own
        if not is_url(path):
            raise
        raise UnreadableInput(f"{path} cannot be read: {_line(error)}") from None


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, PermissionError):
        return "permission denied"
    if isinstance(error, IsADirectoryError):
        return "it is a directory"
    return getattr(error, "strerror", None) or _line(error)


def _line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type."""
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__


def _zstd_decompressor(name: str) -> Callable[[], Any]:
    try:
        if sys.version_info >= (3, 14):
            return cast(Callable[[], Any], import_module("compression.zstd").ZstdDecompressor)
        zstandard: Any = import_module("zstandard")
        return lambda: zstandard.ZstdDecompressor().decompressobj()
    except ImportError:
        raise UnreadableInput(
            f"{name} is compressed with zstd: to read it, install zstandard (pip install zstandard)"
        ) from None


def _salvage(machine: Any, data: bytes) -> bytes:
    """Unpack as much as possible of the chunk with the damage, byte by byte."""
    parts = []
    with suppress(zlib.error):
        for place in range(len(data)):
            parts.append(machine.decompress(data[place : place + 1]))
    return b"".join(parts)


def stored_size(path: str) -> int:
    """Return the size of `path` in bytes as stored; -1 if unknown."""
    try:
        if path == "-":
            return -1
        if is_url(path):
            system, inside = filesystem(path)
            return int(system.size(inside) or -1)
        return os.path.getsize(path)
    except (OSError, UnreadableInput):
        return -1

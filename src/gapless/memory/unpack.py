"""Unpack compressed snapshots, within bounds."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

from gapless.errors import UnreadableInput

_MIN_BOUND_BYTES = 256 << 20
"""Any file may unpack to this size."""
_MAX_RATIO = 100
"""Larger files may unpack to this multiple of their size: snapshots compress to a tenth or a thirtieth."""
_PIECE_BYTES = 1 << 20
"""Bytes unpacked at a time."""


def join_bounded(parts: Iterable[bytes], packed: int, name: str) -> bytes:
    """Join `parts`, unpacked from `packed` bytes of the file `name`.

    Raises:
        UnreadableInput: they are far more than a snapshot could be.
    """
    max_bytes, length, pieces = max(_MIN_BOUND_BYTES, _MAX_RATIO * packed), 0, []
    for part in parts:
        length += len(part)
        if length > max_bytes:
            raise UnreadableInput(
                f"{name} is not a snapshot: its {packed} bytes unpack to more than {max_bytes >> 20} MiB"
            )
        pieces.append(part)
    return b"".join(pieces)


def gunzip(data: bytes, name: str) -> bytes:
    """Unpack the gzip file `data`.

    Raises:
        UnreadableInput: it is damaged, or unpacks to too much.
    """
    try:
        return join_bounded(_members(data), len(data), name)
    except (EOFError, zlib.error) as error:
        raise UnreadableInput(f"{name} is compressed and damaged: {error}") from None


def _members(data: bytes) -> Iterator[bytes]:
    while data:
        machine = zlib.decompressobj(wbits=31)
        while not machine.eof:
            part = machine.decompress(data, _PIECE_BYTES)
            data = machine.unconsumed_tail
            if part:
                yield part
            elif not machine.eof:
                raise EOFError("it ends in the middle")
        data = machine.unused_data.lstrip(b"\0")

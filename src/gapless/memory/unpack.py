"""Packed snapshots, unpacked as long as they are no bombs."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

from gapless.errors import UnreadableInput

_FREE = 256 << 20
"""Bytes that any file may grow to."""
_TIMES = 100
"""How many times its size a larger one may grow: snapshots shrink to a tenth or a thirtieth."""
_PIECE = 1 << 20


def gathered(parts: Iterable[bytes], packed: int, name: str) -> bytes:
    """All of `parts`, into which `packed` bytes of the file `name` were unpacked.

    Raises:
        UnreadableInput: they are far more than a snapshot could be.
    """
    most, length, found = max(_FREE, _TIMES * packed), 0, []
    for part in parts:
        length += len(part)
        if length > most:
            raise UnreadableInput(
                f"{name} is not a snapshot: its {packed} bytes unpack to more than {most >> 20} MiB"
            )
        found.append(part)
    return b"".join(found)


def gunzipped(data: bytes, name: str) -> bytes:
    """What the gzip file `data` holds.

    Raises:
        UnreadableInput: it is damaged, or a bomb.
    """
    try:
        return gathered(_members(data), len(data), name)
    except (EOFError, zlib.error) as error:
        raise UnreadableInput(f"{name} is compressed and damaged: {error}") from None


def _members(data: bytes) -> Iterator[bytes]:
    while data:
        machine = zlib.decompressobj(wbits=31)
        while not machine.eof:
            part = machine.decompress(data, _PIECE)
            data = machine.unconsumed_tail
            if part:
                yield part
            elif not machine.eof:
                raise EOFError("it ends in the middle")
        data = machine.unused_data.lstrip(b"\0")

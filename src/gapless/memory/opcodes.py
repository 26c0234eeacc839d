"""A walk over a pickle's opcodes, before anything of it is built.

A few bytes of a pickle can ask for any amount of memory: a memo with billions of places, a text of terabytes.
Those are found here. What opcodes mean is left to the unpickler.
"""

from __future__ import annotations

import re
from functools import lru_cache

_RUN = 5_000
"""Opcodes that one search goes over."""
_ONE = rb"[()012RNa\]blotds}eu\x81\x85-\x89\x8f-\x94]|[\x80Khq\x82].|[M\x83]..|[Jj\x84]....|[G\x95].{8}"
_LINES = rb"[IFLSVPg][^\n]*\n|[ci][^\n]*\n[^\n]*\n"
_PREFIXED = {
    **dict.fromkeys(b"UC\x8c\x8a", 1),
    **dict.fromkeys(b"TXB\x8b", 4),
    **dict.fromkeys(b"\x8d\x8e", 8),
}
"""Opcodes whose length stands before what they hold, in so many bytes."""
_STOP = ord(".")


def problem(data: bytes) -> str:
    """Why the pickle `data` must not be loaded; "" where it may."""
    run, at = _run(len(data).bit_length()), 0
    while True:
        before, at = at, run.match(data, at).end()  # type: ignore[union-attr]  # it matches nothing at least
        if at >= len(data):
            return "it ends too early"
        opcode = data[at]
        if opcode == _STOP:
            return ""
        width = _PREFIXED.get(opcode, 0)
        if width:
            at += 1 + width + int.from_bytes(data[at + 1 : at + 1 + width], "little")
            if at > len(data):
                return "it ends too early"
        elif at == before:
            return f"opcode {bytes([opcode])!r} at byte {at}"


@lru_cache(maxsize=8)
def _run(bits: int) -> re.Pattern[bytes]:
    """Opcodes of a fixed size, in a file of less than ``1 << bits`` bytes: it has no more memo places."""
    high = 1 << min(max(bits - 16, 0), 8)
    top = 1 << min(max(bits - 24, 0), 7)
    ends = (_upto(high - 1), _upto(top - 1))
    put = rb"r..%b%b|p0*[0-9]{1,%d}\n" % (*ends, max(bits * 3 // 10 + 1, 1))
    return re.compile(rb"(?:%b|%b|%b){0,%d}" % (_ONE, put, _LINES, _RUN), re.DOTALL)


def _upto(last: int) -> bytes:
    return rb"[\x00-\x%02x]" % last

"""Check a pickle's opcodes before anything is built from it.

A few bytes of a pickle can request any amount of memory (a memo with billions of entries, a text of
terabytes), or time quadratic in the size of a dictionary whose number keys are chosen to collide (text keys
cannot be: their hashes are salted). Both are found here; the unpickler checks what opcodes mean.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

_MAX_OPCODES_PER_MATCH = 5_000
"""Bounds the backtracking of one match."""
_LARGE_DICT_BYTES = 1024
"""Bytes of opcodes directly within a dictionary from which it is large; a snapshot's have some hundred. In a
smaller one colliding keys cost little.
"""
_MAX_SINGLE_ITEMS = 500
"""Items stored one by one from which all of them may be in one large dictionary."""
_FIXED_SIZE = rb"[)012RNa\]bo\x81\x85-\x89\x92-\x94]|[\x80Khq\x82].|[M\x83]..|[Jj\x84]....|[G\x95].{8}"
_LINE_ARGUMENTS = rb"[FSVPg][^\n]*\n|[IL][^\n]{0,999}\n|[ci][^\n]*\n[^\n]*\n"
_LENGTH_BYTES = {
    **dict.fromkeys(b"UC\x8c\x8a", 1),
    **dict.fromkeys(b"TXB\x8b", 4),
    **dict.fromkeys(b"\x8d\x8e", 8),
}
"""Bytes of the length prefix of opcodes that have one."""
_STOP, _MARK, _DICT, _EMPTY, _ITEMS, _ITEM = b".(d}us"
_CLOSING = b"tle1du"
"""Opcodes that consume everything pushed since a mark."""
_SETS = b"\x8f\x90\x91"


class PickleCheck(NamedTuple):
    """Why a pickle must not be loaded ("": it may), and whether its keys must be checked while loading."""

    problem: str = ""
    careful: bool = False


def problem(data: bytes) -> str:
    """Return why the pickle `data` must not be loaded; "" if it may be."""
    return check_pickle(data).problem


def check_pickle(data: bytes) -> PickleCheck:
    """Check the pickle `data` before it is loaded."""
    run, at, marks = _opcode_pattern(len(data).bit_length()), 0, _Marks()
    while True:
        before, at = at, run.match(data, at).end()  # type: ignore[union-attr]  # it can match nothing
        marks.within[-1] += at - before
        if at >= len(data):
            return PickleCheck("it ends too early")
        opcode = data[at]
        if opcode == _STOP:
            return PickleCheck("", marks.careful)
        width = _LENGTH_BYTES.get(opcode, 0)
        if width:
            marks.within[-1] += 1
            at += 1 + width + int.from_bytes(data[at + 1 : at + 1 + width], "little")
            if at > len(data):
                return PickleCheck("it ends too early")
            continue
        if opcode == _EMPTY:
            at = _DICT_AND_MARK.match(data, at).end()  # type: ignore[union-attr]  # otherwise matched by `run`
            marks.open(True)
        elif opcode == _MARK:
            at += 1
            marks.open(False)
        elif opcode in _CLOSING:
            at += 1
            marks.close(opcode)
        elif opcode == _ITEM:
            at += 1
            marks.single()
        elif opcode in _SETS:
            return PickleCheck("it contains sets, which no snapshot does")
        elif at == before:
            return PickleCheck(f"opcode {bytes([opcode])!r} at byte {at}")


class _Marks:
    """The marks on the unpickler's stack, with the bytes of opcodes directly behind each."""

    def __init__(self) -> None:
        self.within = [0]
        self.careful = False
        self._fresh: list[bool] = []
        self._singles = 0

    def open(self, fresh: bool) -> None:
        """Push a mark; `fresh` if it is on a dictionary created just now."""
        self.within.append(0)
        self._fresh.append(fresh)

    def close(self, opcode: int) -> None:
        """Pop the last mark; check whether its items go into a dictionary that is or may be large."""
        if not self._fresh:
            return  # the unpickler reports it
        held, fresh = self.within.pop(), self._fresh.pop()
        self.within[-1] += 1
        large = held > _LARGE_DICT_BYTES and opcode in (_ITEMS, _DICT)
        self.careful |= large or (opcode == _ITEMS and not fresh)

    def single(self) -> None:
        """Count one item."""
        self._singles += 1
        self.careful |= self._singles > _MAX_SINGLE_ITEMS


_DICT_AND_MARK = re.compile(rb"\}(?:\x94|q.|r....|p[0-9]*\n)?\(", re.DOTALL)


@lru_cache(maxsize=8)
def _opcode_pattern(bits: int) -> re.Pattern[bytes]:
    """Return the pattern of opcodes of known size, with memo indices possible in ``1 << bits`` bytes."""
    high = 1 << min(max(bits - 16, 0), 8)
    top = 1 << min(max(bits - 24, 0), 7)
    ends = (_byte_range_to(high - 1), _byte_range_to(top - 1))
    put = rb"r..%b%b|p0*[0-9]{1,%d}\n" % (*ends, max(bits * 3 // 10 + 1, 1))
    empty = rb"\}(?!(?:\x94|q.|r....|p[0-9]*\n)?\()"
    return re.compile(
        rb"(?:%b|%b|%b|%b){0,%d}" % (_FIXED_SIZE, empty, put, _LINE_ARGUMENTS, _MAX_OPCODES_PER_MATCH),
        re.DOTALL,
    )


def _byte_range_to(last: int) -> bytes:
    return rb"[\x00-\x%02x]" % last

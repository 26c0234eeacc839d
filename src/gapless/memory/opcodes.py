"""A walk over a pickle's opcodes, before anything of it is built.

A few bytes of a pickle can ask for any amount of memory: a memo with billions of places, a text of
terabytes. Those are found here. So are dictionaries that could take time with the square of their size, as
one does whose keys are numbers chosen to collide: text cannot be chosen so, its hashes are salted. What
opcodes mean is left to the unpickler.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

_RUN = 5_000
"""Opcodes that one search goes over."""
_LARGE = 1024
"""Bytes of opcodes directly within one dictionary from which it is large; a snapshot's take some hundred. In
a smaller one keys that collide cost nothing to speak of."""
_SINGLES = 500
"""Items that are put into dictionaries one by one, from which all of them may be in one."""
_ONE = rb"[)012RNa\]bo\x81\x85-\x89\x92-\x94]|[\x80Khq\x82].|[M\x83]..|[Jj\x84]....|[G\x95].{8}"
_LINES = rb"[FSVPg][^\n]*\n|[IL][^\n]{0,999}\n|[ci][^\n]*\n[^\n]*\n"
_PREFIXED = {
    **dict.fromkeys(b"UC\x8c\x8a", 1),
    **dict.fromkeys(b"TXB\x8b", 4),
    **dict.fromkeys(b"\x8d\x8e", 8),
}
"""Opcodes whose length stands before what they hold, in so many bytes."""
_STOP, _MARK, _DICT, _EMPTY, _ITEMS, _ITEM = b".(d}us"
_CLOSING = b"tle1du"
"""Opcodes that take all that was pushed since a mark."""
_SETS = b"\x8f\x90\x91"


class Survey(NamedTuple):
    """Why a pickle must not be loaded ("": it may), and whether each key has to be looked at meanwhile."""

    problem: str = ""
    careful: bool = False


def problem(data: bytes) -> str:
    """Why the pickle `data` must not be loaded; "" where it may."""
    return survey(data).problem


def survey(data: bytes) -> Survey:
    """What is to be known of the pickle `data` before it is loaded."""
    run, at, marks = _run(len(data).bit_length()), 0, _Marks()
    while True:
        before, at = at, run.match(data, at).end()  # type: ignore[union-attr]  # it matches nothing at least
        marks.within[-1] += at - before
        if at >= len(data):
            return Survey("it ends too early")
        opcode = data[at]
        if opcode == _STOP:
            return Survey("", marks.careful)
        width = _PREFIXED.get(opcode, 0)
        if width:
            marks.within[-1] += 1
            at += 1 + width + int.from_bytes(data[at + 1 : at + 1 + width], "little")
            if at > len(data):
                return Survey("it ends too early")
            continue
        if opcode == _EMPTY:
            at = _FRESH.match(data, at).end()  # type: ignore[union-attr]  # else it is part of a run
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
            return Survey("it contains sets, which no snapshot does")
        elif at == before:
            return Survey(f"opcode {bytes([opcode])!r} at byte {at}")


class _Marks:
    """The marks on the unpickler's stack: how many bytes of opcodes stand right behind each."""

    def __init__(self) -> None:
        self.within = [0]
        self.careful = False
        self._fresh: list[bool] = []
        self._singles = 0

    def open(self, fresh: bool) -> None:
        """A mark; `fresh`: upon a dictionary that was made just now."""
        self.within.append(0)
        self._fresh.append(fresh)

    def close(self, opcode: int) -> None:
        """All behind the last mark is taken. Items go into a large dictionary, or into one that may be."""
        if not self._fresh:
            return  # which the unpickler will say
        held, fresh = self.within.pop(), self._fresh.pop()
        self.within[-1] += 1
        large = held > _LARGE and opcode in (_ITEMS, _DICT)
        self.careful |= large or (opcode == _ITEMS and not fresh)

    def single(self) -> None:
        """One item."""
        self._singles += 1
        self.careful |= self._singles > _SINGLES


_FRESH = re.compile(rb"\}(?:\x94|q.|r....|p[0-9]*\n)?\(", re.DOTALL)


@lru_cache(maxsize=8)
def _run(bits: int) -> re.Pattern[bytes]:
    """Opcodes of a fixed size, in a file of less than ``1 << bits`` bytes: it has no more memo places."""
    high = 1 << min(max(bits - 16, 0), 8)
    top = 1 << min(max(bits - 24, 0), 7)
    ends = (_upto(high - 1), _upto(top - 1))
    put = rb"r..%b%b|p0*[0-9]{1,%d}\n" % (*ends, max(bits * 3 // 10 + 1, 1))
    empty = rb"\}(?!(?:\x94|q.|r....|p[0-9]*\n)?\()"
    return re.compile(rb"(?:%b|%b|%b|%b){0,%d}" % (_ONE, empty, put, _LINES, _RUN), re.DOTALL)


def _upto(last: int) -> bytes:
    return rb"[\x00-\x%02x]" % last

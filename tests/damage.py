"""Damage the bytes of files that Gapless reads, as disks, editors and attackers do."""

from __future__ import annotations

import copy
import gzip
import json
import pickle
import random
from collections.abc import Iterator
from typing import Any

Place = tuple[Any, ...]

VALUES = (
    -1, 0, 1, 2**31, 2**53, 2**62, 2**63, -(2**63), 10**30, 1.5, -0.5, 1e308, -1e308, 1e-300, "", "x",
    "\x1b[2J", "\u202e", "=1+1", "NaN", "\x00", None, True, False, [], {}, [[[]]], {"a": 1},
)  # fmt: skip
"""What a field may become."""
TAIL_ITEMS = 6
"""Of longer lists the first, the last and the middle items are damaged."""
NESTS = 20_000
"""How deep something nests that nests without end."""
_KEPT = ("format", "version", "checksum")
"""What tells that a file was damaged, where it is whole itself."""
_ZIPPED = b"\x1f\x8b"


def damaged(data: bytes, seed: int) -> bytes:
    """A version of `data` (JSON, zipped or not, or a pickle): bytes flipped, an end cut off, endless nests
    or other fields."""
    rng = random.Random(seed)
    way = rng.randrange(20)
    if way == 0:
        return flipped(data, rng)
    if way == 1:
        return data[: rng.randrange(len(data))]
    if data.startswith(_ZIPPED):
        return gzip.compress(_json(gzip.decompress(data), rng, way), mtime=0)
    if data.startswith(pickle.PROTO):
        return pickle.dumps(_changed(pickle.loads(data), rng))
    return _json(data, rng, way)


def _json(data: bytes, rng: random.Random, way: int) -> bytes:
    text = json.dumps(_changed(json.loads(data), rng)).encode()
    if way == 2:
        bracket = rng.choice((b"[", b'{"a":'))
        text = text.replace(b": 0", b": " + bracket * NESTS, 1)
    return text.replace(b": 0,", b": NaN,", 1) if way == 3 else text


def _changed(document: Any, rng: random.Random) -> Any:
    """`document` with one to five other fields."""
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        _change(document, rng)
    return document


def flipped(data: bytes, rng: random.Random) -> bytes:
    """`data` with one to twenty bytes that are others."""
    damaged = bytearray(data)
    for _ in range(rng.randint(1, 20)):
        damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    return bytes(damaged)


def _places(value: Any, before: Place = ()) -> Iterator[tuple[Place, Any]]:
    yield before, value
    if isinstance(value, dict):
        for key in value:
            yield from _places(value[key], (*before, key))
    elif isinstance(value, list):
        size = len(value)
        some = range(size) if size <= TAIL_ITEMS else sorted({0, 1, size // 2, size - 2, size - 1})
        for at in some:
            yield from _places(value[at], (*before, at))


def _change(document: Any, rng: random.Random) -> None:
    """Change one field of `document`, a number or a list in most cases; nothing where it has none left."""
    places = [(at, old) for at, old in _places(document) if at and at[0] not in _KEPT]
    if not places:
        return
    numbers = [(at, old) for at, old in places if isinstance(old, int | float | list)]
    place, old = rng.choice(numbers if numbers and rng.random() < 0.7 else places)
    inside = document
    for key in place[:-1]:
        inside = inside[key]
    way = rng.randrange(10)
    if way == 0:
        del inside[place[-1]]
    elif way <= 2:
        inside[place[-1]] = copy.deepcopy(rng.choice(VALUES))
    elif way == 3:
        inside[place[-1]] = copy.deepcopy(rng.choice(places)[1])
    else:
        inside[place[-1]] = _other(old, rng)


def _other(old: Any, rng: random.Random) -> Any:
    """Another value of the kind that `old` is."""
    if isinstance(old, bool):
        return not old
    if isinstance(old, int):
        return rng.choice(
            (-1, 0, old + 1, -old, old * 2 + 1, old * 1000, 2**31, 2**40, 2**60 - 1, 2**62, 2**63)
        )
    if isinstance(old, float):
        return rng.choice((-1.0, 0.0, -old, old * 1000, 1e15, 1e17, 1e300))
    if isinstance(old, list):
        return rng.choice((old[:-1], old + old[:1], old[::-1], [], old * 3))
    if isinstance(old, str):
        return rng.choice(("", old * 2000, f"\x1b[31m{old}", f"{old}\n{old}", f"\u202e{old}", f"={old}"))
    return {}

"""What was reserved when recording began, block by block."""

from __future__ import annotations

from typing import Any

from gapless.errors import UnreadableInput
from gapless.memory.rewind import FREE, USED, WAITING, Inconsistent, Piece, Range, Rewind, pool_of
from gapless.memory.settings import Settings
from gapless.memory.sizes import SMALL_SEGMENT

_STATES = {
    "active_allocated": USED,
    "active_pending_free": WAITING,
    "active_awaiting_free": WAITING,
    "inactive": FREE,
}


class Start:
    """The rewound state. `private` are the private pools that are known: first address, end and name."""

    def __init__(self, rewind: Rewind, private: list[tuple[int, int, str]]) -> None:
        self.rewind = rewind
        self.private = private

    @property
    def reserved(self) -> int:
        return self.rewind.reserved


def starting(segments: list[Any], trace: list[Any], settings: Settings, name: str) -> Start:
    """The state before the first entry of `trace`, which ends with `segments`.

    Raises:
        UnreadableInput: the trace does not lead there.
    """
    rewind = Rewind(settings, frees_tell(trace))
    private: list[tuple[int, int, str]] = []
    try:
        for segment in segments:
            home, pieces = _range(segment)
            rewind.add(home, pieces)
            if home.pool:
                private.append((home.address, home.address + home.size, home.pool))
    except Inconsistent as error:
        raise UnreadableInput(f"{name} is a damaged snapshot: {error}") from None
    for back, entry in enumerate(reversed(trace), 1):
        try:
            rewind.undo(entry)
        except Inconsistent as error:
            raise UnreadableInput(
                f"{name} cannot be replayed: {error} (entry {len(trace) - back} of {len(trace)}); was "
                "recording interrupted or set to skip actions?"
            ) from None
    return Start(rewind, private)


def frees_tell(trace: list[Any]) -> bool:
    """Whether entries of what is given back have the frames of who asked for it.

    So it is where frames were recorded of allocations alone (``context="alloc"``); else they have those of
    who let it go.
    """
    asked: dict[int, Any] = {}
    same = False
    for entry in trace:
        if entry["action"] == "alloc":
            asked[entry["addr"]] = entry.get("frames")
        elif entry["action"] == "free_requested" and entry["addr"] in asked:
            if asked.pop(entry["addr"]) != entry.get("frames"):
                return False
            same = True
    return same


def _range(segment: Any) -> tuple[Range, list[tuple[int, Piece]]]:
    """A segment of a snapshot with its blocks."""
    address, pieces = segment["address"], []
    for block in segment["blocks"]:
        state = _STATES.get(block["state"])
        if state is None:
            raise Inconsistent(f"a block is {block['state'][:40]!r}")
        requested, frames = _asked(block)
        pieces.append((address, Piece(block["size"], state, requested if state != FREE else 0, frames)))
        address += block["size"]
    if address != segment["address"] + segment["total_size"]:
        raise Inconsistent("a segment's size differs from its blocks' total")
    told = segment.get("segment_type")
    small = told == "small" if told else segment["total_size"] <= SMALL_SEGMENT
    return (
        Range(
            segment["address"],
            segment["total_size"],
            segment["stream"],
            small,
            bool(segment.get("is_expandable", False)),
            pool_of(segment),
        ),
        pieces,
    )


def _asked(block: Any) -> tuple[int, object]:
    """What was asked for, and by which frames: torch 2.0 has both in a history."""
    history = block.get("history")
    if isinstance(history, list) and history and isinstance(history[0], dict):
        last = history[0]
        return _within(last.get("real_size"), block), last.get("frames")
    return _within(block.get("requested_size"), block), block.get("frames")


def _within(size: object, block: Any) -> int:
    """What was asked for of a block, which is no more than it has; all of it where that is not told."""
    whole: int = block["size"]
    return size if type(size) is int and 0 <= size <= whole else whole

"""Reconstruct what was reserved when recording began, block by block."""

from __future__ import annotations

from typing import Any

from gapless.errors import UnreadableInput
from gapless.memory.rewind import FREE, USED, WAITING, InconsistentTrace, Piece, Rewind, SegmentRange, pool_of
from gapless.memory.settings import Settings
from gapless.memory.sizes import SMALL_SEGMENT

_STATES = {
    "active_allocated": USED,
    "active_pending_free": WAITING,
    "active_awaiting_free": WAITING,
    "inactive": FREE,
}


class StartState:
    """The state when recording began; `private` lists first address, end and name of known private pools."""

    def __init__(self, rewind: Rewind, private: list[tuple[int, int, str]]) -> None:
        self.rewind = rewind
        self.private = private

    @property
    def reserved(self) -> int:
        return self.rewind.reserved


def rewind_to_start(segments: list[Any], trace: list[Any], settings: Settings, name: str) -> StartState:
    """Return the state before the first entry of `trace`, which ends with `segments`.

    Raises:
        UnreadableInput: the trace is inconsistent with `segments`.
    """
    rewind = Rewind(settings, frees_have_allocation_frames(trace))
    private: list[tuple[int, int, str]] = []
    try:
        for segment in segments:
            home, pieces = _range(segment)
            rewind.add(home, pieces)
            if home.pool:
                private.append((home.address, home.address + home.size, home.pool))
    except InconsistentTrace as error:
        raise UnreadableInput(f"{name} is a damaged snapshot: {error}") from None
    for back, entry in enumerate(reversed(trace), 1):
        try:
            rewind.undo(entry)
        except InconsistentTrace as error:
            raise UnreadableInput(
                f"{name} cannot be replayed: {error} (entry {len(trace) - back} of {len(trace)}); was "
                "recording interrupted or set to skip actions?"
            ) from None
    return StartState(rewind, private)


def frees_have_allocation_frames(trace: list[Any]) -> bool:
    """Whether entries of freed memory carry the frames of its allocation.

    This is so if frames were only recorded for allocations (``context="alloc"``).
    """
    frames_by_address: dict[int, Any] = {}
    same = False
    for entry in trace:
        if entry["action"] == "alloc":
            frames_by_address[entry["addr"]] = entry.get("frames")
        elif entry["action"] == "free_requested" and entry["addr"] in frames_by_address:
            if frames_by_address.pop(entry["addr"]) != entry.get("frames"):
                return False
            same = True
    return same


def _range(segment: Any) -> tuple[SegmentRange, list[tuple[int, Piece]]]:
    """Return a segment of a snapshot and its pieces, by address."""
    address, pieces = segment["address"], []
    for block in segment["blocks"]:
        state = _STATES.get(block["state"])
        if state is None:
            raise InconsistentTrace(f"a block is {block['state'][:40]!r}")
        requested, frames = _requested_bytes(block)
        pieces.append((address, Piece(block["size"], state, requested if state != FREE else 0, frames)))
        address += block["size"]
    if address != segment["address"] + segment["total_size"]:
        raise InconsistentTrace("a segment's size differs from its blocks' total")
    pool_kind = segment.get("segment_type")
    small = pool_kind == "small" if pool_kind else segment["total_size"] <= SMALL_SEGMENT
    return (
        SegmentRange(
            segment["address"],
            segment["total_size"],
            segment["stream"],
            small,
            bool(segment.get("is_expandable", False)),
            pool_of(segment),
        ),
        pieces,
    )


def _requested_bytes(block: Any) -> tuple[int, object]:
    """Return requested bytes and frames of a block: torch 2.0 has both in a history."""
    history = block.get("history")
    if isinstance(history, list) and history and isinstance(history[0], dict):
        last = history[0]
        return _clamp_size(last.get("real_size"), block), last.get("frames")
    return _clamp_size(block.get("requested_size"), block), block.get("frames")


def _clamp_size(size: object, block: Any) -> int:
    """Return `size` if the block can hold it, else the block's size."""
    whole: int = block["size"]
    return size if type(size) is int and 0 <= size <= whole else whole

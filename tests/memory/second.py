"""A second caching allocator, small and slow, that shares nothing with the first: what the tests reckon with.

It knows one block list for each segment and looks through all of it. `record` makes it write what
``torch.cuda.memory._snapshot()`` would, so that snapshots of runs that end out of memory can be made up.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

MIB = 1 << 20
Op = tuple[str, int, int, int]
"""``("alloc", name, size, stream)``, ``("free", name, 0, 0)``, ``("empty", 0, 0, 0)``."""


class Full(Exception):
    """There is no memory for a request."""


@dataclass
class Conf:
    """What is set of the allocator."""

    text: str = ""
    max_split: int = 1 << 62
    divisions: int = 1
    expandable: bool = False

    @classmethod
    def of(cls, text: str) -> Conf:
        overrides = dict(part.split(":") for part in text.split(",") if part)
        return cls(
            text,
            int(overrides.get("max_split_size_mb", 1 << 42)) * MIB,
            int(overrides.get("roundup_power2_divisions", 1)),
            overrides.get("expandable_segments") == "True",
        )


@dataclass
class Piece:
    """A stretch of addresses: in use by `name`, free, or (`mapped` False) without memory."""

    address: int
    size: int
    name: int = -1
    requested: int = 0
    mapped: bool = True

    @property
    def free(self) -> bool:
        return self.name < 0 and self.mapped


@dataclass
class Segment:
    address: int
    stream: int
    small: bool
    pieces: list[Piece]

    @property
    def held(self) -> int:
        return sum(piece.size for piece in self.pieces if piece.mapped)


@dataclass
class Device:
    """One device with `capacity` bytes for this process."""

    capacity: int
    conf: Conf = field(default_factory=Conf)
    number: int = 0
    segments: list[Segment] = field(default_factory=list)
    trace: list[dict[str, Any]] = field(default_factory=list)
    fresh: int = 0x7E00_0000_0000
    clock: int = 1_000_000
    doing: str = "step"

    @property
    def reserved(self) -> int:
        return sum(segment.held for segment in self.segments)

    @property
    def allocated(self) -> int:
        return sum(piece.size for part in self.segments for piece in part.pieces if piece.name >= 0)

    def log(self, action: str, address: int, size: int, stream: int, **more: Any) -> None:
        self.clock += 7
        where = {} if action == "oom" else {"addr": address}
        entry = {"action": action, **where, "size": size, "stream": stream, "time_us": self.clock}
        frames = [{"name": self.doing, "filename": "/home/me/train.py", "line": 12}]
        self.trace.append({**entry, "frames": frames, **more})

    # Requests -------------------------------------------------------------------------------------

    def rounded(self, size: int) -> int:
        parts = self.conf.divisions
        if parts > 1 and size > 512 * parts:
            low = 1
            while 2 * low <= size:
                low *= 2
            return size if size == low else -(-size // (low // parts)) * (low // parts)
        return max(-(-size // 512) * 512, 512)

    def alloc(self, name: int, requested: int, stream: int = 0) -> None:
        size = self.rounded(requested)
        small = size <= MIB
        new_segment = self.fit(size, small, stream) or self.more(size, small, stream)
        if new_segment is None:
            if self.conf.max_split < 1 << 61:
                enough = self.release_large(size, small, stream)
                new_segment = self.more(size, small, stream) if enough else None
            if new_segment is None:
                self.release()
                new_segment = self.more(size, small, stream)
        if new_segment is None:
            self.log("oom", 0, size, stream, device_free=self.capacity - self.reserved)
            raise Full
        home, piece = new_segment
        rest = piece.size - size
        divided = rest >= 512 if small or self.conf.expandable else size < self.conf.max_split and rest > MIB
        if divided:
            at = home.pieces.index(piece)
            home.pieces.insert(at + 1, Piece(piece.address + size, rest))
            piece.size = size
        piece.name, piece.requested = name, requested
        self.log("alloc", piece.address, requested, stream)

    def fit(self, size: int, small: bool, stream: int) -> tuple[Segment, Piece] | None:
        fits = sorted(
            (
                (home, piece)
                for home in self.segments
                if (home.stream, home.small) == (stream, small)
                for piece in home.pieces
                if piece.free and piece.size >= size
            ),
            key=lambda piece: (piece[1].size, piece[1].address),
        )
        if not fits:
            return None
        if self.conf.expandable:
            at = 0
            while at + 1 < len(fits) and room(*fits[at + 1]) < room(*fits[at]):
                at += 1
            return fits[at]
        home, piece = fits[0]
        split = self.conf.max_split
        if size < split <= piece.size or (size >= split and piece.size >= size + 20 * MIB):
            return None
        return home, piece

    def more(self, size: int, small: bool, stream: int) -> tuple[Segment, Piece] | None:
        if self.conf.expandable:
            return self.map(size, small, stream)
        whole = 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        if self.reserved + whole > self.capacity:
            return None
        piece = Piece(self.addresses(whole), whole)
        home = Segment(piece.address, stream, small, [piece])
        self.segments.append(home)
        self.log("segment_alloc", piece.address, whole, stream)
        return home, piece

    def addresses(self, size: int) -> int:
        self.fresh += -(-size // (2 * MIB)) * 2 * MIB + 2 * MIB
        return self.fresh - -(-size // (2 * MIB)) * 2 * MIB

    def map(self, size: int, small: bool, stream: int) -> tuple[Segment, Piece] | None:
        """The first stretch of free addresses, mapped or not, that is large enough; pages mapped to it."""
        page = (2 if small else 20) * MIB
        for home in (
            segment for segment in self.segments if (segment.stream, segment.small) == (stream, small)
        ):
            for at, first in enumerate(home.pieces):
                if first.mapped and not (
                    first.free and at + 1 < len(home.pieces) and not home.pieces[at + 1].mapped
                ):
                    continue
                idle = []
                for piece in home.pieces[at:]:
                    if piece.name >= 0:
                        break
                    idle.append(piece)
                if sum(piece.size for piece in idle) >= size:
                    return self.mapped(home, idle, size, page)
        space = 1 << 42
        home = Segment(self.addresses(space), stream, small, [])
        home.pieces.append(Piece(home.address, space, mapped=False))
        self.segments.append(home)
        return self.mapped(home, home.pieces[:1], size, page)

    def mapped(self, home: Segment, idle: list[Piece], size: int, page: int) -> tuple[Segment, Piece] | None:
        have = 0
        for piece in idle:
            if have >= size:
                break
            if not piece.mapped:
                wanted = min(size - have, piece.size)
                bytes_ = (
                    -(-(piece.address + wanted - home.address) // page) * page + home.address - piece.address
                )
                if self.reserved + bytes_ > self.capacity:
                    self.join(home)
                    return None
                if bytes_ < piece.size:
                    at = home.pieces.index(piece)
                    home.pieces.insert(
                        at + 1, Piece(piece.address + bytes_, piece.size - bytes_, mapped=False)
                    )
                    piece.size = bytes_
                piece.mapped = True
                self.log("segment_map", piece.address, bytes_, home.stream)
            have += piece.size
        start = idle[0].address
        self.join(home)
        return home, next(piece for piece in home.pieces if piece.address == start or
                          (piece.free and piece.address <= start < piece.address + piece.size))  # fmt: skip

    # What is given back ---------------------------------------------------------------------------

    def free(self, name: int) -> None:
        for home in self.segments:
            for piece in home.pieces:
                if piece.name == name:
                    self.log("free_requested", piece.address, piece.requested, home.stream)
                    self.log("free_completed", piece.address, piece.requested, home.stream)
                    piece.name, piece.requested = -1, 0
                    self.join(home)
                    return

    def join(self, home: Segment) -> None:
        at = 0
        while at + 1 < len(home.pieces):
            here, following = home.pieces[at], home.pieces[at + 1]
            if here.name < 0 and following.name < 0 and here.mapped == following.mapped:
                here.size += following.size
                del home.pieces[at + 1]
            else:
                at += 1

    def release_large(self, size: int, small: bool, stream: int) -> bool:
        """Segments that are never split, until there is enough; whether that many there were."""
        wanted = max(size, self.conf.max_split)
        whole = sorted(
            (segment for segment in self.segments if (segment.stream, segment.small) == (stream, small)
             and len(segment.pieces) == 1 and segment.pieces[0].free),
            key=lambda segment: (segment.held, segment.address),
        )  # fmt: skip
        enough = [segment for segment in whole if segment.held >= wanted]
        if enough:
            self.drop(enough[0])
            return True
        gone = 0
        for segment in reversed(whole):
            if gone >= wanted or segment.held < self.conf.max_split:
                break
            gone += segment.held
            self.drop(segment)
        return gone >= wanted

    def drop(self, home: Segment) -> None:
        self.log("segment_free", home.address, home.held, home.stream)
        self.segments.remove(home)

    def release(self) -> None:
        """All that is whole: unsplit segments, and whole pages of free pieces."""
        order = sorted(
            self.segments, key=lambda segment: (segment.small, segment.stream, segment.held, segment.address)
        )
        for home in order:
            if not self.conf.expandable:
                if len(home.pieces) == 1 and home.pieces[0].free:
                    self.drop(home)
                continue
            page = (2 if home.small else 20) * MIB
            for hole in [piece for piece in home.pieces if piece.free]:
                first = -(-(hole.address - home.address) // page) * page + home.address
                last = (hole.address + hole.size - home.address) // page * page + home.address
                if first >= last:
                    continue
                at = home.pieces.index(hole)
                parts = [
                    Piece(hole.address, first - hole.address),
                    Piece(first, last - first, mapped=False),
                    Piece(last, hole.address + hole.size - last),
                ]
                home.pieces[at : at + 1] = [part for part in parts if part.size]
                self.log("segment_unmap", first, last - first, home.stream)
            self.join(home)

    # Runs -----------------------------------------------------------------------------------------

    def run(self, ops: Sequence[Op]) -> int:
        """Do all of `ops`; how many requests failed. What failed goes away at once, and the run goes on."""
        failed, gone = 0, set()
        for action, name, size, stream in ops:
            if action == "alloc":
                try:
                    self.alloc(name, size, stream)
                except Full:
                    failed += 1
                    gone.add(name)
            elif action == "probe":  # asked for, and given back at once if it was had
                try:
                    self.alloc(name, size, stream)
                    self.free(name)
                except Full:
                    failed += 1
            elif action == "free":
                if name not in gone:
                    self.free(name)
            else:
                self.doing = "empty_cache"
                self.release()
                self.doing = "step"
        return failed

    def shown(self) -> list[dict[str, Any]]:
        """The segments, as a snapshot has them: mapped ranges each for itself."""
        entries = []
        for home in self.segments:
            ranges: list[list[Piece]] = [[]]
            for piece in home.pieces:
                if piece.mapped:
                    ranges[-1].append(piece)
                elif ranges[-1]:
                    ranges.append([])
            for pieces in filter(None, ranges):
                entries.append(
                    {
                        "device": self.number,
                        "address": pieces[0].address,
                        "total_size": sum(piece.size for piece in pieces),
                        "stream": home.stream,
                        "segment_type": "small" if home.small else "large",
                        "segment_pool_id": (0, 0),
                        "is_expandable": self.conf.expandable,
                        "blocks": [
                            {
                                "address": piece.address,
                                "size": piece.size,
                                "requested_size": piece.requested or piece.size,
                                "state": "active_allocated" if piece.name >= 0 else "inactive",
                                "frames": [],
                            }
                            for piece in pieces
                        ],
                    }
                )
        return sorted(entries, key=lambda entry: entry["address"])


def room(home: Segment, piece: Piece) -> int:
    at = home.pieces.index(piece)
    behind = home.pieces[at + 1] if at + 1 < len(home.pieces) else None
    return piece.size + (behind.size if behind is not None and not behind.mapped else 0)


def snapshot(devices: Sequence[Device], last: int = 1 << 30) -> dict[str, Any]:
    """What torch would save of `devices`, with the `last` entries of each history."""
    return {
        "segments": [segment for device in devices for segment in device.shown()],
        "device_traces": [copy.deepcopy(device.trace[-last:]) for device in devices],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": devices[0].conf.text},
        "external_annotations": [],
    }


def fails(ops: Sequence[Op], capacity: int, conf: str = "", start: Device | None = None) -> int:
    """How many of the requests fail with `capacity` bytes, from `start` on (None: from nothing)."""
    device = copy.deepcopy(start) if start is not None else Device(capacity)
    device.capacity, device.conf, device.trace = capacity, Conf.of(conf), []
    return device.run(ops)

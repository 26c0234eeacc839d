"""Export a simulated run as a snapshot for PyTorch's memory viewer."""

from __future__ import annotations

import os
import pickle
from typing import Any

from gapless.files.output import write_whole
from gapless.memory.allocator import Allocator
from gapless.memory.blocks import Block
from gapless.memory.moment import places_of
from gapless.memory.settings import NO_LIMIT, Settings
from gapless.memory.simulate import Simulation
from gapless.memory.sizes import INTERVALS, MIB
from gapless.model.memory import ALLOC, DEFER, EMPTY, FAILED, FREE, MemoryRun

Frames = list[dict[str, Any]]
_EMPTY_CACHE_FRAMES: Frames = [{"name": "empty_cache", "filename": "torch/cuda/memory.py", "line": 0}]
"""Marks memory that the user released, as opposed to memory released to serve a request."""


class ExportingSimulation(Simulation):
    """A replay that records its trace; :meth:`snapshot` returns it in the format of ``_snapshot()``."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.trace: list[dict[str, Any]] = []
        self._frames: dict[int, Frames] = {}
        self._now: Frames = []
        self._time: dict[str, int] = {}

    def _replay_rows(self, low: int, high: int) -> int:
        run, allocator = self.run, self.allocator
        allocator.log = self._log
        for at in range(low, high):
            action, ident, place = run.action[at], run.ident[at], run.place[at]
            if run.time:
                self._time = {"time_us": run.time[at] // 1000}
            self._now = _EMPTY_CACHE_FRAMES if action == EMPTY else self.frames(place)
            if action == ALLOC:
                allocator.now = at
                pool = run.pool[at] if run.pool else 0
                block = allocator.malloc(run.size[at], run.stream[at], pool)
                if block is None:
                    self._end_with_shortage(at, run.size[at], place, run.stream[at], pool)
                    self._log_failure(run.size[at], run.stream[at])
                    return at
                self.live.blocks[ident] = block
                self._log("alloc", block.address, block.requested, block.stream)
            elif action in (FREE, DEFER):
                block = self.live.blocks[ident]
                self._log("free_requested", block.address, block.requested, block.stream)
                if action == FREE:
                    allocator.free(self.live.blocks.pop(ident))
                else:
                    self._replay_rare(at, action, ident)
            else:
                self._replay_rare(at, action, ident)
                if action == FAILED:
                    self._log_failure(run.size[at], run.stream[at])
                if self.shortage is not None:
                    return at
        return high

    def _log_failure(self, size: int, stream: int) -> None:
        free = max(self.capacity - self.allocator.driver.used, 0)
        entry = {"action": "oom", "addr": 0, "size": size, "stream": stream, "device_free": free}
        self.trace.append({**entry, **self._time, "frames": self._now})

    def _log(self, action: str, address: int, size: int, stream: int) -> None:
        entry = {"action": action, "addr": address, "size": size, "stream": stream}
        self.trace.append({**entry, **self._time, "frames": self._now})

    def frames(self, place: int) -> Frames:
        """Return the Python calls of a place in the format of a snapshot."""
        stack_frames = self._frames.get(place)
        if stack_frames is None:
            stack_frames = self._frames[place] = [
                {"name": line.function, "filename": line.file, "line": line.line}
                for line in self.run.stack(place)
            ]
        return stack_frames

    def snapshot(self) -> dict[str, Any]:
        """Return segments and history; call it after :meth:`go`."""
        traces: list[list[dict[str, Any]]] = [[] for _ in range(self.run.device)]
        return {
            "segments": self._segments(),
            "device_traces": [*traces, self.trace],
            "allocator_settings": _settings(self.settings, self.text),
            "external_annotations": [],
        }

    def _segments(self) -> list[dict[str, Any]]:
        live = self.live.blocks
        places = places_of(self.run, live)
        frames = {id(block): self.frames(places[ident]) for ident, block in live.items()}
        segments = []
        for head in _heads(self.allocator, list(live.values())):
            blocks: list[Block] = []
            at: Block | None = head
            while at is not None and at.mapped:
                blocks.append(at)
                at = at.next
            segments.append(self._segment(head, blocks, frames))
        return sorted(segments, key=lambda segment: int(segment["address"]))

    def _segment(self, head: Block, blocks: list[Block], frames: dict[int, Frames]) -> dict[str, Any]:
        active = [block for block in blocks if not block.idle]
        return {
            "device": self.run.device,
            "address": head.address,
            "total_size": sum(block.size for block in blocks),
            "allocated_size": sum(block.size for block in blocks if block.allocated),
            "active_size": sum(block.size for block in active),
            "requested_size": sum(block.requested for block in active),
            "stream": head.stream,
            "segment_type": "small" if head.pool.small else "large",
            "segment_pool_id": self._pool(head),
            "is_expandable": head.expandable is not None,
            "frames": [],
            "blocks": [
                {
                    "address": block.address,
                    "size": block.size,
                    "requested_size": block.requested,
                    "state": _state(block),
                    "frames": frames.get(id(block), []),
                }
                for block in blocks
            ],
        }

    def _pool(self, block: Block) -> tuple[int, int]:
        for number, private in self.allocator.private.items():
            if block.pool.private is private:
                first, _, second = self.run.pools[number].partition(",")
                return int(first), int(second)
        return 0, 0


def export(run: MemoryRun, path: str | os.PathLike[str], *arguments: Any, **options: Any) -> None:
    """Write the replay of `run` (arguments as for `Simulation`) to `path` as a pickle of plain values."""
    replay = ExportingSimulation(run, *arguments, **options)
    replay.go(points=1)
    write_whole(pickle.dumps(replay.snapshot()), path)


def _state(block: Block) -> str:
    if block.allocated:
        return "active_allocated"
    return "inactive" if block.idle else "active_pending_free"


def _heads(allocator: Allocator, live: list[Block]) -> list[Block]:
    """Return the first block, allocated or free, of each segment and of each mapped range of expandable
    segments."""
    pools = [allocator.small, allocator.large]
    for private in allocator.private.values():
        pools += [private.small, private.large]
    waiting = [block for queue in allocator.events.values() for block, _ in queue]
    blocks = [block for pool in pools for block in pool.blocks()] + live + waiting
    return list({id(b): b for b in blocks if b.prev is None or not b.prev.mapped}.values())


def _settings(settings: Settings, text: str) -> dict[str, Any]:
    divisions = settings.divisions or (0,) * INTERVALS
    return {
        "PYTORCH_CUDA_ALLOC_CONF": text,
        "max_split_size": -1 if settings.max_split_size >= NO_LIMIT else settings.max_split_size,
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "expandable_segments": settings.expandable_segments,
        "roundup_power2_divisions": {str(1 << at): parts for at, parts in enumerate(divisions)},
        "large_segment_size_mb": settings.large_segment_size // MIB,
    }

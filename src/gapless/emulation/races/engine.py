"""The autograd engine: which streams it orders by itself.

It runs each node on the stream of its forward call, and makes that stream wait for those that gave it its
gradients; at the end the stream that called backward waits for all of them (torch/csrc/autograd/engine.cpp).
Here the nodes run on the stream that called, which therefore knows what the node's own stream knows.
"""

from __future__ import annotations

import threading
from typing import Any

from gapless.emulation.races.clocks import Clocks
from gapless.torch_internals import current_node

_MANY = 20_000


class _Thread(threading.local):
    def __init__(self) -> None:
        self.streams: dict[int, int] | None = None


class Engine:
    """What nodes were made on streams besides the default one, and where backward was called."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._spans: list[tuple[int, int, tuple[int, ...]]] = []
        self._called = _Thread()

    def made(self, begin: int, end: int, tracks: dict[int, int]) -> None:
        """The nodes from number `begin` to `end` were made while those tracks were current."""
        places = list(self._clocks.tracks)
        beside = tuple(track for track in tracks.values() if places[track][1] != 0)
        if not beside:
            return
        spans = self._spans
        if spans and spans[-1][2] == beside and spans[-1][0] <= begin <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]), beside)
        else:
            spans.append((begin, end, beside))
            del spans[: max(len(spans) - _MANY, 0)]

    def begins(self, tracks: dict[int, int]) -> Any:
        """Backward is called on these streams."""
        before = self._called.streams
        if before is None:
            self._called.streams = dict(tracks)
            for index, track in tracks.items():  # where most nodes were made, and so run
                self._clocks.awaits(track, self._clocks.known[self._clocks.track(index, 0)])
        return before

    def ends(self, before: Any) -> None:
        self._called.streams = before

    def elsewhere(self, index: int, track: int) -> bool:
        """Whether what runs on `track` now is a node's doing that on a GPU runs on another stream.

        Where a hook has chosen a stream, that is where it runs.
        """
        called = self._called.streams
        default = self._clocks.track(index, 0)
        if called is None or called.get(index, track) != track or not (self._spans or track != default):
            return False
        node = current_node()
        if node is None:
            return False
        number = node._sequence_nr()
        beside = next((own for begin, end, own in reversed(self._spans) if begin <= number < end), (default,))
        for own in beside:
            self._clocks.awaits(track, self._clocks.known[own])
        return track not in beside

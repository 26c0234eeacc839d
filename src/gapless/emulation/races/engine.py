"""The autograd engine: which streams it orders by itself.

It runs each node on the stream of its forward call, which waits for the streams that produced its gradients;
at the end the stream that called backward waits for all of them (torch/csrc/autograd/engine.cpp). Here nodes
run on the calling stream, which is therefore ordered after the node's own stream.
"""

from __future__ import annotations

import threading
from typing import Any

from gapless.emulation.races.clocks import Clocks
from gapless.torch_internals import current_node

_MAX_SPANS = 20_000
"""Spans of nodes kept, to bound memory: more than the nodes of one step."""


class _BackwardThread(threading.local):
    def __init__(self) -> None:
        self.streams: dict[int, int] | None = None


class Engine:
    """Which nodes were created on streams besides the default one, and where backward was called."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._spans: list[tuple[int, int, tuple[int, ...]]] = []
        self._called = _BackwardThread()

    def record_nodes(self, begin: int, end: int, tracks: dict[int, int]) -> None:
        """Record that nodes numbered `begin` to `end` were created while `tracks` were current."""
        places = list(self._clocks.tracks)
        beside = tuple(track for track in tracks.values() if places[track][1] != 0)
        if not beside:
            return
        spans = self._spans
        if spans and spans[-1][2] == beside and spans[-1][0] <= begin <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]), beside)
        else:
            spans.append((begin, end, beside))
            del spans[: max(len(spans) - _MAX_SPANS, 0)]

    def begin_backward(self, tracks: dict[int, int]) -> Any:
        """Begin a backward pass called on `tracks`; return what to pass to `end_backward`."""
        before = self._called.streams
        if before is None:
            self._called.streams = dict(tracks)
            for index, track in tracks.items():  # most nodes were created on the default stream and run there
                self._clocks.order_after(track, self._clocks.by_track[self._clocks.track(index, 0)])
        return before

    def end_backward(self, before: Any) -> None:
        self._called.streams = before

    def runs_elsewhere(self, index: int, track: int) -> bool:
        """Whether work on `track` belongs to a node that a GPU would run on another stream.

        If a hook has switched the stream, work runs on that one.
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
            self._clocks.order_after(track, self._clocks.by_track[own])
        return track not in beside

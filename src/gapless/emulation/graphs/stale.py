"""Finds autograd nodes created on the default stream before a capture: a captured backward must not use them.

A node belongs to the stream that was current when it was created. A leaf's node, ``AccumulateGrad``, lives as
long as an autograd graph uses the leaf: a loss kept from warm-up is enough.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from gapless.emulation.graphs import words
from gapless.torch_internals import (
    DisableTorchDispatch,
    DisableTorchFunction,
    override_stale_stream,
    sequence_number,
)

_STREAM_KEY = "gapless.stream"
_UNKNOWN_STREAM = -1
"""No stream's number: parameters were used on several."""
_MAX_NODES = 100_000
"""Autograd nodes visited in one search, to bound its time."""
"""Autograd nodes visited in one search, to bound its time."""


class NodeStreams:
    """Which stream was current when autograd nodes were created."""

    def __init__(self) -> None:
        self.enabled = False
        self._begins: list[int] = [0]
        self._streams: list[int] = [0]

    def mark_leaves(self, stream: int, parameters: Iterable[torch.Tensor]) -> None:
        """Assign the leaves' nodes that have no stream yet to `stream`, which was current until now."""
        with DisableTorchDispatch(), DisableTorchFunction(), torch.enable_grad():
            for parameter in parameters:
                if parameter.requires_grad and parameter.is_leaf:
                    node: Any = torch.autograd.graph.get_gradient_edge(parameter).node
                    node.metadata.setdefault(_STREAM_KEY, stream)

    def mark_first_seen(self, parameters: Iterable[torch.Tensor]) -> None:
        """Start tracking leaves: their nodes are the default stream's if no other was ever current."""
        self.mark_leaves(0 if len(self._streams) == 1 else _UNKNOWN_STREAM, parameters)

    def set_current(self, stream: int) -> None:
        """Record that `stream` is current from now on."""
        self._begins.append(sequence_number())
        self._streams.append(stream)

    def find_stale(self, outputs: Iterable[Any], since: int) -> str:
        """Return the name of a node behind `outputs` created on the default stream before sequence number
        `since`; "" if there is none."""
        if override_stale_stream is not None and override_stale_stream():
            return ""
        for node in _reachable_nodes(outputs):
            if hasattr(node, "variable"):
                if node.metadata.get(_STREAM_KEY, _UNKNOWN_STREAM) == 0:
                    return str(node.name())
            elif node._sequence_nr() < since:
                at = bisect.bisect_right(self._begins, node._sequence_nr()) - 1
                if self._streams[max(at, 0)] == 0:
                    return str(node.name())
        return ""

    @staticmethod
    def error(node: str) -> RuntimeError:
        """Return the error for a stale node: torch's message, or CUDA's for versions without that check."""
        return words.error(words.IMPLICIT) if override_stale_stream is None else words.stale_stream(node)


def _reachable_nodes(outputs: Iterable[Any]) -> Iterator[Any]:
    visited: set[Any] = set()
    waiting = [
        output.grad_fn
        for output in outputs
        if isinstance(output, torch.Tensor) and output.grad_fn is not None
    ]
    while waiting and len(visited) < _MAX_NODES:
        node = waiting.pop()
        if node in visited:
            continue
        visited.add(node)
        yield node
        waiting += [following for following, _ in node.next_functions if following is not None]

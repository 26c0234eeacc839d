"""Nodes of autograd that were made before a capture, on the default stream: a backward pass cannot hold them.

A node belongs to the stream that was current when it was made. That of a leaf, ``AccumulateGrad``, lives as
long as something uses the leaf in a graph: a loss from warm-up that is kept is enough.
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

_STREAM = "gapless.stream"
_NOBODY_KNOWS = -1
_MOST = 100_000


class Nodes:
    """Which stream made which nodes, as far as a capture wants to know."""

    def __init__(self) -> None:
        self.wanted = False
        self._begins: list[int] = [0]
        self._streams: list[int] = [0]

    def leaving(self, stream: int, parameters: Iterable[torch.Tensor]) -> None:
        """`stream` was the current one: the leaves' nodes that are alive and unknown were made on it."""
        with DisableTorchDispatch(), DisableTorchFunction(), torch.enable_grad():
            for one in parameters:
                if one.requires_grad and one.is_leaf:
                    node: Any = torch.autograd.graph.get_gradient_edge(one).node
                    node.metadata.setdefault(_STREAM, stream)

    def found(self, parameters: Iterable[torch.Tensor]) -> None:
        """Looked at from now on: once other streams were current, nobody knows whose their nodes are."""
        self.leaving(0 if len(self._streams) == 1 else _NOBODY_KNOWS, parameters)

    def current(self, stream: int) -> None:
        """`stream` is the current one from now on."""
        self._begins.append(sequence_number())
        self._streams.append(stream)

    def stale(self, outputs: Iterable[Any], since: int) -> str:
        """The name of a node behind `outputs` that was made on the default stream before number `since`."""
        if override_stale_stream is not None and override_stale_stream():
            return ""
        for node in _behind(outputs):
            if hasattr(node, "variable"):
                if node.metadata.get(_STREAM, _NOBODY_KNOWS) == 0:
                    return str(node.name())
            elif node._sequence_nr() < since:
                at = bisect.bisect_right(self._begins, node._sequence_nr()) - 1
                if self._streams[max(at, 0)] == 0:
                    return str(node.name())
        return ""

    @staticmethod
    def error(node: str) -> RuntimeError:
        """What is raised for that node: torch's own words, or CUDA's where torch does not look."""
        return words.error(words.IMPLICIT) if override_stale_stream is None else words.stale_stream(node)


def _behind(outputs: Iterable[Any]) -> Iterator[Any]:
    seen: set[Any] = set()
    waiting = [one.grad_fn for one in outputs if isinstance(one, torch.Tensor) and one.grad_fn is not None]
    while waiting and len(seen) < _MOST:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        waiting += [following for following, _ in node.next_functions if following is not None]

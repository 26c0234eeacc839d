"""What memory costs that is of no use: graphs without a backward pass, copies of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gapless.memory.early import freed_early
from gapless.memory.fits import fits
from gapless.memory.trials import Where
from gapless.model.memory import ALLOC, DEFER, FREE, MemoryRun, UnusedGraph
from gapless.model.memory_report import GraphCost, LoadedCopy

_REPLAYED = 50_000
"""Rows up to which a run is replayed without each of them."""
_MOST = 5


def unused_graphs(run: MemoryRun, where: Where) -> tuple[GraphCost, ...]:
    """What each graph costs, the most bytes first."""
    if not run.unused_graphs:
        return ()
    made = {ident: at for at, ident in enumerate(run.ident) if run.action[at] == ALLOC}
    ended = {
        ident: at
        for at, (action, ident) in enumerate(zip(run.action, run.ident, strict=True))
        if action in (FREE, DEFER)
    }
    found = [_cost(run, graph, made, ended, where) for graph in run.unused_graphs]
    return tuple(sorted(found, key=lambda one: (-one.bytes, one.line.where))[:_MOST])


def _cost(
    run: MemoryRun, graph: UnusedGraph, made: Mapping[int, int], ended: Mapping[int, int], where: Where
) -> GraphCost:
    rows = {made[ident]: ident for ident in graph.idents if ident in made}
    last = {row: ended.get(ident, len(run)) for row, ident in rows.items()}
    early = {row: max(run.used[row], row + 1) for row in rows if run.used and run.used[row] >= 0}
    early = {row: free for row, free in early.items() if free < last[row]}
    held = _most(run, last)
    without = _most(run, {**last, **early})
    needs = -1
    if early and len(run) <= _REPLAYED:
        needs = fits(freed_early(run, early), where).needs
    return GraphCost(line=graph.line, training=graph.training, bytes=held, without=without, needs=needs)


def checkpoints(run: MemoryRun, where: Where) -> tuple[LoadedCopy, ...]:
    """What loaded checkpoints on the GPU cost, with the bytes that are still there when steps run."""
    found = []
    made = {ident: at for at, ident in enumerate(run.ident) if run.action[at] == ALLOC}
    for one in run.checkpoints:
        rows = [made[ident] for ident in one.idents if ident in made]
        early = {row: max(run.used[row], row) + 1 if run.used else row + 1 for row in rows}
        needs = fits(freed_early(run, early), where).needs if rows and len(run) <= _REPLAYED else -1
        found.append(
            LoadedCopy(
                line=one.line,
                name=one.name,
                bytes=sum(run.size[row] for row in rows),
                entries=one.entries,
                needs=needs,
            )
        )
    return tuple(found)


def _most(run: MemoryRun, until: Mapping[int, int]) -> int:
    """The most bytes that allocations hold at once, from their rows until those rows."""
    change = np.zeros(len(run) + 1, np.int64)
    for row, end in until.items():
        change[row] += run.size[row]
        change[end] -= run.size[row]
    return int(np.cumsum(change).max(initial=0))

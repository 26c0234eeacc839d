"""Compute the cost of useless memory: graphs without a backward pass, copies of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gapless.memory.early import free_earlier
from gapless.memory.fits import fits
from gapless.memory.trials import TrialConditions
from gapless.model.memory import ALLOC, DEFER, FREE, MemoryRun, UnusedGraph
from gapless.model.memory_report import GraphCost, LoadedCopy

_MAX_ROWS_TO_REPLAY = 50_000
"""Longer runs are not replayed for each graph or copy."""
_MAX_ROWS = 5
"""Rows of a report; cheaper ones are cut off."""


def price_unused_graphs(run: MemoryRun, where: TrialConditions) -> tuple[GraphCost, ...]:
    """Return the cost of each graph, the most bytes first."""
    if not run.unused_graphs:
        return ()
    start_rows = {ident: at for at, ident in enumerate(run.ident) if run.action[at] == ALLOC}
    end_rows = {
        ident: at
        for at, (action, ident) in enumerate(zip(run.action, run.ident, strict=True))
        if action in (FREE, DEFER)
    }
    costs = [_cost(run, graph, start_rows, end_rows, where) for graph in run.unused_graphs]
    return tuple(sorted(costs, key=lambda cost: (-cost.bytes, cost.line.where))[:_MAX_ROWS])


def _cost(
    run: MemoryRun,
    graph: UnusedGraph,
    start_rows: Mapping[int, int],
    end_rows: Mapping[int, int],
    where: TrialConditions,
) -> GraphCost:
    rows = {start_rows[ident]: ident for ident in graph.idents if ident in start_rows}
    last = {row: end_rows.get(ident, len(run)) for row, ident in rows.items()}
    early = {row: max(run.used[row], row + 1) for row in rows if run.used and run.used[row] >= 0}
    early = {row: free for row, free in early.items() if free < last[row]}
    held = _peak_bytes(run, last)
    without = _peak_bytes(run, {**last, **early})
    needs = -1
    if early and len(run) <= _MAX_ROWS_TO_REPLAY:
        needs = fits(free_earlier(run, early), where).needs
    return GraphCost(line=graph.line, training=graph.training, bytes=held, without=without, needs=needs)


def price_checkpoints(run: MemoryRun, where: TrialConditions) -> tuple[LoadedCopy, ...]:
    """Return the cost of checkpoints loaded onto the GPU; all of their bytes that are still in use."""
    copies = []
    start_rows = {ident: at for at, ident in enumerate(run.ident) if run.action[at] == ALLOC}
    for checkpoint in run.checkpoints:
        rows = [start_rows[ident] for ident in checkpoint.idents if ident in start_rows]
        early = {row: max(run.used[row], row) + 1 if run.used else row + 1 for row in rows}
        needs = (
            fits(free_earlier(run, early), where).needs if rows and len(run) <= _MAX_ROWS_TO_REPLAY else -1
        )
        copies.append(
            LoadedCopy(
                line=checkpoint.line,
                name=checkpoint.name,
                bytes=sum(run.size[row] for row in rows),
                entries=checkpoint.entries,
                needs=needs,
            )
        )
    return tuple(copies)


def _peak_bytes(run: MemoryRun, until: Mapping[int, int]) -> int:
    """Return the most bytes that allocations hold at once; `until` maps their start rows to end rows."""
    change = np.zeros(len(run) + 1, np.int64)
    for row, end in until.items():
        change[row] += run.size[row]
        change[end] -= run.size[row]
    return int(np.cumsum(change).max(initial=0))

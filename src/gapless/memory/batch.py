"""The largest batch that fits, from recordings of one training with different sizes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from gapless.errors import UsageError
from gapless.memory.simulate import simulate
from gapless.memory.trials import Where
from gapless.model.memory import STEP, MemoryRun
from gapless.model.memory_report import LargestBatch, Outcome

_CLOSE = 0.01
"""Relative error of an allocation's size from which it follows no straight line."""
_SMALL = 1024
_MOST = 1 << 20


def largest_batch(runs: Sequence[MemoryRun], where: Where) -> LargestBatch:
    """What of the first of `runs` fits; the others are the same training with other batches.

    Raises:
        UsageError: the runs are not of one training, or their sizes follow no straight line.
    """
    sizes = [batch_size(run) for run in runs]
    if len(set(sizes)) < 2:
        raise UsageError(f"all runs have batches of {sizes[0]}: record one with another batch size")
    steps = min(run.action.count(STEP) for run in runs)
    cut = [_until(run, steps) for run in runs]
    if len({(run.action, run.ident, run.stream) for run in cut}) > 1:
        raise UsageError(
            "the runs do not request the same things in the same order: are they the same training?"
        )
    scaled = _law(cut, sizes)

    def outcome(batch: int) -> Outcome:
        return simulate(scaled(batch), **where._asdict())

    fits = _search(lambda batch: outcome(batch).shortage is None, max(sizes))
    calm = _search(lambda batch: not (made := outcome(batch)).retries and made.shortage is None, max(sizes))
    return LargestBatch(
        batch=fits,
        without_retries=calm,
        outcome=outcome(calm or fits or 1),
        recorded=tuple(sorted(set(sizes))),
    )


def batch_size(run: MemoryRun) -> int:
    """The first size of the batches of `run`.

    Raises:
        UsageError: it is not known, or changes from step to step.
    """
    ends = [at for at, action in enumerate(run.action) if action == STEP]
    inside = [shape for at, shape in run.batches if shape and ends and at < ends[-1]]
    found = Counter(shape[0] for shape in inside if len(shape) > 1 or len(inside) == len(run.batches))
    if not found:
        raise UsageError(f"{run.path or 'the run'} does not record its batch size: record it with gapless "
                         "check --memory")  # fmt: skip
    size, often = found.most_common(1)[0]
    if often < sum(found.values()):
        raise UsageError(f"{run.path or 'the run'} has batches of {len(found)} sizes")
    return size


def _until(run: MemoryRun, steps: int) -> MemoryRun:
    """The first `steps` steps."""
    ends = [at for at, action in enumerate(run.action) if action == STEP]
    stop = ends[steps - 1] + 1 if steps else len(run)
    return msgspec.structs.replace(
        run,
        action=run.action[:stop],
        ident=run.ident[:stop],
        size=run.size[:stop],
        stream=run.stream[:stop],
        place=run.place[:stop],
        time=(),
        address=(),
        pool=run.pool[:stop],
        recorded=None,
    )


def _law(runs: Sequence[MemoryRun], batches: Sequence[int]) -> Callable[[int], MemoryRun]:
    """The run for any batch: each allocation's size is a straight line of it."""
    seen = np.array([run.size for run in runs], np.float64)
    x = np.stack([np.ones(len(batches)), np.array(batches, np.float64)], axis=1)
    terms, *_ = np.linalg.lstsq(x, seen, rcond=None)
    off = np.abs(x @ terms - seen) > np.maximum(_CLOSE * seen, np.minimum(seen, _SMALL))
    if off.any():
        share = (seen * off).sum() / seen.sum()
        raise UsageError(f"the sizes of {100 * share:.0f} % of the bytes do not scale with the batch size")
    alive = seen[0] > 0

    def scaled(batch: int) -> MemoryRun:
        sizes = np.where(alive, np.maximum(np.rint(terms[0] + terms[1] * batch), 1), 0)
        return msgspec.structs.replace(runs[0], size=tuple(sizes.astype(np.int64).tolist()))

    return scaled


def _search(good: Callable[[int], bool], start: int) -> int:
    """The largest batch that is `good`, which smaller ones are as well; 0 where none is."""
    low, high = 0, start
    while high < _MOST and good(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if good(middle):
            low = middle
        else:
            high = middle
    return low

"""Find the largest batch that fits from recordings with different batch sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from gapless.errors import UsageError
from gapless.memory.simulate import simulate
from gapless.memory.trials import TrialConditions
from gapless.model.memory import STEP, MemoryRun
from gapless.model.memory_report import LargestBatch, Outcome

_MAX_RELATIVE_ERROR = 0.01
"""An allocation whose size is further off does not depend linearly on the batch size."""
_MAX_ERROR_BYTES = 1024
"""Error always allowed: small sizes are rounded."""
_MAX_BATCH = 1 << 20
"""Where the search ends: no training has batches of a million."""


def largest_batch(runs: Sequence[MemoryRun], where: TrialConditions) -> LargestBatch:
    """Return the largest batch with which the first of `runs` fits; the others differ in batch size only.

    Raises:
        UsageError: the runs are not of one training, or their sizes are not linear in the batch size.
    """
    sizes = [batch_size(run) for run in runs]
    if len(set(sizes)) < 2:
        raise UsageError(f"all runs have batches of {sizes[0]}: record one with another batch size")
    steps = min(run.action.count(STEP) for run in runs)
    cut = [_first_steps(run, steps) for run in runs]
    if len({(run.action, run.ident, run.stream) for run in cut}) > 1:
        raise UsageError(
            "the runs do not request the same things in the same order: are they the same training?"
        )
    scaled = _fit_sizes(cut, sizes)

    def outcome(batch: int) -> Outcome:
        return simulate(scaled(batch), **where._asdict())

    fits = _largest_fitting(lambda batch: outcome(batch).shortage is None, max(sizes))
    calm = _largest_fitting(
        lambda batch: not (result := outcome(batch)).retries and result.shortage is None, max(sizes)
    )
    return LargestBatch(
        batch=fits,
        without_retries=calm,
        outcome=outcome(calm or fits or 1),
        recorded=tuple(sorted(set(sizes))),
    )


def batch_size(run: MemoryRun) -> int:
    """Return the size of the batches of `run`: the first dimension of their shapes.

    Raises:
        UsageError: it is unknown, or changes from step to step.
    """
    ends = [at for at, action in enumerate(run.action) if action == STEP]
    inside = [shape for at, shape in run.batches if shape and ends and at < ends[-1]]
    counts = Counter(shape[0] for shape in inside if len(shape) > 1 or len(inside) == len(run.batches))
    if not counts:
        raise UsageError(f"{run.path or 'the run'} does not record its batch size: record it with gapless "
                         "check --memory")  # fmt: skip
    size, often = counts.most_common(1)[0]
    if often < sum(counts.values()):
        raise UsageError(f"{run.path or 'the run'} has batches of {len(counts)} sizes")
    return size


def _first_steps(run: MemoryRun, steps: int) -> MemoryRun:
    """Return the first `steps` steps of `run`, without times, addresses and recorded totals."""
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


def _fit_sizes(runs: Sequence[MemoryRun], batches: Sequence[int]) -> Callable[[int], MemoryRun]:
    """Return a function from batch size to run: each allocation's size is linear in the batch size."""
    recorded_sizes = np.array([run.size for run in runs], np.float64)
    x = np.stack([np.ones(len(batches)), np.array(batches, np.float64)], axis=1)
    terms, *_ = np.linalg.lstsq(x, recorded_sizes, rcond=None)
    off = np.abs(x @ terms - recorded_sizes) > np.maximum(
        _MAX_RELATIVE_ERROR * recorded_sizes, np.minimum(recorded_sizes, _MAX_ERROR_BYTES)
    )
    if off.any():
        share = (recorded_sizes * off).sum() / recorded_sizes.sum()
        raise UsageError(f"the sizes of {100 * share:.0f} % of the bytes do not scale with the batch size")
    alive = recorded_sizes[0] > 0

    def predict_run(batch: int) -> MemoryRun:
        predicted = np.where(alive, np.maximum(np.rint(terms[0] + terms[1] * batch), 1), 0)
        return msgspec.structs.replace(runs[0], size=tuple(predicted.astype(np.int64).tolist()))

    return predict_run


def _largest_fitting(does_fit: Callable[[int], bool], start: int) -> int:
    """Return the largest batch that fits, assuming all smaller ones do; 0 if none does."""
    low, high = 0, start
    while high < _MAX_BATCH and does_fit(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if does_fit(middle):
            low = middle
        else:
            high = middle
    return low

"""Predict what a run would need if one of its batches were as long as the longest known item."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gapless.memory.fits import Fits, fits
from gapless.memory.lengths import LengthLaw, NoLengthLaw, fit_lengths, with_lengths
from gapless.memory.trials import TrialConditions
from gapless.model.memory import MemoryRun
from gapless.model.memory_report import LongestBatch

_MAX_REPLAY_ERROR = 0.02
"""Largest relative error of the run rebuilt from its own lengths for predictions to be made."""


def longest_batch(run: MemoryRun, length: int, where: TrialConditions | None = None) -> LongestBatch | None:
    """Return what `run` needs if its last batch has `length`; None if the recorded batches are as long.

    If the lengths do not determine the sizes, the answer says why not; None if batches have no lengths.
    """
    where = where or TrialConditions()
    try:
        fitted = fit_lengths(run)
    except NoLengthLaw as error:
        return LongestBatch(length=length, why_not=str(error)) if _has_varying_lengths(run) else None
    longest_recorded = max(fitted.lengths)
    common: dict[str, Any] = {"length": length, "seen": longest_recorded, "batches": len(fitted.lengths)}
    if length <= longest_recorded:
        return None
    own, again = fits(run, where), fits(with_lengths(fitted, fitted.lengths), where)
    if abs(again.needs - own.needs) > _MAX_REPLAY_ERROR * own.needs:
        return LongestBatch(**common, why_not="its memory does not follow from the lengths of its batches")
    result = _fit_with_last_length(fitted, length, where)
    numbers: dict[str, Any] = {"needs": result.needs, "has": result.has, "fits": result.fits}
    if result.fits:
        return LongestBatch(**common, **numbers, most=length, cut=result.needs)
    most = _largest_fitting(
        lambda candidate: _fit_with_last_length(fitted, candidate, where).fits, longest_recorded, length
    )
    return LongestBatch(**common, **numbers, most=most, cut=_fit_with_last_length(fitted, most, where).needs)


def _has_varying_lengths(run: MemoryRun) -> bool:
    """Whether the batches of the run have several lengths."""
    return len({shape[1:] for _, shape in run.batches if len(shape) > 1}) > 1


def _fit_with_last_length(fitted: LengthLaw, length: int, where: TrialConditions) -> Fits:
    return fits(with_lengths(fitted, [*fitted.lengths[:-1], length]), where)


def _largest_fitting(does_fit: Callable[[int], bool], low: int, high: int) -> int:
    """Return about the largest number from `low` (which fits) to `high` (which does not) that fits."""
    while high - low > max(1, low // 64):
        middle = (low + high) // 2
        if does_fit(middle):
            low = middle
        else:
            high = middle
    return low

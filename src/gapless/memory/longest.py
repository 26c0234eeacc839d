"""The longest batch that is known of: what the run would need if one of its batches were that long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gapless.memory.fits import Fits, fits
from gapless.memory.lengths import Law, Refused, law, with_lengths
from gapless.memory.trials import Where
from gapless.model.memory import MemoryRun
from gapless.model.memory_report import LongestBatch

_FAITHFUL = 0.02
"""How far the run that the law makes for the recorded lengths may be from the recorded one."""


def longest_batch(run: MemoryRun, length: int, where: Where | None = None) -> LongestBatch | None:
    """What `run` needs if its last batch is `length` long; None where its own are, or have no length.

    Sizes follow from lengths by the law of the recorded steps. Where that is refused, the answer says why.
    """
    where = where or Where()
    try:
        found = law(run)
    except Refused as why:
        return LongestBatch(length=length, why_not=str(why)) if _vary(run) else None
    seen = max(found.lengths)
    known: dict[str, Any] = {"length": length, "seen": seen, "batches": len(found.lengths)}
    if length <= seen:
        return None
    own, again = fits(run, where), fits(with_lengths(found, found.lengths), where)
    if abs(again.needs - own.needs) > _FAITHFUL * own.needs:
        return LongestBatch(**known, why_not="its memory does not follow from the lengths of its batches")
    made = _with(found, length, where)
    told: dict[str, Any] = {"needs": made.needs, "has": made.has, "fits": made.fits}
    if made.fits:
        return LongestBatch(**known, **told, most=length, cut=made.needs)
    most = _most(lambda one: _with(found, one, where).fits, seen, length)
    return LongestBatch(**known, **told, most=most, cut=_with(found, most, where).needs)


def _vary(run: MemoryRun) -> bool:
    """Whether batches of one run have several lengths."""
    return len({shape[1:] for _, shape in run.batches if len(shape) > 1}) > 1


def _with(found: Law, length: int, where: Where) -> Fits:
    return fits(with_lengths(found, [*found.lengths[:-1], length]), where)


def _most(good: Callable[[int], bool], low: int, high: int) -> int:
    """The largest number from `low` on that is good, where `high` is not; `low` is taken to be."""
    while high - low > max(1, low // 64):
        middle = (low + high) // 2
        if good(middle):
            low = middle
        else:
            high = middle
    return low

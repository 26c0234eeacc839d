"""Try remedies outside the allocator on the recorded run: other batch lengths and orders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from gapless.memory.lengths import LengthLaw, NoLengthLaw, fit_lengths, with_lengths
from gapless.memory.simulate import simulate
from gapless.memory.trials import EXPANDABLE, TrialConditions, improves
from gapless.model.memory import MemoryRun
from gapless.model.memory_report import Outcome, Remedy, Trial
from gapless.model.wording import percent

_MAX_REPLAY_ERROR = 0.02
"""Largest relative error of the run rebuilt from its own lengths for remedies to be tried."""
_MIN_EXTRA_SAVING = 0.05
"""Share of the peak that longer batches must save beyond remedies that cost nothing."""
_PADDING_MULTIPLES = (32, 64, 128, 256)
"""Multiples of 32 suit tensor cores; above 256 padding costs more than it saves."""
_BUCKET_COUNTS = (4, 8)
"""Numbers of lengths to pad to."""
_MAX_COMBINATIONS = 3
"""The best remedies that are also tried with expandable segments."""

LengthChange = Callable[[Sequence[int]], list[int]]


def try_remedies(run: MemoryRun, where: TrialConditions, baseline: Outcome) -> tuple[tuple[Remedy, ...], str]:
    """Try all remedies; return them best first, and a note why none or not all could be tried."""
    try:
        fitted = fit_lengths(run)
    except NoLengthLaw as error:
        return (), f"padding and order of batches were not tried: {error}"
    again = simulate(with_lengths(fitted, fitted.lengths), **where._asdict())
    off = abs(again.peak_reserved - baseline.peak_reserved) / max(baseline.peak_reserved, 1)
    if off > _MAX_REPLAY_ERROR or (again.shortage is None) != (baseline.shortage is None):
        why_not = f"replaying the run from its own lengths gives {percent(off)} more or less reserved memory"
        return (), f"padding and order of batches were not tried: {why_not}"
    changes_by_name = length_changes(fitted.lengths)
    tried = [_attempt(fitted, name, change, where) for name, change in changes_by_name.items()]
    if "expandable_segments" not in run.settings:
        best = sorted(tried, key=lambda remedy: _weight(remedy, baseline))[:_MAX_COMBINATIONS]
        tried += [
            _attempt(fitted, remedy.name, changes_by_name[remedy.name], where, EXPANDABLE) for remedy in best
        ]
    note = f"{fitted.odd} of its steps are assumed to be like the others for this" if fitted.odd else ""
    return tuple(sorted(tried, key=lambda remedy: _weight(remedy, baseline))), note


def length_changes(lengths: Sequence[int]) -> dict[str, LengthChange]:
    """Return the changes of lengths to try, by name; without those that change nothing."""
    candidates: dict[str, LengthChange] = {"longest batch first": longest_first}
    for multiple in _PADDING_MULTIPLES:
        candidates[f"pad to multiples of {multiple}"] = partial(_to_multiples, multiple)
    candidates["pad to powers of two"] = lambda old: [1 << max(length - 1, 0).bit_length() for length in old]
    for number in _BUCKET_COUNTS:
        to = bucket_edges(lengths, number)
        candidates[f"pad to {len(to)} lengths: {', '.join(map(str, to))}"] = partial(pad_to_edges, to)
    candidates["pad to the longest"] = lambda old: [max(old)] * len(old)
    tried = {tuple(lengths)}
    kept = {}
    for name, change in candidates.items():
        new = tuple(change(lengths))
        if new not in tried:
            tried.add(new)
            kept[name] = change
    return kept


def longest_first(lengths: Sequence[int]) -> list[int]:
    """Swap the longest batch with the first."""
    new = list(lengths)
    at = new.index(max(new))
    new[0], new[at] = new[at], new[0]
    return new


def bucket_edges(lengths: Sequence[int], number: int) -> list[int]:
    """Return `number` or fewer lengths to pad to, each for about as many batches."""
    ordered = sorted(lengths)
    return sorted({ordered[-(-len(ordered) * part // number) - 1] for part in range(1, number + 1)})


def _to_multiples(of: int, lengths: Sequence[int]) -> list[int]:
    return [-(-length // of) * of for length in lengths]


def pad_to_edges(to: Sequence[int], lengths: Sequence[int]) -> list[int]:
    """Return each of `lengths` rounded up to the next of `to`, which is sorted."""
    return [next(edge for edge in to if edge >= length) for length in lengths]


def _attempt(
    fitted: LengthLaw, name: str, change: LengthChange, where: TrialConditions, settings: str = ""
) -> Remedy:
    new = change(fitted.lengths)
    run = with_lengths(fitted, new)
    tokens = sum(new) / sum(fitted.lengths) - 1
    outcome = simulate(run, settings or None, **where._asdict())
    return Remedy(name=name, settings=settings, tokens=tokens, outcome=outcome)


def _weight(remedy: Remedy, baseline: Outcome) -> tuple[float, ...]:
    outcome = remedy.outcome
    assert outcome is not None
    if outcome.shortage is not None:
        return 1, -outcome.done, remedy.tokens
    grain = max(0.01 * baseline.peak_reserved, 1)
    return 0, outcome.failures, outcome.retries, round(outcome.peak_reserved / grain), remedy.tokens


def choose_remedy(tried: Sequence[Remedy], best: Trial | None, baseline: Outcome) -> int:
    """Return the index of a remedy that beats the `best` settings and the run itself; -1 if none does.

    Longer batches cost time in each step: they must save more than remedies that cost nothing.
    """
    free = best.outcome if best is not None and best.outcome is not None else baseline
    for at, remedy in enumerate(tried):
        outcome = remedy.outcome
        if outcome is None or not improves(outcome, baseline):
            continue
        if best is None and remedy.tokens <= 0:
            return at
        if free.shortage is not None:
            return at
        trouble, before = (outcome.failures, outcome.retries), (free.failures, free.retries)
        if trouble < before:
            return at
        if trouble == before and outcome.peak_reserved <= (1 - _MIN_EXTRA_SAVING) * free.peak_reserved:
            return at
    return -1

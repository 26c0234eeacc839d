"""Remedies outside the allocator: other lengths of the batches, each tried on the recorded run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from gapless.memory.lengths import Law, Refused, law, with_lengths
from gapless.memory.simulate import simulate
from gapless.memory.trials import EXPANDABLE, Where, improves
from gapless.model.memory import MemoryRun
from gapless.model.memory_report import Outcome, Remedy, Trial
from gapless.model.wording import percent

_FAITHFUL = 0.02
"""How far the run that the law makes for the recorded lengths may be from the recorded one."""
_WORTH = 0.05
"""The part of the peak that longer batches must save beyond what costs nothing."""
_MULTIPLES = (32, 64, 128, 256)
_BUCKETS = (4, 8)
_TOGETHER = 3
"""So many of the best are tried with expandable segments as well."""

Change = Callable[[Sequence[int]], list[int]]


def remedies(run: MemoryRun, where: Where, baseline: Outcome) -> tuple[tuple[Remedy, ...], str]:
    """All remedies, the best first, and why there are none."""
    try:
        found = law(run)
    except Refused as why:
        return (), f"padding and order of batches were not tried: {why}"
    again = simulate(with_lengths(found, found.lengths), **where._asdict())
    off = abs(again.peak_reserved - baseline.peak_reserved) / max(baseline.peak_reserved, 1)
    if off > _FAITHFUL or (again.shortage is None) != (baseline.shortage is None):
        why_not = f"replaying the run from its own lengths gives {percent(off)} more or less reserved memory"
        return (), f"padding and order of batches were not tried: {why_not}"
    named = changes(found.lengths)
    tried = [_attempt(found, name, change, where) for name, change in named.items()]
    if "expandable_segments" not in run.settings:
        best = sorted(tried, key=lambda one: _weight(one, baseline))[:_TOGETHER]
        tried += [_attempt(found, one.name, named[one.name], where, EXPANDABLE) for one in best]
    note = f"{found.odd} of its steps are assumed to be like the others for this" if found.odd else ""
    return tuple(sorted(tried, key=lambda one: _weight(one, baseline))), note


def changes(lengths: Sequence[int]) -> dict[str, Change]:
    """What is tried, by name; what would change nothing is left out."""
    made: dict[str, Change] = {"longest batch first": longest_first}
    for multiple in _MULTIPLES:
        made[f"pad to multiples of {multiple}"] = partial(_to_multiples, multiple)
    made["pad to powers of two"] = lambda old: [1 << max(one - 1, 0).bit_length() for one in old]
    for number in _BUCKETS:
        to = edges(lengths, number)
        made[f"pad to {len(to)} lengths: {', '.join(map(str, to))}"] = partial(padded, to)
    made["pad to the longest"] = lambda old: [max(old)] * len(old)
    seen = {tuple(lengths)}
    kept = {}
    for name, change in made.items():
        new = tuple(change(lengths))
        if new not in seen:
            seen.add(new)
            kept[name] = change
    return kept


def longest_first(lengths: Sequence[int]) -> list[int]:
    """The longest batch takes the first one's place, and that its own."""
    new = list(lengths)
    at = new.index(max(new))
    new[0], new[at] = new[at], new[0]
    return new


def edges(lengths: Sequence[int], number: int) -> list[int]:
    """So many lengths to pad to, each for as many of the batches."""
    ordered = sorted(lengths)
    return sorted({ordered[-(-len(ordered) * part // number) - 1] for part in range(1, number + 1)})


def _to_multiples(of: int, lengths: Sequence[int]) -> list[int]:
    return [-(-one // of) * of for one in lengths]


def padded(to: Sequence[int], lengths: Sequence[int]) -> list[int]:
    """Each of `lengths` as the next of `to`, which are in order."""
    return [next(edge for edge in to if edge >= one) for one in lengths]


def _attempt(found: Law, name: str, change: Change, where: Where, settings: str = "") -> Remedy:
    new = change(found.lengths)
    run = with_lengths(found, new)
    tokens = sum(new) / sum(found.lengths) - 1
    outcome = simulate(run, settings or None, **where._asdict())
    return Remedy(name=name, settings=settings, tokens=tokens, outcome=outcome)


def _weight(one: Remedy, baseline: Outcome) -> tuple[float, ...]:
    outcome = one.outcome
    assert outcome is not None
    if outcome.shortage is not None:
        return 1, -outcome.done, one.tokens
    grain = max(0.01 * baseline.peak_reserved, 1)
    return 0, outcome.failures, outcome.retries, round(outcome.peak_reserved / grain), one.tokens


def winner(tried: Sequence[Remedy], best: Trial | None, baseline: Outcome) -> int:
    """The remedy that is better than the `best` settings and than nothing; -1 where none is.

    Longer batches cost time in every step: they must save more than what costs nothing.
    """
    free = best.outcome if best is not None and best.outcome is not None else baseline
    for at, one in enumerate(tried):
        outcome = one.outcome
        if outcome is None or not improves(outcome, baseline):
            continue
        if best is None and one.tokens <= 0:
            return at
        if free.shortage is not None:
            return at
        trouble, before = (outcome.failures, outcome.retries), (free.failures, free.retries)
        if trouble < before:
            return at
        if trouble == before and outcome.peak_reserved <= (1 - _WORTH) * free.peak_reserved:
            return at
    return -1

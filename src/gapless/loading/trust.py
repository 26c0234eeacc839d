"""Whether a prediction may be told: who else used the cores, whether runs bore it out, and if not, why."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import msgspec

from gapless.loading import predict
from gapless.model.loading import Diagnosis, Doubt, Fetch, Machine, Seen
from gapless.model.wording import count, duration, number, percent, size

REFUTED = 1.25
"""A factor by which a run differs from its prediction so that no number is headlined."""
FEW = 6
"""Steps of a run that say nothing yet."""
BUSY = 0.25
"""Part of the cores that others may use while something is measured."""
_STARVED = 0.8
"""Part of the time in which items could be made that they must have had a core."""
_ALONE = 0.98
"""The same, as nobody else were there."""
_NOBODY = 0.03
"""Cores that others use so little of that there is nobody."""
_STOLEN = 0.1
_MORE, _LESS = 1.15, 0.85
"""Factors by which what a batch takes in a run differs from what it took alone."""
_WAITS = 1.25
_OF_A_BATCH = 0.1
_READ = 100_000
_FAULTS = 500


def calibrated(at: Machine, fetch: Fetch) -> Machine:
    """`at` with as many others as leave to one process the part of a core that it really got.

    Programs of little importance are there and take nothing away; others take more than an equal part.
    Where a control group sets a limit, the delay is its own.
    """
    had = fetch.had
    if (0 <= at.quota < at.allowed) or not fetch.item_cpu:
        return at
    if had >= _ALONE:  # whoever was there left it a core; those of before may have gone
        others = fetch.others if fetch.others >= 0 else at.others
        others = round(min(others, at.allowed - 1.0), 2)
        return msgspec.structs.replace(at, others=others if others > _NOBODY else 0.0)
    return msgspec.structs.replace(at, others=round(max(at.allowed / had - 1.0, 0.0), 2))


def concluded(of: Diagnosis) -> Diagnosis:
    """`of` with what follows from its runs: what is advised in the end, and whether that can be told."""
    of = msgspec.structs.replace(of, doubt=doubt(of))
    now, advised = of.now, of.advised
    if now is None or advised is None:
        return of
    if of.doubt is None and of.seen is not None and of.seen_advised is not None:
        gains = of.seen_advised.step < (1 - predict.WITHIN) * of.seen.step
        if not gains and now.setting.workers < advised.setting.workers:
            of = msgspec.structs.replace(of, advised=now, seen_advised=of.seen)
    return msgspec.structs.replace(of, recommended=of.advised.setting.arguments if _told(of) else {})  # type: ignore[union-attr]


def _told(of: Diagnosis) -> bool:
    """Whether a setting is advised at all: in doubt only where it was faster when both were run."""
    if of.doubt is None:
        return True
    return of.doubt.kind == "refuted" and faster(of)


def faster(of: Diagnosis) -> bool:
    """Whether the setting advised was clearly faster than the loader's own, both of them run."""
    seen, advised = of.seen, of.seen_advised
    return seen is not None and advised is not None and 0 < REFUTED * advised.step < seen.step


def doubt(of: Diagnosis) -> Doubt | None:
    """Why no number of `of` is to be headlined; None where nothing speaks against it."""
    if of.interrupted and of.seen_advised is None:
        return Doubt(kind="interrupted")
    return _busy(of) or _refuted(of)


def _busy(of: Diagnosis) -> Doubt | None:
    """Others have cores that the loader would need."""
    at = of.machine
    limited = 0 <= at.quota < at.allowed
    runs = [one for one in (of.seen, of.seen_advised) if one is not None]
    looks = [of.fetch.others, *(one.others for one in runs)]
    told = [one for one in looks if one >= 0] or [at.others]
    others = min(max(told), at.allowed)
    if max(told) >= BUSY * at.allowed and _needed(of) + others > at.allowed:
        if at.others >= BUSY * at.allowed:  # they had all they wanted while nothing was measured
            others = min(max(others, at.others), at.allowed)
        return Doubt(kind="busy", others=round(others, 1))
    if of.fetch.had < _STARVED and not limited:
        had = f"it had a core for only {percent(of.fetch.had)} of the time in which it could compute"
        return Doubt(kind="busy", others=round(others, 1), reasons=(had,))
    return None


def _needed(of: Diagnosis) -> float:
    """Cores that the loop would keep busy, as it is or as it would be advised, if nobody else were there."""
    alone = msgspec.structs.replace(of.machine, others=0.0)
    free = dataclasses.replace(predict.measured(of, of.demand), machine=alone, pins=False)
    now, advised = of.now, of.advised
    if of.machine.others or of.transfer.pin >= 0 or now is None or advised is None:
        _, advised = predict.choose(free, predict.predict_all(free))
        now = predict.predict(free, of.setting)
    each = free.each * (of.fetch.cpu + of.transfer.send + of.transfer.receive + free.own.step * free.own.busy)
    return max(each / one.step for one in (now, advised) if one.step > 0)


def _refuted(of: Diagnosis) -> Doubt | None:
    """A run took another time than was predicted for it."""
    for seen in (of.seen_advised, of.seen):
        if seen is not None and off(seen) > REFUTED:
            why = tuple(reasons(of, seen))
            return Doubt(kind="refuted", reasons=why)
    return None


def off(seen: Seen) -> float:
    """The factor between what was predicted and what was measured, 1 or more; 1 where nothing can be told."""
    if seen.predicted <= 0 or seen.step <= 0 or seen.batches < FEW:
        return 1.0
    return max(seen.predicted / seen.step, seen.step / seen.predicted)


def reasons(of: Diagnosis, seen: Seen) -> Iterator[str]:
    """What was measured that explains why a run took another time than predicted."""
    found = [*_of_machine(of, seen), *_of_batches(of.fetch, seen)]
    if seen.again > 0 and max(seen.again / seen.step, seen.step / seen.again) > REFUTED:
        found.append(f"two runs of it took {duration(seen.step)} and {duration(seen.again)} per step")
    yield from found
    if not found:
        known = (
            "the batches took the same time as when measured alone"
            if seen.made
            else "the time for its batches is not known"
        )
        yield f"no reason was found: {known}, and the cores were available"


def _of_machine(of: Diagnosis, seen: Seen) -> Iterator[str]:
    at = of.machine
    before = of.fetch.others if of.fetch.others >= 0 else at.others
    if seen.others >= 0 and abs(seen.others - before) >= BUSY:
        yield (
            f"other programs used {number(round(seen.others, 1))} of {count(at.allowed, 'core')} during "
            f"the run, and {number(round(before, 1))} during the prediction"
        )
    elif of.fetch.had < _STARVED <= seen.had:
        yield f"its items had a core for {percent(of.fetch.had)} of the time during the prediction"
    if seen.stolen >= _STOLEN:
        yield (
            f"the hypervisor took {number(round(seen.stolen, 1))} of {count(at.allowed, 'core')} for other "
            "machines"
        )
    if 0 <= seen.had < _STARVED and seen.setting.workers + 1 <= at.allowed:
        yield f"its processes had a core for only {percent(seen.had)} of the time in which they could compute"
    if seen.throttled:
        yield f"the processor throttled {count(seen.throttled, 'time')} because of heat"


def _of_batches(fetch: Fetch, seen: Seen) -> Iterator[str]:
    """What batches took in the run, and what when they were made alone."""
    if not seen.made:
        return
    total = fetch.cpu + fetch.wait
    if not _LESS * fetch.cpu <= seen.made_cpu <= _MORE * fetch.cpu and _differ(
        seen.made_cpu, fetch.cpu, total
    ):
        told = (
            f"a batch took {duration(seen.made_cpu)} of CPU time in the run and {duration(fetch.cpu)} alone"
        )
        if seen.faults > 2 * fetch.faults + _FAULTS or fetch.faults > 2 * seen.faults + _FAULTS:
            told += f", touching {seen.faults:,.0f} new memory pages, {fetch.faults:,.0f} alone"
        yield told
    if not fetch.wait / _WAITS <= seen.made_wait <= _WAITS * fetch.wait and _differ(
        seen.made_wait, fetch.wait, total
    ):
        told = f"a batch waited {duration(seen.made_wait)} in the run and {duration(fetch.wait)} alone"
        if seen.setting.workers > 1 and seen.made_wait > fetch.wait and not _read(fetch, seen):
            told += f": {seen.setting.workers} workers wait for the same resource, or for each other"
        yield told
    if _read(fetch, seen):
        yield (
            f"storage delivered {size(int(seen.read))} per batch in the run and {size(int(fetch.read))} "
            "when measured alone: the rest was in the page cache"
        )


def _differ(one: float, other: float, total: float) -> bool:
    return abs(one - other) >= _OF_A_BATCH * total


def _read(fetch: Fetch, seen: Seen) -> bool:
    """Whether storage delivered much more in one of them than in the other."""
    most, least = max(fetch.read, seen.read), min(fetch.read, seen.read)
    return most - least >= _READ and most > 2 * least

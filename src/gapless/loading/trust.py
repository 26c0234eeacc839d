"""Decide whether a prediction can be trusted: other load on the cores, runs that confirm it, reasons if
not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import msgspec

from gapless.loading import predict
from gapless.model.loading import Diagnosis, Doubt, Fetch, Machine, Seen
from gapless.model.wording import count, duration, number, percent, size

MAX_PREDICTION_FACTOR = 1.25
"""If a run differs from its prediction by more than this factor, no number is headlined."""
MIN_STEPS = 6
"""Shorter runs say nothing yet."""
MAX_OTHER_LOAD = 0.25
"""Share of the cores that other programs may use during a measurement."""
_MIN_CORE_SHARE = 0.8
"""Items must have had a core for this share of the time in which they could compute."""
_ALONE_CORE_SHARE = 0.98
"""Above this share nobody else used the core."""
_NO_LOAD = 0.03
"""Other programs that use fewer cores are ignored."""
_MIN_STOLEN_CORES = 0.1
"""Cores taken by a hypervisor that are mentioned."""
_MAX_CPU_FACTOR, _MIN_CPU_FACTOR = 1.15, 0.85
"""Beyond these factors the processor time of a batch differs between a run and alone."""
_MAX_WAIT_FACTOR = 1.25
"""The same for its waiting time, which varies more."""
_MIN_SHARE_OF_BATCH = 0.1
"""Smaller differences, relative to making a batch, are not mentioned."""
_MIN_READ_BYTES = 100_000
"""Bytes per batch; less from storage is noise."""
_MIN_FAULTS = 500
"""Memory pages per batch; fewer are noise."""


def calibrate_load(at: Machine, fetch: Fetch) -> Machine:
    """Return `at` with the other load that explains the share of a core one process really got.

    Programs of low priority are present but take nothing away; others take more than an equal share. If a
    control group sets a limit, the delay is due to that.
    """
    had = fetch.had
    if (0 <= at.quota < at.allowed) or not fetch.item_cpu:
        return at
    if had >= _ALONE_CORE_SHARE:  # other programs left it a core; earlier ones may have ended
        other_load = fetch.others if fetch.others >= 0 else at.others
        other_load = round(min(other_load, at.allowed - 1.0), 2)
        return msgspec.structs.replace(at, others=other_load if other_load > _NO_LOAD else 0.0)
    return msgspec.structs.replace(at, others=round(max(at.allowed / had - 1.0, 0.0), 2))


def conclude_runs(diagnosis: Diagnosis) -> Diagnosis:
    """Add what follows from the runs: the setting finally advised, and whether it can be trusted."""
    diagnosis = msgspec.structs.replace(diagnosis, doubt=find_doubt(diagnosis))
    now, advised = diagnosis.now, diagnosis.advised
    if now is None or advised is None:
        return diagnosis
    if diagnosis.doubt is None and diagnosis.seen is not None and diagnosis.seen_advised is not None:
        gains = diagnosis.seen_advised.step < (1 - predict.MAX_SLOWDOWN) * diagnosis.seen.step
        if not gains and now.setting.workers < advised.setting.workers:
            diagnosis = msgspec.structs.replace(diagnosis, advised=now, seen_advised=diagnosis.seen)
    recommended = diagnosis.advised.setting.arguments if diagnosis.advised and _is_advised(diagnosis) else {}
    return msgspec.structs.replace(diagnosis, recommended=recommended)


def _is_advised(diagnosis: Diagnosis) -> bool:
    """Whether a setting is advised: in doubt only if it was faster when both were run."""
    if diagnosis.doubt is None:
        return True
    return diagnosis.doubt.kind == "refuted" and is_faster(diagnosis)


def is_faster(diagnosis: Diagnosis) -> bool:
    """Whether the advised setting was clearly faster than the loader's own when both were run."""
    current_run, advised = diagnosis.seen, diagnosis.seen_advised
    return (
        current_run is not None
        and advised is not None
        and 0 < MAX_PREDICTION_FACTOR * advised.step < current_run.step
    )


def find_doubt(diagnosis: Diagnosis) -> Doubt | None:
    """Return why no number of the diagnosis can be headlined; None if nothing speaks against it."""
    if diagnosis.interrupted and diagnosis.seen_advised is None:
        return Doubt(kind="interrupted")
    return _doubt_if_busy(diagnosis) or _doubt_if_refuted(diagnosis)


def _doubt_if_busy(diagnosis: Diagnosis) -> Doubt | None:
    """Return a doubt if other programs use cores that the loader needs."""
    at = diagnosis.machine
    limited = 0 <= at.quota < at.allowed
    runs = [run for run in (diagnosis.seen, diagnosis.seen_advised) if run is not None]
    looks = [diagnosis.fetch.others, *(run.others for run in runs)]
    measured_loads = [load for load in looks if load >= 0] or [at.others]
    other_load = min(max(measured_loads), at.allowed)
    if (
        max(measured_loads) >= MAX_OTHER_LOAD * at.allowed
        and _needed_cores(diagnosis) + other_load > at.allowed
    ):
        if at.others >= MAX_OTHER_LOAD * at.allowed:  # they used that much while nothing was measured
            other_load = min(max(other_load, at.others), at.allowed)
        return Doubt(kind="busy", others=round(other_load, 1))
    if diagnosis.fetch.had < _MIN_CORE_SHARE and not limited:
        had = f"it had a core for only {percent(diagnosis.fetch.had)} of the time in which it could compute"
        return Doubt(kind="busy", others=round(other_load, 1), reasons=(had,))
    return None


def _needed_cores(diagnosis: Diagnosis) -> float:
    """Return the cores that the loop would keep busy, now or with the advised setting, on an idle machine."""
    alone = msgspec.structs.replace(diagnosis.machine, others=0.0)
    free = dataclasses.replace(predict.saved_costs(diagnosis, diagnosis.demand), machine=alone, pins=False)
    now, advised = diagnosis.now, diagnosis.advised
    if diagnosis.machine.others or diagnosis.transfer.pin >= 0 or now is None or advised is None:
        _, advised = predict.choose(free, predict.predict_all(free))
        now = predict.predict(free, diagnosis.setting)
    each = free.each * (
        diagnosis.fetch.cpu
        + diagnosis.transfer.send
        + diagnosis.transfer.receive
        + free.own.step * free.own.busy
    )
    return max(each / prediction.step for prediction in (now, advised) if prediction.step > 0)


def _doubt_if_refuted(diagnosis: Diagnosis) -> Doubt | None:
    """Return a doubt if a run took another time than was predicted for it."""
    for run in (diagnosis.seen_advised, diagnosis.seen):
        if run is not None and prediction_factor(run) > MAX_PREDICTION_FACTOR:
            run_reasons = tuple(find_reasons(diagnosis, run))
            return Doubt(kind="refuted", reasons=run_reasons)
    return None


def prediction_factor(run: Seen) -> float:
    """Return the factor between predicted and measured step, at least 1; 1 if unknown."""
    if run.predicted <= 0 or run.step <= 0 or run.batches < MIN_STEPS:
        return 1.0
    return max(run.predicted / run.step, run.step / run.predicted)


def find_reasons(diagnosis: Diagnosis, run: Seen) -> Iterator[str]:
    """Yield measured causes for a run that took another time than predicted."""
    causes = [*_machine_reasons(diagnosis, run), *_batch_reasons(diagnosis.fetch, run)]
    if run.again > 0 and max(run.again / run.step, run.step / run.again) > MAX_PREDICTION_FACTOR:
        causes.append(f"two runs of it took {duration(run.step)} and {duration(run.again)} per step")
    yield from causes
    if not causes:
        batch_times = (
            "the batches took the same time as when measured alone"
            if run.made
            else "the time for its batches is not known"
        )
        yield f"no reason was found: {batch_times}, and the cores were available"


def _machine_reasons(diagnosis: Diagnosis, run: Seen) -> Iterator[str]:
    at = diagnosis.machine
    before = diagnosis.fetch.others if diagnosis.fetch.others >= 0 else at.others
    if run.others >= 0 and abs(run.others - before) >= MAX_OTHER_LOAD:
        yield (
            f"other programs used {number(round(run.others, 1))} of {count(at.allowed, 'core')} during "
            f"the run, and {number(round(before, 1))} during the prediction"
        )
    elif diagnosis.fetch.had < _MIN_CORE_SHARE <= run.had:
        yield f"its items had a core for {percent(diagnosis.fetch.had)} of the time during the prediction"
    if run.stolen >= _MIN_STOLEN_CORES:
        yield (
            f"the hypervisor took {number(round(run.stolen, 1))} of {count(at.allowed, 'core')} for other "
            "machines"
        )
    if 0 <= run.had < _MIN_CORE_SHARE and run.setting.workers + 1 <= at.allowed:
        yield f"its processes had a core for only {percent(run.had)} of the time in which they could compute"
    if run.throttled:
        yield f"the processor throttled {count(run.throttled, 'time')} because of heat"


def _batch_reasons(fetch: Fetch, run: Seen) -> Iterator[str]:
    """Yield how batches in the run differed from batches made alone."""
    if not run.made:
        return
    total = fetch.cpu + fetch.wait
    if not _MIN_CPU_FACTOR * fetch.cpu <= run.made_cpu <= _MAX_CPU_FACTOR * fetch.cpu and _differs(
        run.made_cpu, fetch.cpu, total
    ):
        text = f"a batch took {duration(run.made_cpu)} of CPU time in the run and {duration(fetch.cpu)} alone"
        if run.faults > 2 * fetch.faults + _MIN_FAULTS or fetch.faults > 2 * run.faults + _MIN_FAULTS:
            text += f", touching {run.faults:,.0f} new memory pages, {fetch.faults:,.0f} alone"
        yield text
    if not fetch.wait / _MAX_WAIT_FACTOR <= run.made_wait <= _MAX_WAIT_FACTOR * fetch.wait and _differs(
        run.made_wait, fetch.wait, total
    ):
        text = f"a batch waited {duration(run.made_wait)} in the run and {duration(fetch.wait)} alone"
        if run.setting.workers > 1 and run.made_wait > fetch.wait and not _reads_differ(fetch, run):
            text += f": {run.setting.workers} workers wait for the same resource, or for each other"
        yield text
    if _reads_differ(fetch, run):
        yield (
            f"storage delivered {size(int(run.read))} per batch in the run and {size(int(fetch.read))} "
            "when measured alone: the rest was in the page cache"
        )


def _differs(first: float, second: float, total: float) -> bool:
    return abs(first - second) >= _MIN_SHARE_OF_BATCH * total


def _reads_differ(fetch: Fetch, run: Seen) -> bool:
    """Whether storage delivered much more in one of them than in the other."""
    most, least = max(fetch.read, run.read), min(fetch.read, run.read)
    return most - least >= _MIN_READ_BYTES and most > 2 * least

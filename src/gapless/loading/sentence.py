"""What a diagnosis says, in words."""

from __future__ import annotations

from gapless.loading.lines import shown
from gapless.model.loading import Diagnosis, Doubt, Prediction
from gapless.model.loading_feed import Around
from gapless.model.wording import count, duration, number, percent, size

_SHARE = 0.05
"""A wait that is less of a step is none to speak of."""
DOING = {
    "cores": "measuring the cores",
    "items": "making batches",
    "lines": "finding where the time goes",
    "begin": "starting an epoch",
    "workers": "trying a worker",
    "loop": "running the loader as it is",
    "advice": "running the recommended setting",
    "mistakes": "looking for mistakes",
}
"""The parts of a measurement, in words."""
_MUCH = 100e6
"""Bytes by which a worker may grow in an epoch."""


def sentence(of: Diagnosis) -> str:
    """What a batch costs, what the step leaves for it, and what to take; or why that cannot be told."""
    if of.around is not None and of.around.foreign:
        coming = _coming(of, of.around)
        return f"{coming}; {_as_it_is(of)}" if of.doubt is None else f"{_cannot(of, of.doubt)} {coming}"
    if of.doubt is None:
        return f"{cost(of)}; {_verdict(of)}{_unchecked(of)}"
    if of.doubt.kind == "busy":
        return _cannot(of, of.doubt)
    if of.doubt.kind == "refuted":
        return _refuted(of)
    return f"interrupted while {DOING.get(of.interrupted, of.interrupted)}: {cost(of)}; no setting was run"


def _cannot(of: Diagnosis, doubt: Doubt) -> str:
    cores = count(of.machine.allowed, "core")
    if doubt.reasons:
        return f"cannot be measured now: {doubt.reasons[0]}"
    if not of.fetch.wall:
        return f"cannot be measured now: other programs use {number(doubt.others)} of {cores}."
    return (
        f"cannot be measured now: other programs use {number(doubt.others)} of {cores}. "
        f"(Under this load a batch took {duration(of.fetch.wall)}.)"
    )


def _refuted(of: Diagnosis) -> str:
    advised, now = of.advised, of.now
    assert advised is not None
    assert now is not None
    text = "no step time can be given: a run did not confirm the prediction"
    if of.seen is None or of.seen_advised is None or _same(now, advised):
        return text
    if of.recommended:
        return f"{text}; {_setting(advised)} was faster than {_setting(now)}"
    return f"{text}; {_setting(advised)} was not clearly faster than {_setting(now)}"


def _unchecked(of: Diagnosis) -> str:
    """What has to be said of a prediction that was not run."""
    return "" if of.seen_advised is not None else " (predicted, not run)"


def cost(of: Diagnosis) -> str:
    """What making a batch takes, and where."""
    fetch = of.fetch
    total = fetch.cpu + fetch.wait
    text = f"a batch takes {duration(total)} to make"
    if of.around is not None and (of.around.batches != 1 or of.around.wall > _SHARE * total):
        text = f"{_wrapped(of, of.around)}; each of these takes {duration(total)} to make"
    where = ""
    if of.fetched is not None:
        name = of.fetched.function.split(".")[-1]
        where = f" in {name} ({shown(of.fetched.file)}:{of.fetched.line})"
    collate = min(fetch.collate_cpu, fetch.cpu)
    if fetch.cpu < 0.1 * total:
        return f"{text}, {percent(fetch.wait / total)} of it {fetch.waiting}{where}"
    if collate > 0.5 * total:
        return f"{text}, {duration(collate)} of it collating"
    computing = max(fetch.cpu - collate, 0.0)
    if fetch.wait < 0.1 * total:
        return f"{text}, {duration(computing)} of it CPU time{where}"
    return f"{text}, {duration(computing)} CPU time and {duration(fetch.wait)} {fetch.waiting}{where}"


def _wrapped(of: Diagnosis, around: Around) -> str:
    """What makes a batch of the loop's out of those of the DataLoader."""
    made_of = "1 batch" if around.batches == 1 else f"{number(round(around.batches, 2))} batches"
    told = f"a batch of {around.name} combines {made_of} of its DataLoader"
    if around.wall > _SHARE * (of.fetch.cpu + of.fetch.wait) * around.batches:
        told += f" and takes {duration(around.wall)} more in the training process"
    return told


def _coming(of: Diagnosis, around: Around) -> str:
    """How fast batches come from what is no DataLoader."""
    total = of.fetch.cpu + of.fetch.wait
    told = f"{around.name} yields a batch every {duration(total)} at full speed"
    if of.fetch.cpu > 0.9 * total:
        return f"{told}, nearly all of it CPU time of the training process"
    return f"{told}; {duration(of.fetch.cpu)} of it is CPU time of the training process"


def _as_it_is(of: Diagnosis) -> str:
    total, step = of.fetch.cpu + of.fetch.wait, of.demand.step
    if not step:
        return f"{1e9 / total:.3g} batches per second" if total else "as fast as can be measured"
    if of.now is None:
        least, most = duration(max(step, total)), duration(step + total)
        return (
            f"with your step of {duration(step)} a step takes {least} if batches are prefetched, "
            f"otherwise {most}"
        )
    if of.now.wait <= _SHARE * of.now.step:
        return f"your step of {duration(step)} does not wait for it"
    waiting = percent(of.now.wait / of.now.step)
    wait = duration(of.now.wait)
    return f"your step of {duration(step)} then waits {wait} for its batch, {waiting} of the time"


def _verdict(of: Diagnosis) -> str:
    now, advised = of.now, of.advised
    if now is None or advised is None:
        return "nothing could be predicted"
    if not of.demand.step:
        return _throughput(of, now, advised)
    step = f"your step takes {duration(of.demand.step)}"
    taken, wait = of.step_advised, of.seen_advised.wait if of.seen_advised is not None else advised.wait
    if wait > 2 * _SHARE * taken:
        leaves = f"leaving {duration(wait)} of waiting per step"
        return f"{step}: nothing keeps up here; {_setting(advised)} is as good as any, {leaves}"
    if _same(now, advised):
        return f"{step}: {_setting(now)} keeps up, keep it"
    gain = _gain(of, now, advised)
    keeps = (
        f"{step}: {_workers(advised)} keeps up"
        if advised.setting.workers == 1
        else (
            f"{step}: {_workers(advised)} keep up"
            if advised.setting.workers
            else f"{step}: no worker is needed"
        )
    )
    return f"{keeps}; take {_setting(advised)}{gain}"


def _throughput(of: Diagnosis, now: Prediction, advised: Prediction) -> str:
    rate = (
        f"{1e9 / of.step_advised:.3g} batches per second" if of.step_advised else "as fast as can be measured"
    )
    if _same(now, advised):
        return f"{_setting(now)} gives {rate}, within 5 % of the best here"
    now_rate = f"{1e9 / of.step_now:.3g} with {_setting(now)}" if of.step_now else ""
    return f"use {_setting(advised)}: {rate}, now {now_rate}"


def _gain(of: Diagnosis, now: Prediction, advised: Prediction) -> str:
    if of.step_now > of.step_advised * (1 + _SHARE):
        return f", a step then takes {duration(of.step_advised)} instead of {duration(of.step_now)}"
    if now.setting.workers > advised.setting.workers:
        return f": as fast as the {now.setting.workers} you have"
    return ""


def _workers(one: Prediction) -> str:
    return count(one.setting.workers, "worker")


def _setting(one: Prediction) -> str:
    return f"num_workers={one.setting.workers}"


def _same(now: Prediction, advised: Prediction) -> bool:
    return now.setting.workers == advised.setting.workers


def notes(of: Diagnosis) -> list[str]:
    """What else matters: memory that grows, workers that start slowly, cores that are not there."""
    found = []
    if of.length < 0 and of.iterable:
        found.append("the length of an epoch is unknown, so the cost of starting workers is not included")
    found += _machine_notes(of)
    if of.interrupted and (of.doubt is None or of.doubt.kind != "interrupted"):
        found.append(f"interrupted while {DOING.get(of.interrupted, of.interrupted)}")
    transfer = of.transfer
    if of.length > 0 and transfer.grown(of.length) > _MUCH:
        found.append(_growth(of))
    if transfer.first > 1e9 and of.machine.start != "fork":
        found.append(
            f"workers start with {of.machine.start}: the first batch takes {duration(transfer.first)}"
        )
    if transfer.latency > 0.3e6 and transfer.latency > transfer.receive:
        found.append(
            f"receiving a batch waits {duration(transfer.latency)} for a worker that holds Python's global "
            "lock: fewer tensors per batch shorten this"
        )
    if of.demand.step and not of.demand.source.startswith("timed"):
        found.append(
            f"the CPU is assumed to be busy for {percent(of.demand.busy)} of a step (change it with "
            "--step-cpu)"
        )
    return found


def _growth(of: Diagnosis) -> str:
    growth, copied = of.transfer.growth, of.transfer.copied > 0.5 * of.transfer.growth
    grown = of.transfer.grown(of.length)
    why = (
        "reading lists of Python objects in the dataset copies them; store them in an array or a tensor"
        if copied
        else "each worker keeps its own copy of what the dataset caches"
    )
    return (
        f"a worker's private memory grows by {size(int(growth))} per batch, {size(grown)} per epoch: " + why
    )


def _machine_notes(of: Diagnosis) -> list[str]:
    at = of.machine
    if at.quota >= 0 and at.quota < at.allowed:
        return [f"the control group allows {at.quota:.1f} of {count(at.allowed, 'core')}"]
    if at.cores < 0.8 * at.allowed:
        had = f"{at.cores:.1f} of {count(at.allowed, 'core')}"
        if at.others:
            used = "other programs are using this machine"
            return [f"{used} (this process gets {had}): measure again when it is idle"]
        return [f"the cores are hyperthreads: together they do the work of {had}"]
    return []

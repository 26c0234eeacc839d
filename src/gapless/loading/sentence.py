"""Say the result of a diagnosis in words."""

from __future__ import annotations

from gapless.loading.lines import short_path
from gapless.model.loading import Diagnosis, Doubt, Prediction
from gapless.model.loading_feed import Around
from gapless.model.wording import count, duration, number, percent, size

_MIN_WAIT_SHARE = 0.05
"""A wait below this share of a step is not mentioned."""
DOING = {
    "cores": "measuring the cores",
    "items": "making batches",
    "lines": "finding where the time goes",
    "remedies": "trying other ways to make batches",
    "begin": "starting an epoch",
    "workers": "trying a worker",
    "loop": "running the loader as it is",
    "advice": "running the recommended setting",
    "mistakes": "looking for mistakes",
}
"""The parts of a measurement in words."""
_MAX_GROWTH_BYTES = 100e6
"""Growth of a worker in an epoch above which it is mentioned."""


def sentence(diagnosis: Diagnosis) -> str:
    """Say what a batch costs, whether the step waits for it, and which setting to use; or why that is
    unknown.
    """
    if diagnosis.around is not None and diagnosis.around.foreign:
        coming = _describe_rate(diagnosis, diagnosis.around)
        return (
            f"{coming}; {_describe_wait(diagnosis)}"
            if diagnosis.doubt is None
            else f"{_describe_busy(diagnosis, diagnosis.doubt)} {coming}"
        )
    if diagnosis.doubt is None:
        return f"{cost(diagnosis)}; {_verdict(diagnosis)}{_describe_unchecked(diagnosis)}"
    if diagnosis.doubt.kind == "busy":
        return _describe_busy(diagnosis, diagnosis.doubt)
    if diagnosis.doubt.kind == "refuted":
        return _describe_refuted(diagnosis)
    part = DOING.get(diagnosis.interrupted, diagnosis.interrupted)
    return f"interrupted while {part}: {cost(diagnosis)}; no setting was run"


def _describe_busy(diagnosis: Diagnosis, doubt: Doubt) -> str:
    cores = count(diagnosis.machine.allowed, "core")
    if doubt.reasons:
        return f"cannot be measured now: {doubt.reasons[0]}"
    if not diagnosis.fetch.wall:
        return f"cannot be measured now: other programs use {number(doubt.others)} of {cores}."
    return (
        f"cannot be measured now: other programs use {number(doubt.others)} of {cores}. "
        f"(Under this load a batch took {duration(diagnosis.fetch.wall)}.)"
    )


def _describe_refuted(diagnosis: Diagnosis) -> str:
    advised, now = diagnosis.advised, diagnosis.now
    assert advised is not None
    assert now is not None
    text = "no step time can be given: a run did not confirm the prediction"
    if diagnosis.seen is None or diagnosis.seen_advised is None or _same(now, advised):
        return text
    if diagnosis.recommended:
        return f"{text}; {_format_setting(advised)} was faster than {_format_setting(now)}"
    return f"{text}; {_format_setting(advised)} was not clearly faster than {_format_setting(now)}"


def _describe_unchecked(diagnosis: Diagnosis) -> str:
    """Say if a prediction was not checked by a run."""
    if diagnosis.remedy is not None:
        return " (predicted from batches made that way)"
    return "" if diagnosis.seen_advised is not None else " (predicted, not run)"


def cost(diagnosis: Diagnosis) -> str:
    """Say how long making a batch takes, and where."""
    fetch = diagnosis.fetch
    total = fetch.cpu + fetch.wait
    text = f"a batch takes {duration(total)} to make"
    if diagnosis.around is not None and (
        diagnosis.around.batches != 1 or diagnosis.around.wall > _MIN_WAIT_SHARE * total
    ):
        text = (
            f"{_describe_wrapper(diagnosis, diagnosis.around)}; each of these takes {duration(total)} to make"
        )
    where = ""
    if diagnosis.fetched is not None:
        name = diagnosis.fetched.function.split(".")[-1]
        where = f" in {name} ({short_path(diagnosis.fetched.file)}:{diagnosis.fetched.line})"
    collate = min(fetch.collate_cpu, fetch.cpu)
    if fetch.cpu < 0.1 * total:
        return f"{text}, {percent(fetch.wait / total)} of it {fetch.waiting}{where}"
    if collate > 0.5 * total:
        return f"{text}, {duration(collate)} of it collating"
    computing = max(fetch.cpu - collate, 0.0)
    if fetch.wait < 0.1 * total:
        return f"{text}, {duration(computing)} of it CPU time{where}"
    return f"{text}, {duration(computing)} CPU time and {duration(fetch.wait)} {fetch.waiting}{where}"


def _describe_wrapper(diagnosis: Diagnosis, around: Around) -> str:
    """Say how the loop's batch is made from those of the DataLoader."""
    made_of = "1 batch" if around.batches == 1 else f"{number(round(around.batches, 2))} batches"
    text = f"a batch of {around.name} combines {made_of} of its DataLoader"
    if around.wall > _MIN_WAIT_SHARE * (diagnosis.fetch.cpu + diagnosis.fetch.wait) * around.batches:
        text += f" and takes {duration(around.wall)} more in the training process"
    return text


def _describe_rate(diagnosis: Diagnosis, around: Around) -> str:
    """Say how fast batches come from an object without a DataLoader."""
    total = diagnosis.fetch.cpu + diagnosis.fetch.wait
    text = f"{around.name} yields a batch every {duration(total)} at full speed"
    if diagnosis.fetch.cpu > 0.9 * total:
        return f"{text}, nearly all of it CPU time of the training process"
    return f"{text}; {duration(diagnosis.fetch.cpu)} of it is CPU time of the training process"


def _describe_wait(diagnosis: Diagnosis) -> str:
    total, step = diagnosis.fetch.cpu + diagnosis.fetch.wait, diagnosis.demand.step
    if not step:
        return f"{1e9 / total:.3g} batches per second" if total else "as fast as can be measured"
    if diagnosis.now is None:
        least, most = duration(max(step, total)), duration(step + total)
        return (
            f"with your step of {duration(step)} a step takes {least} if batches are prefetched, "
            f"otherwise {most}"
        )
    if diagnosis.now.wait <= _MIN_WAIT_SHARE * diagnosis.now.step:
        return f"your step of {duration(step)} does not wait for it"
    waiting = percent(diagnosis.now.wait / diagnosis.now.step)
    wait = duration(diagnosis.now.wait)
    return f"your step of {duration(step)} then waits {wait} for its batch, {waiting} of the time"


def _verdict(diagnosis: Diagnosis) -> str:
    now, advised, remedy = diagnosis.now, diagnosis.advised, diagnosis.remedy
    if now is None or advised is None:
        return "nothing could be predicted"
    if remedy is not None and remedy.advised is not None:
        then, before = duration(remedy.advised.step), duration(diagnosis.step_now)
        return f"{remedy.change}: a step then takes {then} instead of {before}"
    if not diagnosis.demand.step:
        return _throughput(diagnosis, now, advised)
    step = f"your step takes {duration(diagnosis.demand.step)}"
    taken, wait = (
        diagnosis.step_advised,
        diagnosis.seen_advised.wait if diagnosis.seen_advised is not None else advised.wait,
    )
    if wait > 2 * _MIN_WAIT_SHARE * taken:
        leaves = f"leaving {duration(wait)} of waiting per step"
        return f"{step}: nothing keeps up here; {_format_setting(advised)} is as good as any, {leaves}"
    if _same(now, advised):
        return f"{step}: {_format_setting(now)} keeps up, keep it"
    gain = _gain(diagnosis, now, advised)
    keeps = (
        f"{step}: {_count_workers(advised)} keeps up"
        if advised.setting.workers == 1
        else (
            f"{step}: {_count_workers(advised)} keep up"
            if advised.setting.workers
            else f"{step}: no worker is needed"
        )
    )
    return f"{keeps}; take {_format_setting(advised)}{gain}"


def _throughput(diagnosis: Diagnosis, now: Prediction, advised: Prediction) -> str:
    rate = (
        f"{1e9 / diagnosis.step_advised:.3g} batches per second"
        if diagnosis.step_advised
        else "as fast as can be measured"
    )
    if _same(now, advised):
        return f"{_format_setting(now)} gives {rate}, within 5 % of the best here"
    now_rate = f"{1e9 / diagnosis.step_now:.3g} with {_format_setting(now)}" if diagnosis.step_now else ""
    return f"use {_format_setting(advised)}: {rate}, now {now_rate}"


def _gain(diagnosis: Diagnosis, now: Prediction, advised: Prediction) -> str:
    if diagnosis.step_now > diagnosis.step_advised * (1 + _MIN_WAIT_SHARE):
        advised_step, step = duration(diagnosis.step_advised), duration(diagnosis.step_now)
        return f", a step then takes {advised_step} instead of {step}"
    if now.setting.workers > advised.setting.workers:
        return f": as fast as the {now.setting.workers} you have"
    return ""


def _count_workers(prediction: Prediction) -> str:
    return count(prediction.setting.workers, "worker")


def _format_setting(prediction: Prediction) -> str:
    return f"num_workers={prediction.setting.workers}"


def _same(now: Prediction, advised: Prediction) -> bool:
    return now.setting.workers == advised.setting.workers


def notes(diagnosis: Diagnosis) -> list[str]:
    """Say what else matters: growing memory, slow starts of workers, missing cores."""
    notes_found = []
    if diagnosis.length < 0 and diagnosis.iterable:
        notes_found.append(
            "the length of an epoch is unknown, so the cost of starting workers is not included"
        )
    notes_found += _machine_notes(diagnosis)
    if diagnosis.interrupted and (diagnosis.doubt is None or diagnosis.doubt.kind != "interrupted"):
        notes_found.append(f"interrupted while {DOING.get(diagnosis.interrupted, diagnosis.interrupted)}")
    transfer = diagnosis.transfer
    if diagnosis.length > 0 and transfer.growth_after(diagnosis.length) > _MAX_GROWTH_BYTES:
        notes_found.append(_growth(diagnosis))
    if transfer.first > 1e9 and diagnosis.machine.start != "fork":
        notes_found.append(
            f"workers start with {diagnosis.machine.start}: the first batch takes {duration(transfer.first)}"
        )
    if transfer.latency > 0.3e6 and transfer.latency > transfer.receive:
        notes_found.append(
            f"receiving a batch waits {duration(transfer.latency)} for a worker that holds Python's global "
            "lock: fewer tensors per batch shorten this"
        )
    if diagnosis.demand.step and not diagnosis.demand.source.startswith("timed"):
        notes_found.append(
            f"the CPU is assumed to be busy for {percent(diagnosis.demand.busy)} of a step (change it with "
            "--step-cpu)"
        )
    return notes_found


def _growth(diagnosis: Diagnosis) -> str:
    growth, copied = diagnosis.transfer.growth, diagnosis.transfer.copied > 0.5 * diagnosis.transfer.growth
    grown = diagnosis.transfer.growth_after(diagnosis.length)
    reason = (
        "reading lists of Python objects in the dataset copies them; store them in an array or a tensor"
        if copied
        else "each worker keeps its own copy of what the dataset caches"
    )
    return (
        f"a worker's private memory grows by {size(int(growth))} per batch, {size(grown)} per epoch: "
        + reason
    )


def _machine_notes(diagnosis: Diagnosis) -> list[str]:
    at = diagnosis.machine
    if at.quota >= 0 and at.quota < at.allowed:
        return [f"the control group allows {at.quota:.1f} of {count(at.allowed, 'core')}"]
    if at.cores < 0.8 * at.allowed:
        had = f"{at.cores:.1f} of {count(at.allowed, 'core')}"
        if at.others:
            used = "other programs are using this machine"
            return [f"{used} (this process gets {had}): measure again when it is idle"]
        return [f"the cores are hyperthreads: together they do the work of {had}"]
    return []

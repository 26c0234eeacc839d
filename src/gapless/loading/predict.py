"""What a loader would do under other settings, and which of them to take."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from gapless.loading.sentence import sentence
from gapless.loading.simulate import Pipeline, Run, simulate
from gapless.model.loading import Bound, Demand, Diagnosis, Fetch, Machine, Prediction, Setting, Transfer
from gapless.model.loading_feed import Around

WITHIN = 0.05
"""What a cheaper setting may be slower than the best."""
_MOST_WORKERS = 32
_PREFETCH = (2, 4, 8)
_EPOCH_MATTERS = 0.01
"""Of an epoch: workers that start take so much of it before they are worth keeping."""


@dataclass(frozen=True)
class Measured:
    """All that a prediction is made of; `length` batches are an epoch (-1: unknown)."""

    machine: Machine
    fetch: Fetch
    transfer: Transfer
    demand: Demand
    length: int = -1
    pins: bool = False
    workers: bool = True
    around: Around | None = None

    @property
    def each(self) -> float:
        """Batches of the DataLoader for one of the loop's."""
        return self.around.batches if self.around is not None else 1.0

    @property
    def outside(self) -> float:
        """Nanoseconds per step of the training process that are neither the step's nor the DataLoader's."""
        return self.around.wall if self.around is not None else 0.0

    @property
    def own(self) -> Demand:
        """What a batch of the DataLoader's feeds: its part of the step, and of what is done around it."""
        if self.around is None:
            return self.demand
        step = self.demand.step + self.around.wall
        computing = self.demand.step * self.demand.busy + self.around.cpu
        busy = min(computing / step, 1.0) if step else 1.0
        return msgspec.structs.replace(self.demand, step=step / self.each, busy=busy)


def pipeline(of: Measured, pin: bool) -> Pipeline:
    """The stages, as the simulation takes them."""
    copied = of.transfer.pin if pin else -1.0
    return Pipeline(
        batches=of.fetch.batches,
        items=1 if of.fetch.at_once else round(of.fetch.batch_size),
        step=of.own.step,
        busy=of.own.busy,
        index=of.fetch.index,
        send=of.transfer.send,
        receive=of.transfer.receive,
        latency=of.transfer.latency,
        start=of.transfer.start,
        boot=of.transfer.boot,
        pin=copied,
    )


def predict(of: Measured, setting: Setting) -> Prediction:
    """A steady step under `setting`, the first batch and an epoch."""
    run = simulate(pipeline(of, setting.pin), of.machine, setting.workers, setting.prefetch)
    return _prediction(of, setting, run)


def _prediction(of: Measured, setting: Setting, run: Run) -> Prediction:
    step = run.step
    if of.pins and not setting.pin:  # what is not pinned is pinned by the driver, while the host waits
        step += max(of.transfer.pin, 0.0)
    begin = run.first if not setting.persistent else max(run.wait, 0.0)
    return Prediction(
        setting=setting,
        step=of.each * step,
        wait=of.each * run.wait + of.outside,
        first=run.first + of.outside,
        epoch=begin + of.length * step - run.wait if of.length > 0 else -1.0,
        memory=memory(of, setting),
        ready=run.ready,
        excluded=_excluded(of, setting),
    )


def memory(of: Measured, setting: Setting) -> int:
    """Bytes of the workers after an epoch (or a thousand batches), and of the batches in flight."""
    batches = setting.workers * max(setting.prefetch, 1) + 1
    each = max(of.transfer.private, 0)
    grown = of.transfer.grown((of.length if of.length > 0 else 1000) // max(setting.workers, 1))
    return int(setting.workers * (each + grown) + batches * of.fetch.batch_bytes)


def _excluded(of: Measured, setting: Setting) -> str:
    if not setting.workers:
        return ""
    if not of.workers:
        return "workers cannot start"
    flight = setting.workers * setting.prefetch * of.fetch.batch_bytes
    if 0 <= of.machine.shared < flight:
        return "batches in flight exceed shared memory"
    if 0 <= of.machine.memory < memory(of, setting):
        return "more memory than is free"
    return ""


def settings(of: Measured) -> Iterator[Setting]:
    """All that are worth a try, by workers."""
    yield Setting(pin=of.pins)
    if not of.workers:
        return
    for workers in _workers(of):
        for prefetch in _PREFETCH:
            yield Setting(workers=workers, prefetch=prefetch, pin=of.pins)


def _workers(of: Measured) -> list[int]:
    """As many as there are cores; more where items wait, as many as keep up with the step."""
    batch = of.fetch.cpu + of.fetch.wait + of.transfer.send
    least = max(of.own.step, of.transfer.receive + of.fetch.index, batch / _MOST_WORKERS, 1.0)
    wanted = math.ceil(batch / least) + 1
    most = min(_MOST_WORKERS, max(of.machine.allowed, wanted, 4))
    if of.fetch.cpu > 4 * of.fetch.wait:  # beyond two for each core there is nothing to gain
        most = min(most, max(2 * of.machine.allowed, 4))
    dense = list(range(1, min(most, 8) + 1))
    return dense + [count for count in (10, 12, 14, 16, 20, 24, 28, 32) if 8 < count <= most]


def predict_all(of: Measured) -> list[Prediction]:
    """Every setting that is worth a try."""
    return [predict(of, setting) for setting in settings(of)]


def bounds(of: Measured) -> tuple[Bound, ...]:
    """What each stage alone takes of a step, whatever the setting; the longest first."""
    most = max(of.machine.share(count) for count in range(1, _MOST_WORKERS + 2))
    busy = of.own.step * of.own.busy
    computing = of.fetch.cpu + busy
    received = of.transfer.receive + of.fetch.index + busy
    found = [
        Bound(stage="the step itself", least=of.demand.step),
        Bound(stage="making batches on all cores", least=of.each * computing / most if most > 0 else 0.0),
        Bound(stage=f"waiting in {_MOST_WORKERS} workers", least=of.each * of.fetch.wait / _MOST_WORKERS),
        Bound(stage="receiving batches from workers", least=of.each * received),
    ]
    if of.around is not None:
        found.append(Bound(stage="the step and the code around the DataLoader", least=of.each * of.own.step))
    if of.transfer.copy >= 0:
        found.append(Bound(stage="copying to the GPU", least=of.transfer.copy))
    return tuple(sorted(found, key=lambda one: -one.least))


def choose(of: Measured, predictions: Sequence[Prediction]) -> tuple[Prediction, Prediction]:
    """The shortest step, and the cheapest setting within 5 % of it: fewest workers, then least memory."""
    possible = [one for one in predictions if not one.excluded] or list(predictions[:1])
    best = min(possible, key=lambda one: (one.step, one.setting.workers, one.memory))
    enough = [one for one in possible if one.step <= best.step * (1 + WITHIN)]
    cheap = min(enough, key=lambda one: (one.setting.workers, one.memory, one.step))
    return best, _kept(of, cheap)


def _kept(of: Measured, one: Prediction) -> Prediction:
    """Workers stay from epoch to epoch where starting them is more than a hundredth of an epoch."""
    if not one.setting.workers or of.length <= 0 or (of.around is not None and of.around.anew):
        return one
    if one.first - one.wait < _EPOCH_MATTERS * of.length / of.each * one.step:
        return one
    setting = Setting(
        workers=one.setting.workers, prefetch=one.setting.prefetch, persistent=True, pin=one.setting.pin
    )
    return predict(of, setting)


def again(saved: Diagnosis, demand: Demand) -> Diagnosis:
    """What follows from a saved measurement when a step takes as long as `demand` says."""
    if saved.around is not None and saved.around.foreign:
        made = msgspec.structs.replace(saved, demand=demand, seen=None, now=None)
        return msgspec.structs.replace(made, sentence=sentence(made))
    of = measured(saved, demand)
    predictions = predict_all(of)
    best, advised = choose(of, predictions)
    made = msgspec.structs.replace(
        saved,
        demand=demand,
        predictions=tuple(predictions),
        bounds=bounds(of),
        now=predict(of, saved.setting),
        best=best,
        advised=advised,
        recommended={} if saved.doubt is not None else advised.setting.arguments,
        seen=None,
        seen_advised=None,
    )
    return msgspec.structs.replace(made, sentence=sentence(made))


def under(saved: Diagnosis, demand: Demand) -> Diagnosis:
    """`saved` with its own setting and the one advised, and no other, when a step takes as `demand` says."""
    if saved.around is not None and saved.around.foreign:
        return msgspec.structs.replace(saved, demand=demand, now=None)
    of = measured(saved, demand)
    now, advised = saved.now, saved.advised
    return msgspec.structs.replace(
        saved,
        demand=demand,
        now=now and predict(of, now.setting),
        advised=advised and predict(of, advised.setting),
    )


def measured(saved: Diagnosis, demand: Demand) -> Measured:
    """What a saved measurement was predicted from, for another step."""
    return Measured(
        machine=saved.machine,
        fetch=saved.fetch,
        transfer=saved.transfer,
        demand=demand,
        length=saved.length,
        pins=saved.transfer.pin >= 0,
        workers=saved.transfer.batches > 0 or saved.transfer.assumed,
        around=saved.around,
    )

"""Predict a loader under other settings, and choose one of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from gapless.loading.sentence import sentence
from gapless.loading.simulate import PipelineCosts, SimulatedRun, simulate
from gapless.model.loading import (
    BatchRemedy,
    Bound,
    Demand,
    Diagnosis,
    Fetch,
    Machine,
    Prediction,
    Setting,
    Transfer,
)
from gapless.model.loading_feed import Around

MAX_SLOWDOWN = 0.05
"""How much slower than the best a cheaper setting may be."""
_MAX_WORKERS = 32
"""Workers of the largest setting that is predicted: each takes memory, and few machines have more cores."""
_PREFETCH_FACTORS = (2, 4, 8)
_MIN_START_SHARE = 0.01
"""Share of an epoch that starting workers takes, from which they are kept."""


@dataclass(frozen=True)
class MeasuredCosts:
    """All inputs of a prediction; `length` batches are an epoch (-1: unknown)."""

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
        """Batches of the DataLoader for each of the loop's."""
        return self.around.batches if self.around is not None else 1.0

    @property
    def outside(self) -> float:
        """Nanoseconds per step of the training process outside both the step and the DataLoader."""
        return self.around.wall if self.around is not None else 0.0

    @property
    def own(self) -> Demand:
        """The demand that a batch of the DataLoader meets: its share of the step and of the work around
        it.
        """
        if self.around is None:
            return self.demand
        step = self.demand.step + self.around.wall
        computing = self.demand.step * self.demand.busy + self.around.cpu
        busy = min(computing / step, 1.0) if step else 1.0
        return msgspec.structs.replace(self.demand, step=step / self.each, busy=busy)


def build_pipeline(costs: MeasuredCosts, pin: bool) -> PipelineCosts:
    """Return the stages for the simulation."""
    copied = costs.transfer.pin if pin else -1.0
    return PipelineCosts(
        batches=costs.fetch.batches,
        items=1 if costs.fetch.at_once else round(costs.fetch.batch_size),
        step=costs.own.step,
        busy=costs.own.busy,
        index=costs.fetch.index,
        send=costs.transfer.send,
        receive=costs.transfer.receive,
        latency=costs.transfer.latency,
        start=costs.transfer.start,
        boot=costs.transfer.boot,
        pin=copied,
    )


def predict(costs: MeasuredCosts, setting: Setting) -> Prediction:
    """Predict a steady step under `setting`, the first batch and an epoch."""
    run = simulate(build_pipeline(costs, setting.pin), costs.machine, setting.workers, setting.prefetch)
    return _prediction(costs, setting, run)


def _prediction(costs: MeasuredCosts, setting: Setting, run: SimulatedRun) -> Prediction:
    step = run.step
    if costs.pins and not setting.pin:  # unpinned memory is pinned by the driver, while the host waits
        step += max(costs.transfer.pin, 0.0)
    begin = run.first if not setting.persistent else max(run.wait, 0.0)
    return Prediction(
        setting=setting,
        step=costs.each * step,
        wait=costs.each * run.wait + costs.outside,
        first=run.first + costs.outside,
        epoch=begin + costs.length * step - run.wait if costs.length > 0 else -1.0,
        memory=memory(costs, setting),
        ready=run.ready,
        excluded=_exclusion_reason(costs, setting),
    )


def memory(costs: MeasuredCosts, setting: Setting) -> int:
    """Return the bytes of the workers after an epoch (or a thousand batches), and of batches in flight."""
    batches = setting.workers * max(setting.prefetch, 1) + 1
    each = max(costs.transfer.private, 0)
    grown = costs.transfer.growth_after(
        (costs.length if costs.length > 0 else 1000) // max(setting.workers, 1)
    )
    return int(setting.workers * (each + grown) + batches * costs.fetch.batch_bytes)


def _exclusion_reason(costs: MeasuredCosts, setting: Setting) -> str:
    if not setting.workers:
        return ""
    if not costs.workers:
        return "workers cannot start"
    flight = setting.workers * setting.prefetch * costs.fetch.batch_bytes
    if 0 <= costs.machine.shared < flight:
        return "batches in flight exceed shared memory"
    if 0 <= costs.machine.memory < memory(costs, setting):
        return "more memory than is free"
    return ""


def candidate_settings(costs: MeasuredCosts) -> Iterator[Setting]:
    """Yield all settings worth trying, by workers."""
    yield Setting(pin=costs.pins)
    if not costs.workers:
        return
    for workers in _worker_counts(costs):
        for prefetch in _PREFETCH_FACTORS:
            yield Setting(workers=workers, prefetch=prefetch, pin=costs.pins)


def _worker_counts(costs: MeasuredCosts) -> list[int]:
    """Return counts up to the number of cores; more if items wait, as many as keep up with the step."""
    batch = costs.fetch.cpu + costs.fetch.wait + costs.transfer.send
    least = max(costs.own.step, costs.transfer.receive + costs.fetch.index, batch / _MAX_WORKERS, 1.0)
    wanted = math.ceil(batch / least) + 1
    most = min(_MAX_WORKERS, max(costs.machine.allowed, wanted, 4))
    if costs.fetch.cpu > 4 * costs.fetch.wait:  # compute-bound: more than two workers per core gain nothing
        most = min(most, max(2 * costs.machine.allowed, 4))
    dense = list(range(1, min(most, 8) + 1))
    return dense + [count for count in (10, 12, 14, 16, 20, 24, 28, 32) if 8 < count <= most]


def predict_all(costs: MeasuredCosts) -> list[Prediction]:
    """Predict every setting worth trying."""
    return [predict(costs, setting) for setting in candidate_settings(costs)]


def bounds(costs: MeasuredCosts) -> tuple[Bound, ...]:
    """Return the least time of a step that each stage allows, whatever the setting; longest first."""
    most = max(costs.machine.share(count) for count in range(1, _MAX_WORKERS + 2))
    busy = costs.own.step * costs.own.busy
    computing = costs.fetch.cpu + busy
    received = costs.transfer.receive + costs.fetch.index + busy
    bounds_found = [
        Bound(stage="the step itself", least=costs.demand.step),
        Bound(stage="making batches on all cores", least=costs.each * computing / most if most > 0 else 0.0),
        Bound(stage=f"waiting in {_MAX_WORKERS} workers", least=costs.each * costs.fetch.wait / _MAX_WORKERS),
        Bound(stage="receiving batches from workers", least=costs.each * received),
    ]
    if costs.around is not None:
        bounds_found.append(
            Bound(stage="the step and the code around the DataLoader", least=costs.each * costs.own.step)
        )
    if costs.transfer.copy >= 0:
        bounds_found.append(Bound(stage="copying to the GPU", least=costs.transfer.copy))
    return tuple(sorted(bounds_found, key=lambda bound: -bound.least))


def choose(costs: MeasuredCosts, predictions: Sequence[Prediction]) -> tuple[Prediction, Prediction]:
    """Return the prediction with the shortest step, and the cheapest within 5 % of it: fewest workers, least
    memory.
    """
    possible = [prediction for prediction in predictions if not prediction.excluded] or list(predictions[:1])
    best = min(
        possible, key=lambda prediction: (prediction.step, prediction.setting.workers, prediction.memory)
    )
    enough = [prediction for prediction in possible if prediction.step <= best.step * (1 + MAX_SLOWDOWN)]
    cheap = min(
        enough, key=lambda prediction: (prediction.setting.workers, prediction.memory, prediction.step)
    )
    return best, _with_persistent_workers(costs, cheap)


def _with_persistent_workers(costs: MeasuredCosts, prediction: Prediction) -> Prediction:
    """Keep workers between epochs if starting them takes over a hundredth of an epoch."""
    if (
        not prediction.setting.workers
        or costs.length <= 0
        or (costs.around is not None and costs.around.anew)
    ):
        return prediction
    if prediction.first - prediction.wait < _MIN_START_SHARE * costs.length / costs.each * prediction.step:
        return prediction
    setting = Setting(
        workers=prediction.setting.workers,
        prefetch=prediction.setting.prefetch,
        persistent=True,
        pin=prediction.setting.pin,
    )
    return predict(costs, setting)


def predict_remedies(costs: MeasuredCosts, remedies: Iterable[BatchRemedy]) -> tuple[BatchRemedy, ...]:
    """Return `remedies` with their predictions under the best setting for each, the shortest step first."""
    predicted = []
    for remedy in remedies:
        remedied = _with_remedy(costs, remedy)
        _, advised = choose(remedied, predict_all(remedied))
        predicted.append(msgspec.structs.replace(remedy, advised=advised))
    return tuple(sorted(predicted, key=lambda remedy: remedy.advised.step if remedy.advised else 0.0))


def _with_remedy(costs: MeasuredCosts, remedy: BatchRemedy) -> MeasuredCosts:
    """Return `costs` with batches made as the remedy says; fewer tensors take less time to send."""
    cost = remedy.batch
    fetch = msgspec.structs.replace(
        costs.fetch,
        item=cost / max(costs.fetch.batch_size, 1.0),
        collate=0.0,
        at_once=True,
        batches=remedy.batches,
        tensors=remedy.tensors,
    )
    share = remedy.tensors / costs.fetch.tensors if 0 < remedy.tensors < costs.fetch.tensors else 1.0
    transfer = msgspec.structs.replace(
        costs.transfer, send=share * costs.transfer.send, receive=share * costs.transfer.receive
    )
    return replace(costs, fetch=fetch, transfer=transfer)


def predict_again(saved: Diagnosis, demand: Demand) -> Diagnosis:
    """Predict from a saved measurement for a step with another `demand`."""
    if saved.around is not None and saved.around.foreign:
        diagnosis = msgspec.structs.replace(saved, demand=demand, seen=None, now=None)
        return msgspec.structs.replace(diagnosis, sentence=sentence(diagnosis))
    costs = saved_costs(saved, demand)
    predictions = predict_all(costs)
    best, advised = choose(costs, predictions)
    diagnosis = msgspec.structs.replace(
        saved,
        demand=demand,
        predictions=tuple(predictions),
        bounds=bounds(costs),
        now=predict(costs, saved.setting),
        best=best,
        advised=advised,
        recommended={} if saved.doubt is not None else advised.setting.arguments,
        remedies=predict_remedies(costs, saved.remedies),
        seen=None,
        seen_advised=None,
    )
    return msgspec.structs.replace(diagnosis, sentence=sentence(diagnosis))


def predict_under(saved: Diagnosis, demand: Demand) -> Diagnosis:
    """Predict only the current and the advised setting of `saved` for another `demand`."""
    if saved.around is not None and saved.around.foreign:
        return msgspec.structs.replace(saved, demand=demand, now=None)
    costs = saved_costs(saved, demand)
    now, advised = saved.now, saved.advised
    return msgspec.structs.replace(
        saved,
        demand=demand,
        now=now and predict(costs, now.setting),
        advised=advised and predict(costs, advised.setting),
        remedies=tuple(
            msgspec.structs.replace(
                remedy,
                advised=remedy.advised and predict(_with_remedy(costs, remedy), remedy.advised.setting),
            )
            for remedy in saved.remedies
        ),
    )


def saved_costs(saved: Diagnosis, demand: Demand) -> MeasuredCosts:
    """Return the inputs of a saved measurement's prediction, for another step."""
    return MeasuredCosts(
        machine=saved.machine,
        fetch=saved.fetch,
        transfer=saved.transfer,
        demand=demand,
        length=saved.length,
        pins=saved.transfer.pin >= 0,
        workers=saved.transfer.batches > 0 or saved.transfer.assumed,
        around=saved.around,
    )

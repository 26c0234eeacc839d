"""`examine`: measure and verify the loaders of a script that has run, against its training step."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import torch
from torch.utils.data import DataLoader, IterableDataset

from gapless.errors import GaplessError
from gapless.loading import predict, trust
from gapless.loading.batches import length_of
from gapless.loading.blocked import WaitSampler
from gapless.loading.correctness import verify_here
from gapless.loading.feed import identify_feed
from gapless.loading.forked import Stopped, Tell, can_fork, run_in_copy
from gapless.loading.lines import item_line
from gapless.loading.machine import OtherLoad
from gapless.loading.measure import diagnose
from gapless.loading.measure_items import measure_items
from gapless.loading.sentence import cost
from gapless.loading.untouched import find_unused_columns
from gapless.loading.uses import LoaderUses, Uses
from gapless.model.estimate import Range
from gapless.model.loader_use import LoaderUse
from gapless.model.loading import Demand, Diagnosis, Doubt, Fetch, Prediction
from gapless.model.loading_mistakes import Mistake
from gapless.model.wording import count

_MAX_LOADERS = 3
"""Loaders that are measured: those with the most waiting time."""
_FIRST_LOOK_SHARE = 0.06
"""Share of the budget for a first look, which suffices for loaders that clearly keep up."""
_MAX_INPUT_SHARE = 0.02
"""Share of a step below which its input does not matter."""
_MAX_MAKING_SHARE, _MAX_RECEIVING_SHARE = 0.3, 0.04
"""Shares of a step that making, and receiving, a worker's batch may take for it to be clearly in time."""
_RECEIVING_NS = 0.3e6, 0.1e6, 0.2
"""Upper estimates of the time to receive a batch from a worker: fixed, per tensor, per byte."""
_VERIFYING_SHARE = 0.3
"""Share of the budget for finding mistakes."""
_MAX_ITEMS_VERIFIED = 2000
"""Items of an epoch compared: enough for repeated ones to show."""

Progress = Callable[[LoaderUse], None]
"""Called with a loader before it is measured."""


@dataclass(frozen=True)
class StepTimes:
    """The training step without its input, in nanoseconds.

    `length` is its duration (None: unknown), `count` the number of steps in the run; `ranks` share the
    machine. `host` is the host's work per step without waits (None: unknown), of which a step has `waits`;
    `device` is the GPU's work per step (0: unknown).
    """

    length: Range | None
    count: int
    ranks: int = 1
    host: int | None = None
    waits: float = 1.0
    device: int = 0


class Interrupted(BaseException):
    """The user requested the end, by `request`, when `uses` were known."""

    def __init__(self, request: BaseException, uses: tuple[LoaderUse, ...]) -> None:
        super().__init__(str(request))
        self.request, self.uses = request, uses


def examine(uses: Uses, step: StepTimes, budget: float, progress: Progress) -> tuple[LoaderUse, ...]:
    """Return the findings about each loader that was used, within `budget` seconds in all.

    Only loaders that feed training steps are measured, in copies of this process. A loader that keeps up
    costs a fraction of a second.

    Raises:
        Interrupted: by Ctrl-C or another request to end; with the findings so far.
    """
    deadline = time.monotonic() + budget
    results = [_use_in_loop(use, step, uses.steps) for use in uses.uses]
    feeding = [number for number, use in enumerate(results) if use.per_step]
    feeding.sort(key=lambda number: -uses.uses[number].waited)
    for place, number in enumerate(feeding[:_MAX_LOADERS]):
        left = max(deadline - time.monotonic(), 0.0) / (min(len(feeding), _MAX_LOADERS) - place)
        if left < 0.1 * budget:
            break
        try:
            results[number] = _examine_loader(uses.uses[number], results[number], step, left, progress)
        except _LoaderInterrupted as interrupted:
            results[number] = interrupted.use
            raise Interrupted(interrupted.request, _with_mistakes(results, uses)) from None
        except BaseException as request:
            if isinstance(request, Exception):
                raise
            raise Interrupted(request, _with_mistakes(results, uses)) from None
    return _with_mistakes(results, uses)


class _LoaderInterrupted(Exception):
    """A request to end, with the findings about one loader so far."""

    def __init__(self, request: BaseException, use: LoaderUse) -> None:
        super().__init__(str(request))
        self.request, self.use = request, use


def _interrupted_with_costs(
    request: BaseException, use: LoaderUses, known_use: LoaderUse, fetch: Fetch | None
) -> _LoaderInterrupted:
    """Add the measured cost of items, if any, to the findings of an interrupted loader."""
    if fetch is None or use.loader is None:
        return _LoaderInterrupted(request, known_use)
    note = cost(Diagnosis(fetch=fetch, fetched=item_line(use.loader.dataset)))
    return _LoaderInterrupted(
        request,
        msgspec.structs.replace(known_use, fetch=fetch, notes=(*known_use.notes, f"until then: {note}")),
    )


def _use_in_loop(use: LoaderUses, step: StepTimes, marks: int) -> LoaderUse:
    """Return what was observed in the loop, in which an optimizer stepped `marks` times (possibly several per
    step).
    """
    feeds = step.count > 0 and 2 * use.fed >= step.count
    return LoaderUse(
        made=use.made,
        asked=use.asked,
        library=use.library,
        dataset=type(use.loader.dataset).__qualname__ if use.loader is not None else "",
        setting=use.setting,
        passes=use.passes,
        batches=use.batches,
        ended=use.ended,
        length=length_of(use.loader) if use.loader is not None else -1,
        per_step=use.per_step(marks) * marks / step.count if feeds else 0.0,
        wait=use.wait,
        first=use.first,
        step=step.length or Range(),
        device=step.device,
    )


def _with_mistakes(results: Sequence[LoaderUse], uses: Uses) -> tuple[LoaderUse, ...]:
    """Add mistakes observed in the loop to the loader with the same line, else to the first."""
    with_mistakes = list(results)
    for mistake in uses.watched.mistakes:
        number = next((n for n, use in enumerate(with_mistakes) if use.asked == mistake.line), 0)
        if with_mistakes:
            all_of = (*with_mistakes[number].mistakes, mistake)
            with_mistakes[number] = msgspec.structs.replace(with_mistakes[number], mistakes=all_of)
    return tuple(with_mistakes)


def _examine_loader(
    use: LoaderUses, known_use: LoaderUse, step: StepTimes, budget: float, progress: Progress
) -> LoaderUse:
    loader = use.loader
    if loader is None or use.on_device or use.threaded or not can_fork():
        return known_use  # nothing follows for batches that a thread requests in advance or makes on the GPU
    first = _FIRST_LOOK_SHARE * budget
    try:
        fetch = _first_look(loader, first, budget)
    except Stopped as stopped:
        raise _interrupted_with_costs(stopped.request, use, known_use, stopped.result) from None
    except GaplessError as error:
        return msgspec.structs.replace(known_use, notes=(f"it could not be measured: {error}",))
    unused = find_unused_columns(use.asked, [column.name for column in fetch.columns])
    known_use = msgspec.structs.replace(known_use, fetch=fetch, untouched=unused)
    began = time.monotonic()
    known_use = msgspec.structs.replace(known_use, **_find_mistakes(use, fetch, _VERIFYING_SHARE * budget))
    left = budget - first - (time.monotonic() - began)
    if step.length is None or not step.length.likely or known_use.restarted or keeps_up(known_use):
        return known_use
    progress(known_use)
    try:
        return _measure_loader(use, known_use, step, max(left, 0.3 * budget))
    except (KeyboardInterrupt, SystemExit) as request:
        raise _interrupted_with_costs(request, use, known_use, fetch) from None
    except GaplessError as error:
        return msgspec.structs.replace(
            known_use, notes=(*known_use.notes, f"it could not be measured: {error}")
        )


def _first_look(loader: DataLoader, seconds: float, patience: float) -> Fetch:
    """Measure some items.

    Raises:
        Stopped: on a request to end, with what was measured so far.
    """
    blocked, other_load = WaitSampler(), OtherLoad()

    def work(tell: Tell) -> Fetch:
        return measure_items(loader, seconds, tell)

    fetch = run_in_copy(work, Fetch, patience, lambda part: None, blocked, keep=True)
    return msgspec.structs.replace(fetch, waits=blocked.waits(), others=other_load.cores())


def keeps_up(loader_use: LoaderUse) -> bool:
    """Whether batches are clearly ready in time, judged by the first look."""
    fetch = loader_use.fetch
    if fetch is None:
        return False
    least = loader_use.step.least / loader_use.per_step
    batch = fetch.cpu + fetch.wait
    if not loader_use.setting.workers:
        return batch <= _MAX_INPUT_SHARE * least
    some, each, byte = _RECEIVING_NS
    received = some + each * fetch.tensors + byte * fetch.batch_bytes
    return batch + received <= _MAX_MAKING_SHARE * least and received <= _MAX_RECEIVING_SHARE * least


def _measure_loader(use: LoaderUses, known_use: LoaderUse, step: StepTimes, budget: float) -> LoaderUse:
    """Measure the loader; predict its wait for the likely, the shortest and the longest step."""
    assert use.loader is not None
    assert step.length is not None
    demands = [
        Demand(step=length / known_use.per_step, source="estimate") for length in _lengths(step.length)
    ]
    feed = dataclasses.replace(identify_feed(use.loader), line=use.made)
    diagnosis = diagnose(feed, budget, demands[1].step / 1e9, source="estimate")
    if diagnosis.interrupted:
        raise _interrupted_with_costs(KeyboardInterrupt(), use, known_use, diagnosis.fetch)
    if use.library:  # the library writes the DataLoader's call
        diagnosis = msgspec.structs.replace(diagnosis, remedies=())
    refuted = diagnosis.doubt is not None and diagnosis.doubt.kind == "refuted"
    stands, doubted = not refuted or (_is_confirmed(diagnosis) and step.ranks == 1), False
    if diagnosis.doubt is not None:
        note = _describe_doubt(diagnosis, diagnosis.doubt, stands)
        known_use = msgspec.structs.replace(known_use, notes=(*known_use.notes, note))
        if not stands:
            return msgspec.structs.replace(known_use, diagnosis=diagnosis)
        # the computing and waiting time of items is valid in spite of the doubt
        doubted, diagnosis = not refuted, msgspec.structs.replace(diagnosis, doubt=None)
    if (diagnosis.machine.others and not refuted) or step.ranks > 1:
        diagnosis = predict.predict_again(_on_training_machine(diagnosis, step.ranks), demands[1])
    elif doubted:
        diagnosis = predict.predict_again(diagnosis, demands[1])
    each = [
        diagnosis if demand == demands[1] else predict.predict_under(diagnosis, demand) for demand in demands
    ]
    is_remedied = diagnosis.remedy is not None
    leads = _host_slack(step.length, step)
    late, left = zip(
        *(
            _waits(variant, known_use.per_step, lead, is_remedied)
            for variant, lead in zip(each, leads, strict=True)
        ),
        strict=True,
    )
    if refuted:
        diagnosis = msgspec.structs.replace(diagnosis, remedies=())
        left = tuple(_left_in_run(diagnosis, wait, known_use.per_step) for wait in late)
    return msgspec.structs.replace(
        known_use,
        diagnosis=diagnosis,
        late=Range(late[2], late[1], late[0]),
        left=Range(left[2], left[1], left[0]),
    )


def _describe_doubt(diagnosis: Diagnosis, doubt: Doubt, stands: bool) -> str:
    """Say that a prediction was refuted by a run, or could not be checked.

    The current setting's wait `stands` if its own run was as predicted.
    """
    reasons = "; ".join(doubt.reasons)
    if doubt.kind != "refuted":
        had = f"other programs used {doubt.others:.1f} of {count(diagnosis.machine.allowed, 'core')}"
        reason = had if doubt.others >= trust.MAX_OTHER_LOAD * diagnosis.machine.allowed else reasons
        return f"{reason}: the prediction was not checked by a run"
    if not stands:
        return f"no waiting time is reported: {diagnosis.sentence} ({reasons})"
    return f"the recommended setting was run, and its time differed from the prediction ({reasons})"


def _is_confirmed(diagnosis: Diagnosis) -> bool:
    """Whether the loader with its current setting ran as predicted."""
    return (
        diagnosis.seen is not None and trust.prediction_factor(diagnosis.seen) <= trust.MAX_PREDICTION_FACTOR
    )


def _left_in_run(diagnosis: Diagnosis, late: int, per_step: float) -> int:
    """Return the wait left when the advised setting was run; all of it if it was not clearly faster."""
    advised_run = diagnosis.seen_advised
    return (
        min(round(advised_run.wait * per_step), late)
        if advised_run is not None and trust.is_faster(diagnosis)
        else late
    )


def _lengths(step: Range) -> tuple[int, int, int]:
    return step.least, step.likely, step.most


def _host_slack(length: Range, step: StepTimes) -> tuple[int, ...]:
    """Return how long the host is idle in steps of these lengths, when it can make the next batches.

    If it is unknown which part of the waits is idle, only the longest step gets the slack, so that the least
    possible loss is reported for it.
    """
    if step.host is None:
        return (0, 0, 0)
    free = [max(each - step.host, 0) for each in _lengths(length)]
    return tuple(free) if step.waits < 1 else (0, 0, free[2])


def _waits(diagnosis: Diagnosis, per_step: float, lead: int, is_remedied: bool = False) -> tuple[int, int]:
    """Return how long a training step waits, now and with the advised setting, or the remedy."""
    best = diagnosis.remedies[0].advised if is_remedied else diagnosis.advised
    now, then = (_exposed_wait(p, per_step, lead) if p is not None else 0 for p in (diagnosis.now, best))
    return now, then


def _exposed_wait(prediction: Prediction, per_step: float, lead: int) -> int:
    """Return the wait that the GPU notices: without workers, batches are made in the host's idle time."""
    wait = round(prediction.wait * per_step)
    return wait if prediction.setting.workers else max(wait - lead, 0)


def _on_training_machine(diagnosis: Diagnosis, ranks: int) -> Diagnosis:
    """Return the measurement for a machine used only by this training, with `ranks` ranks on it.

    Programs that run here now need not run on the training's machine.
    """
    at = msgspec.structs.replace(
        diagnosis.machine, others=0.0, allowed=max(1, diagnosis.machine.allowed // ranks)
    )
    notes = (f"{ranks} ranks share the cores of this machine",) if ranks > 1 else ()
    return msgspec.structs.replace(diagnosis, machine=at, notes=(*diagnosis.notes, *notes))


def _find_mistakes(use: LoaderUses, fetch: Fetch, seconds: float) -> dict[str, tuple[Mistake, ...]]:
    """Return mistakes in what the loader yields; nothing if checking would take too long."""
    assert use.loader is not None
    if isinstance(use.loader.dataset, IterableDataset) and 100 * fetch.item / 1e9 > seconds:
        return {}
    try:
        return {"mistakes": verify_here(use.loader, _MAX_ITEMS_VERIFIED, seconds).mistakes}
    except (GaplessError, RuntimeError, torch.multiprocessing.ProcessError):
        return {}

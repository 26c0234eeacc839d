"""`examine`: the loaders of a script that has run, measured and verified against the step they feed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import torch
from torch.utils.data import DataLoader, IterableDataset

from gapless.errors import GaplessError
from gapless.loading import predict, trust
from gapless.loading.batches import length_of
from gapless.loading.blocked import Blocked
from gapless.loading.correctness import verify_here
from gapless.loading.forked import Stopped, Tell, available, measured
from gapless.loading.lines import maker
from gapless.loading.machine import Others
from gapless.loading.measure import diagnose
from gapless.loading.measure_items import measure_items
from gapless.loading.sentence import cost
from gapless.loading.untouched import untouched
from gapless.loading.uses import Use, Uses
from gapless.model.estimate import Range
from gapless.model.loader_use import LoaderUse
from gapless.model.loading import Demand, Diagnosis, Doubt, Fetch, Prediction
from gapless.model.loading_mistakes import Mistake
from gapless.model.wording import count

_MOST = 3
"""Loaders that are measured: those that the most time went to."""
_FIRST = 0.06
"""Part of the budget for a first look, which is all that a loader needs that clearly keeps up."""
_LITTLE = 0.02
"""Part of a step below which its input is no matter."""
_EASY, _SMALL = 0.3, 0.04
"""Parts of a step that making, and receiving, a batch of a worker may take so that it is clearly in time."""
_RECEIVED = 0.3e6, 0.1e6, 0.2
"""Nanoseconds to receive a batch from a worker, on the safe side: of any, of a tensor, of a byte."""
_VERIFIED = 0.3
"""Part of the budget for looking for mistakes."""
_ITEMS = 2000

Progress = Callable[[LoaderUse], None]
"""Called with a loader before it is measured."""


@dataclass(frozen=True)
class Step:
    """What a training step takes without its input, in nanoseconds (None: not known), and the number of steps
    that the run had; `ranks` share the machine. `host` is what the host needs for a step besides its waits
    (None: not known), of which a step has `waits`; the GPU has work for `device` of it (0: not known)."""

    length: Range | None
    count: int
    ranks: int = 1
    host: int | None = None
    waits: float = 1.0
    device: int = 0


class Interrupted(BaseException):
    """The user asked for the end, by `request`, while `found` was known."""

    def __init__(self, request: BaseException, found: tuple[LoaderUse, ...]) -> None:
        super().__init__(str(request))
        self.request, self.found = request, found


def examine(uses: Uses, step: Step, budget: float, progress: Progress) -> tuple[LoaderUse, ...]:
    """What there is to say of each loader that was gone through; `budget` is in seconds, for all together.

    Only loaders that feed the training steps are measured, in copies of this process. A loader that keeps up
    costs a fraction of a second.

    Raises:
        Interrupted: by Ctrl-C or another request to end; with what was found until then.
    """
    deadline = time.monotonic() + budget
    found = [_seen(use, step, uses.steps) for use in uses.uses]
    feeding = [number for number, one in enumerate(found) if one.per_step]
    feeding.sort(key=lambda number: -uses.uses[number].waited)
    for place, number in enumerate(feeding[:_MOST]):
        left = max(deadline - time.monotonic(), 0.0) / (min(len(feeding), _MOST) - place)
        if left < 0.1 * budget:
            break
        try:
            found[number] = _examined(uses.uses[number], found[number], step, left, progress)
        except _Cut as cut:
            found[number] = cut.seen
            raise Interrupted(cut.request, _with_mistakes(found, uses)) from None
        except BaseException as request:
            if isinstance(request, Exception):
                raise
            raise Interrupted(request, _with_mistakes(found, uses)) from None
    return _with_mistakes(found, uses)


class _Cut(Exception):
    """A request to end, and what was seen of one loader until then."""

    def __init__(self, request: BaseException, seen: LoaderUse) -> None:
        super().__init__(str(request))
        self.request, self.seen = request, seen


def _cut(request: BaseException, use: Use, seen: LoaderUse, fetch: Fetch | None) -> _Cut:
    """`seen` with what items were found to cost."""
    if fetch is None or use.loader is None:
        return _Cut(request, seen)
    told = cost(Diagnosis(fetch=fetch, fetched=maker(use.loader.dataset)))
    return _Cut(
        request, msgspec.structs.replace(seen, fetch=fetch, notes=(*seen.notes, f"until then: {told}"))
    )


def _seen(use: Use, step: Step, marks: int) -> LoaderUse:
    """What was seen in the loop, where `marks` times an optimizer stepped: several may make one step."""
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


def _with_mistakes(found: Sequence[LoaderUse], uses: Uses) -> tuple[LoaderUse, ...]:
    """Each mistake that was seen in the loop, at the loader that goes with it, or at the first."""
    told = list(found)
    for mistake in uses.watched.mistakes:
        number = next((n for n, one in enumerate(told) if one.asked == mistake.line), 0)
        if told:
            all_of = (*told[number].mistakes, mistake)
            told[number] = msgspec.structs.replace(told[number], mistakes=all_of)
    return tuple(told)


def _examined(use: Use, seen: LoaderUse, step: Step, budget: float, progress: Progress) -> LoaderUse:
    loader = use.loader
    if loader is None or use.on_device or use.threaded or not available():
        return seen  # of batches that a thread asks for in advance, or makes on the GPU, nothing follows here
    first = _FIRST * budget
    try:
        fetch = _first_look(loader, first, budget)
    except Stopped as stopped:
        raise _cut(stopped.request, use, seen, stopped.result) from None
    except GaplessError as error:
        return msgspec.structs.replace(seen, notes=(f"it could not be measured: {error}",))
    unused = untouched(use.asked, [one.name for one in fetch.columns])
    seen = msgspec.structs.replace(seen, fetch=fetch, untouched=unused)
    began = time.monotonic()
    seen = msgspec.structs.replace(seen, **_verified(use, fetch, _VERIFIED * budget))
    left = budget - first - (time.monotonic() - began)
    if step.length is None or not step.length.likely or seen.restarted or keeps_up(seen):
        return seen
    progress(seen)
    try:
        return _measured(use, seen, step, max(left, 0.3 * budget))
    except (KeyboardInterrupt, SystemExit) as request:
        raise _cut(request, use, seen, fetch) from None
    except GaplessError as error:
        return msgspec.structs.replace(seen, notes=(*seen.notes, f"it could not be measured: {error}"))


def _first_look(loader: DataLoader, seconds: float, patience: float) -> Fetch:
    """What items cost, by some of them.

    Raises:
        Stopped: on a request to end, with what was measured until then.
    """
    blocked, beside = Blocked(), Others()

    def work(tell: Tell) -> Fetch:
        return measure_items(loader, seconds, tell)

    found = measured(work, Fetch, patience, lambda part: None, blocked, keep=True)
    return msgspec.structs.replace(found, waits=blocked.waits(), others=beside.cores())


def keeps_up(seen: LoaderUse) -> bool:
    """Whether batches are clearly there in time, by what a first look says of them."""
    fetch = seen.fetch
    if fetch is None:
        return False
    least = seen.step.least / seen.per_step
    batch = fetch.cpu + fetch.wait
    if not seen.setting.workers:
        return batch <= _LITTLE * least
    some, each, byte = _RECEIVED
    received = some + each * fetch.tensors + byte * fetch.batch_bytes
    return batch + received <= _EASY * least and received <= _SMALL * least


def _measured(use: Use, seen: LoaderUse, step: Step, budget: float) -> LoaderUse:
    """Measured, predicted for the length of the step that is likely, and for the least and the most."""
    assert use.loader is not None
    assert step.length is not None
    demands = [Demand(step=length / seen.per_step, source="estimate") for length in _lengths(step.length)]
    made = diagnose(use.loader, budget, demands[1].step / 1e9, source="estimate")
    if made.interrupted:
        raise _cut(KeyboardInterrupt(), use, seen, made.fetch)
    refuted = made.doubt is not None and made.doubt.kind == "refuted"
    stands, doubted = not refuted or (_borne_out(made) and step.ranks == 1), False
    if made.doubt is not None:
        why = _doubted(made, made.doubt, stands)
        seen = msgspec.structs.replace(seen, notes=(*seen.notes, why))
        if not stands:
            return msgspec.structs.replace(seen, diagnosis=made)
        # What items compute, and wait for, is known in spite of it.
        doubted, made = not refuted, msgspec.structs.replace(made, doubt=None)
    if (made.machine.others and not refuted) or step.ranks > 1:
        made = predict.again(_shared(made, step.ranks), demands[1])
    elif doubted:
        made = predict.again(made, demands[1])
    each = [made if demand == demands[1] else predict.under(made, demand) for demand in demands]
    leads = _leads(step.length, step)
    late, left = zip(
        *(_late(one, seen.per_step, lead) for one, lead in zip(each, leads, strict=True)), strict=True
    )
    if refuted:
        left = tuple(_left_in_run(made, wait, seen.per_step) for wait in late)
    return msgspec.structs.replace(
        seen,
        diagnosis=made,
        late=Range(late[2], late[1], late[0]),
        left=Range(left[2], left[1], left[0]),
    )


def _doubted(diagnosis: Diagnosis, doubt: Doubt, stands: bool) -> str:
    """What a report says of a prediction that a run refuted, or that no run could check.

    The wait of the loader as it is `stands` where its own run was as predicted.
    """
    reasons = "; ".join(doubt.reasons)
    if doubt.kind != "refuted":
        had = f"other programs used {doubt.others:.1f} of {count(diagnosis.machine.allowed, 'core')}"
        told = had if doubt.others >= trust.BUSY * diagnosis.machine.allowed else reasons
        return f"{told}: the prediction was not checked by a run"
    if not stands:
        return f"no waiting time is reported: {diagnosis.sentence} ({reasons})"
    return f"the recommended setting was run, and its time differed from the prediction ({reasons})"


def _borne_out(diagnosis: Diagnosis) -> bool:
    """Whether the loader as it is took in its run what was predicted for it."""
    return diagnosis.seen is not None and trust.off(diagnosis.seen) <= trust.REFUTED


def _left_in_run(diagnosis: Diagnosis, late: int, per_step: float) -> int:
    """What the setting to take left of a wait when it was run: all of it where it was not clearly faster."""
    seen = diagnosis.seen_advised
    return min(round(seen.wait * per_step), late) if seen is not None and trust.faster(diagnosis) else late


def _lengths(step: Range) -> tuple[int, int, int]:
    return step.least, step.likely, step.most


def _leads(length: Range, step: Step) -> tuple[int, ...]:
    """How long the host has nothing to do in steps of these lengths, and can make batches for the next one.

    A wait may be where it takes all of that away, or where it takes nothing: then the longest of the steps,
    for which the least is said to be lost, has it.
    """
    if step.host is None:
        return (0, 0, 0)
    free = [max(each - step.host, 0) for each in _lengths(length)]
    return tuple(free) if step.waits < 1 else (0, 0, free[2])


def _late(diagnosis: Diagnosis, per_step: float, lead: int) -> tuple[int, int]:
    """How long a training step waits: as it is, and under the setting that is advised."""
    now, then = (
        _exposed(p, per_step, lead) if p is not None else 0 for p in (diagnosis.now, diagnosis.advised)
    )
    return now, then


def _exposed(one: Prediction, per_step: float, lead: int) -> int:
    """What of the wait the GPU notices: without workers, the loop makes batches in the host's own time."""
    wait = round(one.wait * per_step)
    return wait if one.setting.workers else max(wait - lead, 0)


def _shared(diagnosis: Diagnosis, ranks: int) -> Diagnosis:
    """The measurement on a machine that nobody uses but this training, with so many ranks at work on it.

    Who else uses this one at the moment does not use that of the training.
    """
    at = msgspec.structs.replace(
        diagnosis.machine, others=0.0, allowed=max(1, diagnosis.machine.allowed // ranks)
    )
    notes = (f"{ranks} ranks share the cores of this machine",) if ranks > 1 else ()
    return msgspec.structs.replace(diagnosis, machine=at, notes=(*diagnosis.notes, *notes))


def _verified(use: Use, fetch: Fetch, seconds: float) -> dict[str, tuple[Mistake, ...]]:
    """Mistakes in what it yields; none where looking would take too long."""
    assert use.loader is not None
    if isinstance(use.loader.dataset, IterableDataset) and 100 * fetch.item / 1e9 > seconds:
        return {}
    try:
        return {"mistakes": verify_here(use.loader, _ITEMS, seconds).mistakes}
    except (GaplessError, RuntimeError, torch.multiprocessing.ProcessError):
        return {}

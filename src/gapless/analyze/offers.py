"""One recorded run on other GPUs: whether it fits, how long a step takes, what that costs.

The script ran once. What it asked of the allocator and of the GPU in a step is replayed and reckoned for each
GPU; both are the same on another one unless the script asks which GPU it has (`Session.asked`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from gapless.analyze.memory_report import lasts
from gapless.analyze.run.steps import Steps
from gapless.errors import UsageError
from gapless.model import Session
from gapless.model.estimate import Estimate, Range
from gapless.model.gpus import Card, find_card
from gapless.model.loader_use import LoaderUse
from gapless.model.memory import ALLOC, CONTEXT, MemoryRun
from gapless.model.memory_report import MemoryReport
from gapless.model.offer import Offer
from gapless.model.programme import sheet

_HOUR = 3600e9
_MILLION = 1e6


def offers(
    session: Session, steps: Steps, estimate: Estimate | None, memory: Sequence[MemoryReport]
) -> tuple[Offer, ...]:
    """What `session.wanted` asks for: one for each GPU, in that order, the emulated one among them."""
    wanted = session.wanted
    if wanted is None:
        return ()
    prices = {_card(name).name: price for name, price in wanted.prices.items()}
    cards = {card.name: card for card in map(_card, wanted.gpus)}
    found = (_offer(card, session, steps, estimate, memory) for card in cards.values())
    return tuple(_counted(one, prices.get(one.gpu, -1.0)) for one in found)


def _card(name: str) -> Card:
    return find_card(name)


def _offer(
    card: Card,
    session: Session,
    steps: Steps,
    estimate: Estimate | None,
    memory: Sequence[MemoryReport],
) -> Offer:
    own = card.name == session.environment.device
    timed = estimate if own else _elsewhere(card, session, steps)
    found = Offer(gpu=card.name, total=card.total_memory, source=card.source, emulated=own)
    if timed is not None:
        found = msgspec.structs.replace(
            found, step=timed.step, device=timed.device, throughput=timed.throughput, refused=timed.refused
        )
    if not session.memory:
        return found
    room = card.total_memory - CONTEXT
    if own and all(made.limit >= 0 for made in memory):
        parts = [_of_report(made) for made in memory]
    else:
        parts = [_replayed(run, card, session.environment.device, room) for run in session.memory]
    needs, retries = max(one for one, _, _ in parts), max(retries for _, _, retries in parts)
    fits = all(fits for _, fits, _ in parts)
    left = min((more for made in memory if (more := lasts(made, room)) >= 0), default=-1) if fits else -1
    return msgspec.structs.replace(found, has=room, needs=needs, fits=fits, retries=retries, lasts=left)


def _of_report(report: MemoryReport) -> tuple[int, bool, int]:
    if report.lack is not None:
        return report.lack.needs, False, 0
    return report.baseline.peak_reserved, True, report.baseline.retries


def _replayed(run: MemoryRun, card: Card, recorded_on: str, room: int) -> tuple[int, bool, int]:
    """Bytes that it needs there, whether it fits, and how many requests find the GPU full."""
    from gapless.memory.fits import fits
    from gapless.memory.trials import TrialConditions

    found = fits(with_workspaces(run, recorded_on, card), TrialConditions(room, card.total_memory))
    return found.needs, found.fits, found.retries


def with_workspaces(run: MemoryRun, recorded_on: str, card: Card) -> MemoryRun:
    """`run` with the workspaces that torch gives cuBLAS on `card`, where it had the default ones."""
    try:
        before = find_card(recorded_on).workspace
    except UsageError:
        return run
    if before == card.workspace:
        return run
    workspaces = {at for at, place in enumerate(run.places) if place.kind == "workspace"}
    sizes = tuple(
        card.workspace if action == ALLOC and place in workspaces and size == before else size
        for action, place, size in zip(run.action, run.place, run.size, strict=True)
    )
    return msgspec.structs.replace(run, size=sizes, gpu=card.name)


def _elsewhere(card: Card, session: Session, steps: Steps) -> Estimate | None:
    """The estimate of the same programme on `card`, by its data sheet."""
    programme = session.programme
    if programme is None:
        return None
    from gapless.analyze.estimate.estimate import estimate

    gpu = sheet(card)
    if programme.link:
        gpu = msgspec.structs.replace(gpu, link=programme.link)
    moved = msgspec.structs.replace(programme, gpu=gpu, calibration=None)
    return estimate(msgspec.structs.replace(session, programme=moved), steps, {})


def _counted(one: Offer, price: float) -> Offer:
    """`one` with what it counts, samples or tokens, and with the price of an hour."""
    done = one.throughput
    unit = "" if done is None else "tokens" if done.tokens else "samples" if done.samples else ""
    return msgspec.structs.replace(one, unit=unit, price=price)


def with_costs(
    found: Iterable[Offer], uses: Sequence[LoaderUse], estimate: Estimate | None, steps: int
) -> tuple[Offer, ...]:
    """`found` with what a step waits for its batches, and what its work costs with that: a million samples,
    an epoch where a loader of the steps tells how long one is, and all `steps` of the run (0: not known)."""
    epoch = max((use.length / use.per_step for use in uses if use.per_step and use.length > 0), default=0.0)
    return tuple(_priced(_waiting(one, estimate), epoch, steps) for one in found)


def _waiting(one: Offer, estimate: Estimate | None) -> Offer:
    """`one` with its steps' wait for batches, which are made on the same CPU as those of `estimate`."""
    if estimate is None or not estimate.waiting.likely or not one.step.likely:
        return one
    if one.emulated or not estimate.overlapped:
        return msgspec.structs.replace(one, waiting=estimate.waiting)
    batch = estimate.whole.likely  # workers need so long for a batch, however long the step is
    late = Range(*(max(batch - length, 0) for length in (one.step.most, one.step.likely, one.step.least)))
    return msgspec.structs.replace(one, waiting=late)


def _priced(one: Offer, epoch: float, steps: int) -> Offer:
    if one.price < 0 or not one.step.likely:
        return one
    each = one.whole.likely / _HOUR * one.price
    return msgspec.structs.replace(
        one,
        cost=_MILLION / one.each * each if one.each else -1.0,
        epoch=epoch * each if epoch else -1.0,
        run=steps * each if steps else -1.0,
    )

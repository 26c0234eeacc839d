"""Estimate one recorded run on other GPUs: whether it fits, how long a step takes, what that costs.

The script ran once. Its memory requests and GPU work are replayed for each GPU; they are the same on all of
them unless the script asks which GPU it has (`Session.asked`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from gapless.analyze.memory_report import lasts
from gapless.analyze.run.steps import RunSteps
from gapless.errors import UsageError
from gapless.model import Session
from gapless.model.estimate import Estimate, Range
from gapless.model.gpus import Card, find_card
from gapless.model.loader_use import LoaderUse
from gapless.model.memory import ALLOC, CONTEXT_BYTES, MemoryRun
from gapless.model.memory_report import MemoryReport
from gapless.model.offer import Offer
from gapless.model.programme import gpu_limits

_HOUR_NS = 3600e9
"""Nanoseconds per hour: prices are per hour."""
_SAMPLES_PRICED = 1e6
"""Samples or tokens that the cost is for."""


def offers(
    session: Session, steps: RunSteps, estimate: Estimate | None, memory: Sequence[MemoryReport]
) -> tuple[Offer, ...]:
    """Return an offer for each GPU in `session.wanted`, in that order, the emulated one among them."""
    wanted = session.wanted
    if wanted is None:
        return ()
    prices = {find_card(name).name: price for name, price in wanted.prices.items()}
    cards = {card.name: card for card in map(find_card, wanted.gpus)}
    results = (_offer(card, session, steps, estimate, memory) for card in cards.values())
    return tuple(_with_unit_and_price(offer, prices.get(offer.gpu, -1.0)) for offer in results)


def _offer(
    card: Card,
    session: Session,
    steps: RunSteps,
    estimate: Estimate | None,
    memory: Sequence[MemoryReport],
) -> Offer:
    """Return step, memory and fit of the run on `card`; the emulated card uses the run's own report."""
    own = card.name == session.environment.device
    timed = estimate if own else _estimate_on(card, session, steps)
    offer = Offer(gpu=card.name, total=card.total_memory, source=card.source, emulated=own)
    if timed is not None:
        offer = msgspec.structs.replace(
            offer, step=timed.step, device=timed.device, throughput=timed.throughput, refused=timed.refused
        )
    if not session.memory:
        return offer
    room = card.total_memory - CONTEXT_BYTES
    if own and all(report.limit >= 0 for report in memory):
        parts = [_need_of_report(report) for report in memory]
    else:
        parts = [_need_of_replay(run, card, session.environment.device, room) for run in session.memory]
    needs, retries = max(size for size, _, _ in parts), max(retries for _, _, retries in parts)
    fits = all(fits for _, fits, _ in parts)
    left = min((more for report in memory if (more := lasts(report, room)) >= 0), default=-1) if fits else -1
    return msgspec.structs.replace(offer, has=room, needs=needs, fits=fits, retries=retries, lasts=left)


def _need_of_report(report: MemoryReport) -> tuple[int, bool, int]:
    """Return bytes needed, whether the recorded run fits, and its retries."""
    if report.lack is not None:
        return report.lack.needs, False, 0
    return report.baseline.peak_reserved, True, report.baseline.retries


def _need_of_replay(run: MemoryRun, card: Card, recorded_on: str, room: int) -> tuple[int, bool, int]:
    """Replay `run` on `card`; return bytes needed, whether it fits, and requests that find the GPU full."""
    from gapless.memory.fits import fits
    from gapless.memory.trials import TrialConditions

    fit = fits(with_workspaces(run, recorded_on, card), TrialConditions(room, card.total_memory))
    return fit.needs, fit.fits, fit.retries


def with_workspaces(run: MemoryRun, recorded_on: str, card: Card) -> MemoryRun:
    """Return `run` with the cuBLAS workspaces that torch allocates on `card`, if it had the default ones."""
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


def _estimate_on(card: Card, session: Session, steps: RunSteps) -> Estimate | None:
    """Estimate the session's program on `card` from its data sheet; None if it recorded no program."""
    programme = session.programme
    if programme is None:
        return None
    from gapless.analyze.estimate.estimate import estimate

    gpu = gpu_limits(card)
    if programme.link:
        gpu = msgspec.structs.replace(gpu, link=programme.link)
    moved = msgspec.structs.replace(programme, gpu=gpu, calibration=None)
    return estimate(msgspec.structs.replace(session, programme=moved), steps)


def _with_unit_and_price(offer: Offer, price: float) -> Offer:
    """Return `offer` with its unit, samples or tokens, and the price per hour."""
    done = offer.throughput
    unit = "" if done is None else "tokens" if done.tokens else "samples" if done.samples else ""
    return msgspec.structs.replace(offer, unit=unit, price=price)


def with_costs(
    offers: Iterable[Offer], uses: Sequence[LoaderUse], estimate: Estimate | None, steps: int
) -> tuple[Offer, ...]:
    """Return `offers` with the wait for batches and the cost of a million samples, an epoch and the run.

    An epoch has a cost if a loader of the steps has a length; the run if `steps` is known (not 0).
    """
    epoch = max((use.length / use.per_step for use in uses if use.per_step and use.length > 0), default=0.0)
    return tuple(_with_cost(_with_waiting(offer, estimate), epoch, steps) for offer in offers)


def _with_waiting(offer: Offer, estimate: Estimate | None) -> Offer:
    """Return `offer` with the wait for batches, which are made on the same CPU as those of `estimate`."""
    if estimate is None or not estimate.waiting.likely or not offer.step.likely:
        return offer
    if offer.emulated or not estimate.overlapped:
        return msgspec.structs.replace(offer, waiting=estimate.waiting)
    batch = estimate.whole.likely  # workers need this long per batch on any GPU
    late = Range(
        *(max(batch - length, 0) for length in (offer.step.most, offer.step.likely, offer.step.least))
    )
    return msgspec.structs.replace(offer, waiting=late)


def _with_cost(offer: Offer, epoch: float, steps: int) -> Offer:
    """Return `offer` with the cost of a million samples, an epoch of `epoch` steps, and all `steps`."""
    if offer.price < 0 or not offer.step.likely:
        return offer
    each = offer.whole.likely / _HOUR_NS * offer.price
    return msgspec.structs.replace(
        offer,
        cost=_SAMPLES_PRICED / offer.each * each if offer.each else -1.0,
        epoch=epoch * each if epoch else -1.0,
        run=steps * each if steps else -1.0,
    )

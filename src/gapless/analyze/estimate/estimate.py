"""`estimate`: what a step takes on the emulated GPU, and what each wait costs there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from gapless.analyze.estimate.communication import assumed, communication
from gapless.analyze.estimate.machine import Run, run
from gapless.analyze.estimate.steps import Step, arrivals, chosen, recorded
from gapless.analyze.estimate.throughput import throughput
from gapless.analyze.estimate.timing import Times, times_of
from gapless.analyze.profile.pricing import removal
from gapless.analyze.steps import Steps
from gapless.model import Session, Site
from gapless.model.estimate import Estimate, Range
from gapless.model.profile import Price, Prices
from gapless.model.programme import Calibration, Programme
from gapless.replay.model import Refusal, build
from gapless.replay.price import Prices as Replayed
from gapless.replay.price import prices

UNKNOWN_MOST = 0.3
"""The share of the device's time that operators without a known cost may have."""
FAR = 0.25
"""How far a calibrated step may be from the profile's own before the prices are bounds."""

_NO_TIME = "communication between ranks"

Groups = Mapping[int, Sequence[int]]
"""For each finding that is to be priced the numbers of its sites in `Session.sites`."""


@dataclass(frozen=True)
class _Priced:
    """One machine's answer, per step."""

    step: int
    device: int
    host: int
    found: Replayed[int]
    count: int

    def of(self, value: int) -> int:
        return round(value / self.count)


def estimate(session: Session, steps: Steps, groups: Groups) -> Estimate | None:
    """The estimate for a session, with a price for each of `groups`; None where nothing was recorded."""
    programme = session.programme
    if programme is None or not session.environment.emulated:
        return None
    gpu = programme.gpu.name
    if not steps.seen:
        return Estimate(gpu=gpu, refused="the run took no training step")
    if programme.truncated:
        return Estimate(gpu=gpu, refused="a step holds more operators than are recorded")
    whole = recorded(programme, steps)
    if not whole:
        return Estimate(gpu=gpu, refused="no steady step was recorded whole")
    order = chosen(whole)
    times = times_of(programme)
    if not any(entry.kind == "operator" for step in order for entry in step):
        return Estimate(gpu=gpu, refused="the steps launch nothing on the GPU")
    unknown = times.unknown(order)
    if unknown > UNKNOWN_MOST:
        return Estimate(
            gpu=gpu, refused=f"operators whose cost is not known would take {unknown:.0%} of the GPU's time"
        )
    answers = [_priced(programme, order, groups, times.with_factors(*pair)) for pair in times.factors]
    found = _told(session, programme, groups, times, answers, len(whole), order)
    done = throughput(order, arrivals(programme, steps), times)
    if found.refused:
        return found
    return _joined(msgspec.structs.replace(found, throughput=done), order, programme)


def _joined(found: Estimate, order: Sequence[Step], programme: Programme) -> Estimate:
    """`found` with the time that collectives take: hidden as far as may be, and not at all at the most."""
    if not any(entry.kind == "collective" for step in order for entry in step):
        return found
    time = communication(order, programme)
    step = Range(found.step.least, max(found.step.likely, time), found.step.most + time)
    rest = (one for one in found.assumptions if not one.startswith(_NO_TIME))
    told = (*rest, assumed(time, programme)) if time else found.assumptions
    return msgspec.structs.replace(found, step=step, communication=time, assumptions=told)


def _priced(programme: Programme, order: Sequence[Step], groups: Groups, times: Times) -> _Priced | str:
    """The programme on one machine. A step before and one after those that are priced keep their waits: the
    first of a run has nothing to wait for yet, and the last nothing to hold up."""
    timed = [[times.timed(entry) for entry in step] for step in (order[-1], *order, order[0])]
    ran = run(timed, programme.gpu, times.host)
    model = build(ran.timeline)
    if isinstance(model, Refusal):
        return model.reason
    found = prices(model, {key: _rows(ran, sites) for key, sites in groups.items()})
    count = len(timed)
    return _Priced(
        step=round(found.span / count),
        device=round(ran.busy / count),
        host=round(ran.host / count),
        found=found,
        count=len(order),
    )


def _rows(ran: Run, sites: Sequence[int]) -> list[int]:
    """The host rows of these sites' waits in the steps that are priced."""
    return [row for step in ran.waits[1:-1] for site in sites for row in step.get(site, ())]


def _told(
    session: Session,
    programme: Programme,
    groups: Groups,
    times: Times,
    answers: Sequence[_Priced | str],
    looked_at: int,
    order: Sequence[Step],
) -> Estimate:
    likely = answers[0]
    if not isinstance(likely, _Priced):
        return Estimate(gpu=programme.gpu.name, refused=likely)
    good = [one for one in answers if isinstance(one, _Priced)]
    spans = [one.step for one in good]
    saved = [one.of(one.found.all) for one in good]
    measured = programme.calibration
    return Estimate(
        gpu=(measured.gpu if measured is not None else "") or programme.gpu.name,
        step=Range(min(spans), likely.step, max(spans)),
        device=likely.device,
        host=likely.host,
        prices=_prices(session, groups, likely, good),
        saved=Range(min(saved), saved[0], max(saved)),
        looked_at=looked_at,
        calibrated=times.calibrated,
        covered=times.covered(order),
        assumptions=_assumptions(session, programme, times, order),
        reasons=tuple(_reasons(likely, measured)),
    )


def _prices(session: Session, groups: Groups, likely: _Priced, good: Sequence[_Priced]) -> Prices:
    found, keys = likely.found, list(groups)
    return Prices(
        span=likely.step,
        all=likely.of(found.all),
        least_all=min(one.of(one.found.all) for one in good),
        each=tuple(_price(key, [session.sites[site] for site in groups[key]], likely, good) for key in keys),
        shortest=tuple(keys.index(key) for key in found.shortest),
        saved=tuple(likely.of(one) for one in found.saved),
        limiter=found.limiter,
        remains=found.remains,
        span_error=found.fidelity.span_error,
        drift=found.fidelity.drift,
        explained=found.fidelity.explained,
        wait_error=found.fidelity.wait_error,
    )


def _reasons(likely: _Priced, measured: Calibration | None) -> Iterator[str]:
    """Why the numbers are bounds."""
    yield from likely.found.fidelity.reasons
    if measured is None and likely.found.limiter == "host":
        yield "the host is the limit, and how fast yours is was not measured"
    if measured is not None and measured.step > 0:
        off = likely.step / measured.step - 1
        if abs(off) > FAR:
            yield f"a step comes out {off:+.0%} off the {measured.step / 1e6:.3g} ms of the profile's own"


def _price(key: int, sites: Sequence[Site], likely: _Priced, good: Sequence[_Priced]) -> Price:
    one = likely.found.each[key]
    alone = [answer.of(answer.found.each[key].alone) for answer in good]
    last = [answer.of(answer.found.each[key].last) for answer in good]
    return Price(
        alone=alone[0],
        last=last[0],
        least_alone=min(alone),
        least_last=min(last),
        most_alone=max(alone),
        most_last=max(last),
        blocked=likely.of(one.blocked),
        waits=one.waits,
        kept=one.kept,
        removal=removal(sites),
        estimated=True,
    )


def _assumptions(
    session: Session, programme: Programme, times: Times, order: Sequence[Step]
) -> tuple[str, ...]:
    told = list(times.assumptions(order))
    told.append("every batch is there in time, and Python does no more between operators than is usual")
    if session.environment.world_size > 1:
        told.append(f"{_NO_TIME} takes no time")
    if programme.threads:
        told.append("what other threads launch is left out")
    return tuple(told)

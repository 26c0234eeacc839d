"""`estimate`: what a step takes on the emulated GPU, and what each wait costs there."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from gapless.analyze.estimate.collective_times import Moving, assumed, communication
from gapless.analyze.estimate.draws import APART, interval, normal, paces, shares
from gapless.analyze.estimate.fusion import ASSUMED, DOUBT, as_compiled, fused, launches
from gapless.analyze.estimate.joined_optimizers import is_worth_joining, joined
from gapless.analyze.estimate.machine import SHALLOW, Run, modelled, run
from gapless.analyze.estimate.programme_steps import Step, arrivals, chosen, left_out, recorded
from gapless.analyze.estimate.throughput import throughput
from gapless.analyze.estimate.timing import Times, times_of
from gapless.analyze.profile.pricing import hardest_removal
from gapless.analyze.run.steps import Steps
from gapless.model import Session, Site
from gapless.model.estimate import BATCHES_IN_TIME, Compiling, Estimate, Range
from gapless.model.optimizer import Joined, OptimizerUse
from gapless.model.profile import Price, Prices
from gapless.model.programme import MOST_ITEMS, Calibration, Programme
from gapless.model.source import SourceLine
from gapless.replay.change import Change
from gapless.replay.model import Refusal
from gapless.replay.price import Prices as Replayed
from gapless.replay.price import Savings, prices, savings_of

UNKNOWN_MOST = 0.3
"""The share of the device's time that operators without a known cost may have."""
FAR = 0.25
"""How far a calibrated step may be from the profile's own before the prices are bounds."""

_NO_TIME = "communication between ranks"

Groups = Mapping[int, Sequence[int]]
"""For each finding that is to be priced the numbers of its sites in `Session.sites`."""


@dataclass(frozen=True)
class _Priced:
    """The likely machine's answer, and those of machines that are drawn: per step, `count` of which are
    priced; `whole` is what the priced ones and those around them are. With a queue of `SHALLOW` launches,
    syncs block the host for a `shallow` part of the time that they do so otherwise."""

    step: int
    device: int
    host: int
    found: Replayed[int]
    drawn: Sequence[Savings[int]]
    count: int
    whole: int
    shallow: float

    def of(self, value: int) -> int:
        return round(value / self.count)

    def reach(self, likely: int, drawn: Callable[[Savings[int]], int]) -> Range:
        """What is saved of a step, in the likely machine and in the drawn ones."""
        return interval(likely / self.count, [drawn(one) / self.count for one in self.drawn])

    @property
    def blocked(self) -> Range:
        """How long syncs block the host in a step; what a queue does not hold does so in launches."""
        found = self.reach(self.found.blocked, lambda one: one.blocked)
        return Range(round(found.least * self.shallow), found.likely, found.most)

    @property
    def steps(self) -> list[float]:
        """The length of a step in each of the drawn machines."""
        return [one.span / self.whole for one in self.drawn]


def estimate(session: Session, steps: Steps, groups: Groups, what_if: bool = False) -> Estimate | None:
    """The estimate for a session, with a price for each of `groups`; None where nothing was recorded. With
    `what_if` also what compiling would make of a step."""
    programme = session.programme
    if programme is None or not session.environment.emulated:
        return None
    gpu = programme.gpu.name
    if not steps.seen:
        return Estimate(gpu=gpu, refused="the run took no training step")
    whole = recorded(programme, steps)
    if not whole:
        bound = f": no more than {MOST_ITEMS:,} operators of one are kept" if programme.truncated else ""
        return Estimate(gpu=gpu, refused=f"no steady step was recorded whole{bound}")
    eager = chosen(whole)
    order = [fused(step) for step in eager]
    times = times_of(programme, session.memory)
    if not any(entry.kind == "operator" for step in order for entry in step):
        return Estimate(gpu=gpu, refused="the steps launch nothing on the GPU")
    unknown = times.unknown(order)
    if unknown > UNKNOWN_MOST:
        return Estimate(
            gpu=gpu, refused=f"operators whose cost is not known would take {unknown:.0%} of the GPU's time"
        )
    compiled = any(entry.compiled for step in eager for entry in step)
    # Of compiled code so many launches more or fewer.
    doubt = math.hypot(times.host_doubt, DOUBT if compiled else 0.0)
    answer = _priced(programme, order, groups, times, doubt)
    if isinstance(answer, str):
        return Estimate(gpu=gpu, refused=answer)
    found = _told(session, programme, groups, times, answer, len(whole), order)
    missing = left_out(programme, steps)
    if missing:
        plural = "step" if missing == 1 else "steps"
        told = f"{missing} {plural} of more than {MOST_ITEMS:,} operators left out"
        found = msgspec.structs.replace(found, assumptions=(*found.assumptions, told))
    return msgspec.structs.replace(
        found,
        throughput=throughput(eager, arrivals(programme, steps), times),
        launches=launches(order),
        eager=launches(eager) if compiled else 0.0,
        compiling=_compiling(programme, eager, groups, times, answer) if what_if else None,
        optimizers=tuple(_optimizers(session.optimizers, programme, eager, times, answer, doubt)),
    )


def _optimizers(
    uses: Sequence[OptimizerUse],
    programme: Programme,
    eager: Sequence[Step],
    times: Times,
    now: _Priced,
    doubt: float,
) -> Iterator[OptimizerUse]:
    """`uses`, with what a step would be if each of them took its parameters together."""
    for number, use in enumerate(uses):
        found = None
        if is_worth_joining(use):
            order = [fused(joined(step, number, use)) for step in eager]
            answer = _priced(programme, order, {}, times, doubt)
            if not isinstance(answer, str):
                saved = [one - other for one, other in zip(now.steps, answer.steps, strict=True)]
                found = Joined(
                    way=use.better_way,
                    groups=use.settings,
                    before=now.step,
                    step=interval(answer.step, answer.steps),
                    saved=interval(now.step - answer.step, saved),
                )
        yield msgspec.structs.replace(use, joined=found)


def _compiling(
    programme: Programme, eager: Sequence[Step], groups: Groups, times: Times, now: _Priced
) -> Compiling | None:
    """What a step would be if all but its optimizer were compiled, on the same machines as now."""
    order = [fused(as_compiled(step)) for step in eager]
    answer = _priced(programme, order, groups, times, times.host_doubt)
    if isinstance(answer, str):
        return None
    fewer = np.exp(DOUBT * normal("fusion", len(now.steps)))
    machines = zip(now.steps, answer.steps, fewer, strict=True)
    saved = [min((one - other) * factor, one) for one, other, factor in machines]
    return Compiling(
        launches=launches(order),
        step=interval(answer.step, [one - less for one, less in zip(now.steps, saved, strict=True)]),
        saved=interval(now.step - answer.step, saved),
    )


def _uncalibrated(programme: Programme, order: Sequence[Step]) -> int:
    """The length of a step without the profile that times are from; -1 where they are from none."""
    if programme.calibration is None:
        return -1
    plain = msgspec.structs.replace(programme, calibration=None)
    times = times_of(plain)
    timed = [[times.timed(entry) for entry in step] for step in order]
    answer = modelled(timed, plain.gpu, times.host)
    return -1 if isinstance(answer, Refusal) else round(answer[1].span() / len(order))


def _limits(answer: _Priced, moving: Moving) -> tuple[Range, dict[str, float]]:
    """A step's length, and the share of machines in which each thing limits it, the largest first.

    Collectives that the GPU's work waits for at once come on top of it; of the others anything between all
    and nothing is hidden behind everything else, and half in the likely machine.
    """
    hidden, slower = shares(len(answer.steps)), np.exp(moving.doubt * normal("links", len(answer.steps)))
    steps, limiters = [], []
    for step, one, apart, factor in zip(answer.steps, answer.drawn, hidden, slower, strict=True):
        work, rest = _behind_collectives(step, one.limiter, moving, factor)
        steps.append(max(work, rest) + apart * min(work, rest))
        limiters.append("communication" if moving.time * factor > step else one.limiter)
    likely = "communication" if moving.time > answer.step else answer.found.limiter
    counted = Counter(limiters or [likely])
    order = sorted(counted, key=lambda name: (counted[name], name == likely), reverse=True)
    work, rest = _behind_collectives(answer.step, answer.found.limiter, moving, 1.0)
    middle = max(work, rest) + APART * min(work, rest)
    return interval(middle, steps), {name: counted[name] / counted.total() for name in order}


def _behind_collectives(step: float, limiter: str, moving: Moving, factor: float) -> tuple[float, float]:
    """A step with the collectives in it that are waited for at once, and what the others take.

    Where the host is late the GPU idles for long enough to have time for them.
    """
    exposed = moving.exposed * factor
    work = max(step, exposed) if limiter == "host" else step + exposed
    return work, max(moving.time, 0) * factor - exposed


def _priced(
    programme: Programme, order: Sequence[Step], groups: Groups, times: Times, doubt: float
) -> _Priced | str:
    """The programme on the likely machine and on others. A step before and one after those that are priced
    keep their waits: the first of a run has nothing to wait for yet, and the last nothing to hold up."""
    timed = [[times.timed(entry) for entry in step] for step in (order[-1], *order, order[0])]
    answer = modelled(timed, programme.gpu, times.host)
    if isinstance(answer, Refusal):
        return answer.reason
    ran, model = answer
    rows = {key: _rows(ran, sites) for key, sites in groups.items()}
    found = prices(model, rows)
    asked = [ran.asked[one] for one in ran.timeline.work.correlation.tolist()]
    drawn = paces(asked, times.doubt, doubt)
    count = len(timed)
    waits = bool(groups) and ran.held > 0
    shallow = run(timed, programme.gpu, times.host, SHALLOW).held / ran.held if waits else 1.0
    return _Priced(
        step=round(found.span / count),
        device=round(ran.busy / count),
        host=round(ran.host / count),
        found=found,
        drawn=savings_of(model, rows, [Change(pace=pace) for pace in drawn], found.each),
        count=len(order),
        whole=count,
        shallow=shallow,
    )


def _rows(ran: Run, sites: Sequence[int]) -> list[int]:
    """The host rows of these sites' waits in the steps that are priced."""
    return [row for step in ran.waits[1:-1] for site in sites for row in step.get(site, ())]


def _told(
    session: Session,
    programme: Programme,
    groups: Groups,
    times: Times,
    answer: _Priced,
    looked_at: int,
    order: Sequence[Step],
) -> Estimate:
    collective = any(entry.kind == "collective" for step in order for entry in step)
    moving = communication(order, programme) if collective else Moving()
    step, limiters = _limits(answer, moving)
    limiter, sure = next(iter(limiters.items()))
    measured = programme.calibration
    told = _assumptions(session, programme, times, order)
    if moving.time > 0:
        told = (*(one for one in told if not one.startswith(_NO_TIME)), assumed(moving, programme))
    return Estimate(
        gpu=(measured.gpu if measured is not None else "") or programme.gpu.name,
        step=step,
        device=answer.device,
        host=answer.host,
        prices=msgspec.structs.replace(_prices(session, groups, answer), limiter=limiter),
        blocked=answer.blocked,
        saved=answer.reach(answer.found.all, lambda one: one.all),
        looked_at=looked_at,
        calibrated=times.calibrated,
        covered=times.covered(order),
        assumptions=told,
        reasons=tuple(_reasons(answer, measured)),
        communication=moving.time,
        limiter=limiter,
        sure=sure,
        limiters=limiters,
        speed=times.speed,
        uncalibrated=_uncalibrated(programme, order),
        profiled=measured.step if measured is not None else -1,
    )


def _prices(session: Session, groups: Groups, answer: _Priced) -> Prices:
    found, keys = answer.found, list(groups)
    return Prices(
        span=answer.step,
        all=answer.of(found.all),
        least_all=answer.reach(found.all, lambda one: one.all).least,
        each=tuple(_price(key, [session.sites[site] for site in groups[key]], answer) for key in keys),
        shortest=tuple(keys.index(key) for key in found.shortest),
        saved=tuple(answer.of(one) for one in found.saved),
        limiter=found.limiter,
        remains=found.remains,
        span_error=found.fidelity.span_error,
        drift=found.fidelity.drift,
        explained=found.fidelity.explained,
        wait_error=found.fidelity.wait_error,
    )


def _reasons(answer: _Priced, measured: Calibration | None) -> Iterator[str]:
    """Why the numbers are bounds."""
    yield from answer.found.fidelity.reasons
    if measured is not None and measured.step > 0:
        off = answer.step / measured.step - 1
        if abs(off) > FAR:
            yield f"a step comes out {off:+.0%} off the {measured.step / 1e6:.3g} ms of the profile's own"


def _price(key: int, sites: Sequence[Site], answer: _Priced) -> Price:
    one = answer.found.each[key]
    alone = answer.reach(one.alone, lambda drawn: drawn.alone[key])
    last = answer.reach(one.last, lambda drawn: drawn.last[key])
    return Price(
        alone=alone.likely,
        last=last.likely,
        least_alone=alone.least,
        least_last=last.least,
        most_alone=alone.most,
        most_last=last.most,
        blocked=answer.of(one.blocked),
        waits=one.waits,
        kept=one.kept,
        removal=hardest_removal(sites),
        estimated=True,
    )


def _set_up(libraries: dict[str, SourceLine]) -> str:
    """Three public programs were seen to wait there, for a copy to the GPU; too few to count as a sync."""
    named = " and ".join(f"{name} ({line.short})" for name, line in libraries.items())
    one = len(libraries) == 1
    return f"no sync where {named} {'is' if one else 'are'} set up, at the first call, which can wait once"


def _assumptions(
    session: Session, programme: Programme, times: Times, order: Sequence[Step]
) -> tuple[str, ...]:
    told = list(times.assumptions(order))
    told += [BATCHES_IN_TIME, "Python does no more between operators than is usual"]
    if session.environment.world_size > 1:
        told.append(f"{_NO_TIME} takes no time")
    if any(entry.compiled for step in order for entry in step):
        told.append(ASSUMED)
    if programme.threads:
        told.append("what other threads launch is left out")
    if programme.libraries:
        told.append(_set_up(programme.libraries))
    return tuple(told)

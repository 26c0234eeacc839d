"""Estimate how long a step takes on the emulated GPU, and what each wait costs there."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from gapless.analyze.estimate.collective_times import (
    CommunicationTime,
    communication_time,
    describe_assumptions,
)
from gapless.analyze.estimate.draws import MEDIAN_SHARE, draw_machines, draw_normal, draw_shares, interval
from gapless.analyze.estimate.fusion import ASSUMPTION, COUNT_SPREAD, compile_step, count_kernels, fuse
from gapless.analyze.estimate.joined_optimizers import is_worth_joining, join_updates
from gapless.analyze.estimate.machine import MIN_QUEUE_DEPTH, MachineRun, run_and_model, run_steps
from gapless.analyze.estimate.programme_steps import (
    Step,
    arrived_tensors,
    choose_steps,
    count_left_out,
    recorded_steps,
)
from gapless.analyze.estimate.removals import ride
from gapless.analyze.estimate.throughput import measure_throughput
from gapless.analyze.estimate.timing import Times, times_of
from gapless.analyze.estimate.together import NOTHING, PlaceGroup, ToPrice
from gapless.analyze.profile.pricing import hardest_removal
from gapless.analyze.run.steps import RunSteps
from gapless.model import Session, Site
from gapless.model.estimate import BATCHES_IN_TIME, Compiling, Estimate, PlaceSaving, Range
from gapless.model.optimizer import Joined, OptimizerUse
from gapless.model.profile import Price, Prices
from gapless.model.programme import MAX_ITEMS, Calibration, Programme
from gapless.model.source import SourceLine
from gapless.replay.change import ReplayChange
from gapless.replay.model import ReplayRefusal
from gapless.replay.price import GroupPrices as Replayed
from gapless.replay.price import GroupSavings, SavingsBounds, group_savings_between, price_groups
from gapless.replay.riders import Rider

MAX_UNKNOWN_SHARE = 0.3
"""Share of the device's time above which operators without a known cost make an estimate useless."""
MAX_CALIBRATION_ERROR = 0.25
"""Relative error of a calibrated step against its profile from which on prices are only bounds."""

_NO_TIME = "communication between ranks"


@dataclass(frozen=True)
class _Answer:
    """The results of the likely machine and of drawn ones. `count` steps are priced, `whole` steps are run,
    with one before and one after. `launches` counts for each site what goes with its waits. With a queue of
    `MIN_QUEUE_DEPTH` launches, syncs block the host for a share `shallow` of the usual time."""

    step: int
    device: int
    host: int
    replayed: Replayed[int]
    drawn: SavingsBounds[int]
    count: int
    whole: int
    shallow: float
    launches: Counter[int]

    def per_step(self, value: int) -> int:
        return round(value / self.count)

    def reach(self, likely: int, drawn: Callable[[GroupSavings[int]], int]) -> Range:
        """Return what is saved per step, in the likely machine and in the drawn ones: there at least if the
        CPU launches what it did, and at most without all that may go with the waits."""
        least, most = (
            [drawn(savings) / self.count for savings in bound]
            for bound in (self.drawn.least, self.drawn.most)
        )
        return interval(likely / self.count, least, most)

    @property
    def blocked(self) -> Range:
        """How long syncs block the host per step; a full queue makes launches block instead."""
        usual = self.reach(self.replayed.blocked, lambda savings: savings.blocked)
        return Range(round(usual.least * self.shallow), usual.likely, usual.most)

    @property
    def steps(self) -> list[float]:
        """The length of a step in each of the drawn machines."""
        return [savings.span / self.whole for savings in self.drawn.least]


def estimate(
    session: Session,
    steps: RunSteps,
    priced: ToPrice = NOTHING,
    what_if: bool = False,
) -> Estimate | None:
    """Estimate a session's steps, with the prices of `priced`; None if nothing was recorded. With `what_if`
    also the effect of compiling."""
    programme = session.programme
    if programme is None or not session.environment.emulated:
        return None
    gpu = programme.gpu.name
    if not steps.seen:
        return Estimate(gpu=gpu, refused="the run took no training step")
    whole = recorded_steps(programme, steps)
    if not whole:
        bound = f": no more than {MAX_ITEMS:,} operators of one are kept" if programme.truncated else ""
        return Estimate(gpu=gpu, refused=f"no steady step was recorded whole{bound}")
    eager = choose_steps(whole)
    order = [fuse(step) for step in eager]
    times = times_of(programme, session.memory)
    if not any(entry.kind == "operator" for step in order for entry in step):
        return Estimate(gpu=gpu, refused="the steps launch nothing on the GPU")
    unknown = times.unknown(order)
    if unknown > MAX_UNKNOWN_SHARE:
        return Estimate(
            gpu=gpu, refused=f"operators whose cost is not known would take {unknown:.0%} of the GPU's time"
        )
    compiled = any(entry.compiled for step in eager for entry in step)
    # The number of launches of compiled code is itself uncertain.
    doubt = math.hypot(times.host_doubt, COUNT_SPREAD if compiled else 0.0)
    answer = _run_and_price(programme, order, priced, times, doubt)
    if isinstance(answer, str):
        return Estimate(gpu=gpu, refused=answer)
    estimate_ = _describe(session, programme, priced, times, answer, len(whole), order)
    missing = count_left_out(programme, steps)
    if missing:
        plural = "step" if missing == 1 else "steps"
        sentence = f"{missing} {plural} of more than {MAX_ITEMS:,} operators left out"
        estimate_ = msgspec.structs.replace(estimate_, assumptions=(*estimate_.assumptions, sentence))
    return msgspec.structs.replace(
        estimate_,
        throughput=measure_throughput(eager, arrived_tensors(programme, steps), times),
        launches=count_kernels(order),
        eager=count_kernels(eager) if compiled else 0.0,
        compiling=_compiling(programme, eager, times, answer) if what_if else None,
        optimizers=tuple(_joined_optimizers(session.optimizers, programme, eager, times, answer, doubt)),
        places=tuple(_place_savings(priced.places, answer)),
    )


def _joined_optimizers(
    uses: Sequence[OptimizerUse],
    programme: Programme,
    eager: Sequence[Step],
    times: Times,
    now: _Answer,
    doubt: float,
) -> Iterator[OptimizerUse]:
    """Yield `uses`, with the step's length if each optimizer updated its parameters together."""
    for number, use in enumerate(uses):
        joined_ = None
        if is_worth_joining(use):
            order = [fuse(join_updates(step, number, use)) for step in eager]
            answer = _run_and_price(programme, order, NOTHING, times, doubt)
            if not isinstance(answer, str):
                saved = [before - after for before, after in zip(now.steps, answer.steps, strict=True)]
                joined_ = Joined(
                    way=use.better_way,
                    groups=use.settings,
                    before=now.step,
                    step=interval(answer.step, answer.steps),
                    saved=interval(now.step - answer.step, saved),
                )
        yield msgspec.structs.replace(use, joined=joined_)


def _compiling(programme: Programme, eager: Sequence[Step], times: Times, now: _Answer) -> Compiling | None:
    """Estimate a step with all but its optimizer compiled, on the same drawn machines."""
    order = [fuse(compile_step(step)) for step in eager]
    answer = _run_and_price(programme, order, NOTHING, times, times.host_doubt)
    if isinstance(answer, str):
        return None
    fewer = np.exp(COUNT_SPREAD * draw_normal("fusion", len(now.steps)))
    machines = zip(now.steps, answer.steps, fewer, strict=True)
    saved = [min((before - after) * factor, before) for before, after, factor in machines]
    return Compiling(
        launches=count_kernels(order),
        step=interval(answer.step, [before - less for before, less in zip(now.steps, saved, strict=True)]),
        saved=interval(now.step - answer.step, saved),
    )


def _uncalibrated_step(programme: Programme, order: Sequence[Step]) -> int:
    """Return the length of a step without the calibrating profile; -1 if there is none."""
    if programme.calibration is None:
        return -1
    plain = msgspec.structs.replace(programme, calibration=None)
    times = times_of(plain)
    timed = [[times.add_times(entry) for entry in step] for step in order]
    answer = run_and_model(timed, plain.gpu, times.host)
    return -1 if isinstance(answer, ReplayRefusal) else round(answer[1].span() / len(order))


def _limits_with_collectives(answer: _Answer, moving: CommunicationTime) -> tuple[Range, dict[str, float]]:
    """Return a step's length, and the share of machines in which each resource limits it, largest first.

    Collectives that the GPU awaits at once add to the step; of the others anything between all and nothing is
    hidden behind other work, half of it in the likely machine.
    """
    hidden, slower = (
        draw_shares(len(answer.steps)),
        np.exp(moving.doubt * draw_normal("links", len(answer.steps))),
    )
    steps, limiters = [], []
    for step, savings, apart, factor in zip(answer.steps, answer.drawn.least, hidden, slower, strict=True):
        work, rest = _separate_collectives(step, savings.limiter, moving, factor)
        steps.append(max(work, rest) + apart * min(work, rest))
        limiters.append("communication" if moving.time * factor > step else savings.limiter)
    likely = "communication" if moving.time > answer.step else answer.replayed.limiter
    counted = Counter(limiters or [likely])
    order = sorted(counted, key=lambda name: (counted[name], name == likely), reverse=True)
    work, rest = _separate_collectives(answer.step, answer.replayed.limiter, moving, 1.0)
    middle = max(work, rest) + MEDIAN_SHARE * min(work, rest)
    return interval(middle, steps), {name: counted[name] / counted.total() for name in order}


def _separate_collectives(
    step: float, limiter: str, moving: CommunicationTime, factor: float
) -> tuple[float, float]:
    """Return a step with its collectives that are awaited at once, and the time of the other collectives.

    Where the host is late, the GPU idles long enough to have time for them.
    """
    exposed = moving.exposed * factor
    work = max(step, exposed) if limiter == "host" else step + exposed
    return work, max(moving.time, 0) * factor - exposed


def _run_and_price(
    programme: Programme,
    order: Sequence[Step],
    priced: ToPrice,
    times: Times,
    doubt: float,
) -> _Answer | str:
    """Run the programme on the likely machine and on drawn ones. A step before and one after the priced ones
    keep their waits: the first has nothing to wait for yet, and the last nothing to delay."""
    timed = [[times.add_times(entry) for entry in step] for step in (order[-1], *order, order[0])]
    launches: Counter[int] = Counter()

    def riders(ran: MachineRun) -> list[Rider]:
        rides = ride(ran, order, priced.removed, times.add_times)
        for rider, site in rides:
            launches[site] += len(rider.work) if rider.certain else 0
        return [rider for rider, _ in rides]

    answer = run_and_model(timed, programme.gpu, times.host, riders if priced.sites else lambda _: ())
    if isinstance(answer, ReplayRefusal):
        return answer.reason
    ran, model = answer
    rows = {key: _waiting_rows(ran, sites) for key, sites in priced.sites.items()}
    unions = [place.keys for place in priced.places]
    replayed = price_groups(model, rows, unions=unions)
    entries_of_work = [
        ran.recorded_entries[correlation] for correlation in ran.timeline.work.correlation.tolist()
    ]
    drawn = draw_machines(entries_of_work, times.doubt, doubt)
    count = len(timed)
    waits = bool(rows) and ran.held > 0 and ran.queued
    shallow = run_steps(timed, programme.gpu, times.host, MIN_QUEUE_DEPTH).held / ran.held if waits else 1.0
    return _Answer(
        step=round(replayed.span / count),
        device=round(ran.busy / count),
        host=round(ran.host / count),
        replayed=replayed,
        drawn=group_savings_between(
            model, rows, [ReplayChange(pace=pace) for pace in drawn], replayed.each, unions
        ),
        count=len(order),
        whole=count,
        shallow=shallow,
        launches=launches,
    )


def _waiting_rows(ran: MachineRun, sites: Sequence[int]) -> list[int]:
    """Return the host rows of these sites' waits in the priced steps."""
    return [row for step in ran.waits[1:-1] for site in sites for row in step.get(site, ())]


def _describe(
    session: Session,
    programme: Programme,
    priced: ToPrice,
    times: Times,
    answer: _Answer,
    looked_at: int,
    order: Sequence[Step],
) -> Estimate:
    collective = any(entry.kind == "collective" for step in order for entry in step)
    moving = communication_time(order, programme) if collective else CommunicationTime()
    step, limiters = _limits_with_collectives(answer, moving)
    limiter, sure = next(iter(limiters.items()))
    measured = programme.calibration
    assumptions = _assumptions(session, programme, times, order)
    if moving.time > 0:
        assumptions = (
            *(sentence for sentence in assumptions if not sentence.startswith(_NO_TIME)),
            describe_assumptions(moving, programme),
        )
    return Estimate(
        gpu=(measured.gpu if measured is not None else "") or programme.gpu.name,
        step=step,
        device=answer.device,
        host=answer.host,
        prices=msgspec.structs.replace(_prices(session, priced.sites, answer), limiter=limiter),
        blocked=answer.blocked,
        saved=answer.reach(answer.replayed.all, lambda savings: savings.all),
        looked_at=looked_at,
        calibrated=times.calibration_path,
        covered=times.profile_share(order),
        assumptions=assumptions,
        reasons=tuple(_reasons(answer, measured)),
        communication=moving.time,
        limiter=limiter,
        sure=sure,
        limiters=limiters,
        speed=times.speed,
        uncalibrated=_uncalibrated_step(programme, order),
        profiled=measured.step if measured is not None else -1,
    )


def _prices(session: Session, groups: Mapping[int, Sequence[int]], answer: _Answer) -> Prices:
    replayed, keys = answer.replayed, list(groups)
    return Prices(
        span=answer.step,
        all=answer.per_step(replayed.all),
        least_all=answer.reach(replayed.all, lambda savings: savings.all).least,
        each=tuple(_price(key, session.sites, groups[key], answer) for key in keys),
        shortest=tuple(keys.index(key) for key in replayed.shortest),
        saved=tuple(answer.per_step(saved) for saved in replayed.saved),
        limiter=replayed.limiter,
        remains=replayed.remains,
        span_error=replayed.fidelity.span_error,
        drift=replayed.fidelity.drift,
        explained=replayed.fidelity.explained,
        wait_error=replayed.fidelity.wait_error,
    )


def _place_savings(places: Sequence[PlaceGroup], answer: _Answer) -> list[PlaceSaving]:
    """Return what all findings of each place save together, most first."""
    savings = [
        PlaceSaving(
            file=place.file,
            function=place.function,
            findings=len(place.keys),
            saved=answer.reach(answer.replayed.unions[at], lambda drawn, at=at: drawn.unions[at]),  # type: ignore[misc]
            line=place.line,
        )
        for at, place in enumerate(places)
    ]
    return sorted(savings, key=lambda saving: (-saving.saved.likely, bool(saving.function)))


def _reasons(answer: _Answer, measured: Calibration | None) -> Iterator[str]:
    """Yield why the numbers are only bounds."""
    yield from answer.replayed.fidelity.reasons
    if measured is not None and measured.step > 0:
        off = answer.step / measured.step - 1
        if abs(off) > MAX_CALIBRATION_ERROR:
            yield f"a step comes out {off:+.0%} off the {measured.step / 1e6:.3g} ms of the profile's own"


def _price(key: int, sites: Sequence[Site], numbers: Sequence[int], answer: _Answer) -> Price:
    price = answer.replayed.each[key]
    alone = answer.reach(price.alone, lambda drawn: drawn.alone[key])
    last = answer.reach(price.last, lambda drawn: drawn.last[key])
    return Price.estimate(
        alone,
        last,
        blocked=answer.per_step(price.blocked),
        waits=price.waits,
        kept=price.kept,
        removal=hardest_removal([sites[number] for number in numbers]),
        launches=sum(answer.launches[number] for number in numbers) / answer.count,
    )


def _set_up_sentence(libraries: dict[str, SourceLine]) -> str:
    """Name libraries whose set-up may wait: three public programs waited there, too few to count it."""
    names = " and ".join(f"{name} ({line.short})" for name, line in libraries.items())
    is_single = len(libraries) == 1
    return (
        f"no sync where {names} {'is' if is_single else 'are'} set up, at the first call, which can wait once"
    )


def _assumptions(
    session: Session, programme: Programme, times: Times, order: Sequence[Step]
) -> tuple[str, ...]:
    sentences = list(times.assumptions(order))
    sentences += [BATCHES_IN_TIME, "Python does no more between operators than is usual"]
    if session.environment.world_size > 1:
        sentences.append(f"{_NO_TIME} takes no time")
    if any(entry.compiled for step in order for entry in step):
        sentences.append(ASSUMPTION)
    if programme.threads:
        sentences.append("what other threads launch is left out")
    if programme.libraries:
        sentences.append(_set_up_sentence(programme.libraries))
    return tuple(sentences)

"""`MemoryRun` to `MemoryReport`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from gapless.memory import observed
from gapless.memory.growth import growth
from gapless.memory.kept import kept
from gapless.memory.modules import with_classes
from gapless.memory.moment import moment
from gapless.memory.remedies import remedies, winner
from gapless.memory.sentence import advice, sentence
from gapless.memory.settings import parse
from gapless.memory.simulate import Begin, Simulation
from gapless.memory.trials import (
    EXPANDABLE,
    Progress,
    Where,
    attempt,
    attempt_all,
    candidates,
    improves,
    rank,
)
from gapless.model.memory import (
    ALLOC,
    STEP,
    Curve,
    Fidelity,
    MemoryReport,
    MemoryRun,
    Moment,
    Outcome,
    Remedy,
    StepEnd,
    Trial,
)

_APART = 0.1
"""The share of the reserved memory that must lie idle at the peak for expandable segments to be tried."""


class Wishes(NamedTuple):
    """What a report is to answer.

    `source` gives the text of a file that the run speaks of, "" where it is not there; classes and variables
    are looked up in it. `capacity` is what the process may reserve and `total` what the device has (bytes,
    -1: as in the run), `gpu` the device's name. `tried` are settings to try; `search` tries all that make
    sense, on `jobs` processes.
    """

    capacity: int = -1
    total: int = -1
    gpu: str = ""
    tried: Sequence[str] = ()
    search: bool = False
    begin: Begin = "recorded"
    jobs: int = 1
    source: Callable[[str], str] = lambda file: ""


def _device(run: MemoryRun, wishes: Wishes) -> dict[str, Any]:
    """Of what device the report speaks: the one that is asked for, or the run's."""
    if wishes.capacity < 0:
        return {"gpu": run.gpu, "limit": run.limit, "total_memory": run.total_memory}
    total = wishes.total if wishes.total >= 0 else run.total_memory
    return {"gpu": wishes.gpu, "limit": wishes.capacity, "total_memory": total}


class _Base(NamedTuple):
    """The run as it is, before anything is tried.

    `outcome` is what is shown; `measure` what trials are compared with: the same, but for profiles, which
    are shown as they were recorded (None: they cannot be replayed). `open` says that whether it fits cannot
    be told.
    """

    outcome: Outcome
    measure: Outcome | None
    curve: Curve
    peak: Moment
    height: Moment
    ends: tuple[StepEnd, ...]
    fidelity: Fidelity | None = None
    notes: tuple[str, ...] = ()
    open: bool = False


def report(run: MemoryRun, wishes: Wishes | None = None, progress: Progress | None = None) -> MemoryReport:
    """What replaying `run` says; ``progress(done, of)`` counts trials.

    Raises:
        InvalidSettings: torch would refuse one of the settings that are to be tried.
    """
    wishes = wishes or Wishes()
    where = Where(wishes.capacity, wishes.total, wishes.begin)
    for one in wishes.tried:
        parse(one)  # what is wrong is said before the first replay
    run = with_classes(run, wishes.source)
    make = _observed if observed.is_observed(run) else _replayed if len(run) else _still
    base = make(run, wishes, where)
    trials, best = _trials(run, wishes, where, base.measure, progress)
    tried: tuple[Remedy, ...] = ()
    untried = ""
    if wishes.search and run.batches and base.measure is not None:
        tried, untried = remedies(run, where, base.measure)
    made = MemoryReport(
        sentence="",
        path=run.path,
        origin=run.origin,
        device=run.device,
        **_device(run, wishes if not base.open else Wishes()),
        settings=run.settings,
        events=len(run),
        allocations=sum(action == ALLOC for action in run.action),
        steps=sum(action == STEP for action in run.action),
        span=run.time[-1] - run.time[0] if run.time else -1,
        baseline=base.outcome,
        fidelity=base.fidelity,
        curve=base.curve,
        peak=base.peak,
        height=base.height,
        times=run.times,
        ends=base.ends,
        growth=growth(run),
        kept=kept(run, wishes.source),
        expandable=_expandable(run, where, base.measure, trials),
        trials=tuple(trials),
        searched=wishes.search,
        best=best,
        remedies=tried,
        remedy=winner(tried, trials[best] if best >= 0 else None, base.outcome),
        replayed=base.measure is not None,
        calls=run.calls,
        notes=(*run.notes, *base.notes, *_how(trials, best), *filter(None, [untried])),
    )
    return msgspec.structs.replace(made, sentence=sentence(made), advice=advice(made))


def _replayed(run: MemoryRun, wishes: Wishes, where: Where) -> _Base:
    """The run through the allocator."""
    recorded = run.recorded
    own = Simulation(run, total=wishes.total).go() if recorded is not None or where == Where() else None
    replay = own if own is not None and where == Where() else Simulation(run, **where._asdict()).go()
    outcome = replay.outcome()
    peak = moment(run, replay.peak_event, **where._asdict())
    height = peak
    if replay.height_event != replay.peak_event:
        height = moment(run, replay.height_event, **where._asdict())
    return _Base(
        outcome=outcome,
        measure=outcome,
        curve=replay.curve,
        peak=peak,
        height=height,
        ends=tuple(replay.ends),
        fidelity=fidelity(run, own) if own is not None and recorded is not None else None,
        notes=tuple(_notes(run, wishes)),
    )


def _still(run: MemoryRun, wishes: Wishes, where: Where) -> _Base:
    """Memory as it lay, without anything that was asked for."""
    note = (
        "nothing was recorded of what was asked for: this is how memory lay in the end, and no setting can "
        "be tried on it (torch.cuda.memory._record_memory_history() at the start of the script records it)"
    )
    base = _replayed(run, wishes._replace(tried=(), search=False), where)
    return base._replace(measure=None, fidelity=None, notes=(*base.notes, note))


def _observed(run: MemoryRun, wishes: Wishes, where: Where) -> _Base:
    """The run as a profile recorded it; replayed for a comparison, where what it shows is enough for that."""
    own = Simulation(run).go()
    why_not = observed.why_not(run, own)
    if not why_not and (where.capacity >= 0 or wishes.tried or wishes.search):
        compared = (observed.compared(run, own),)
        return _replayed(run, wishes, where)._replace(fidelity=None, notes=compared)
    doubt = observed.in_doubt(run, where.capacity)
    return _Base(
        outcome=observed.outcome(run, where.capacity),
        measure=None if why_not else own.outcome(),
        curve=observed.curve(run),
        peak=observed.peak(run, run.allocated),
        height=observed.peak(run, run.reserved),
        ends=observed.ends(run),
        notes=tuple(filter(None, [why_not, doubt])),
        open=bool(doubt),
    )


def _trials(
    run: MemoryRun, wishes: Wishes, where: Where, baseline: Outcome | None, progress: Progress | None
) -> tuple[list[Trial], int]:
    if baseline is None:
        return [], -1
    wanted = list(wishes.tried)
    if wishes.search:
        known = wishes.total >= 0 or wishes.capacity >= 0 or run.total_memory >= 0 or run.limit >= 0
        wanted += [one for one in candidates(known) if one not in wanted and one != run.settings]
    if not wanted:
        return [], -1
    trials = rank(attempt_all(run, wanted, where, wishes.jobs, progress), baseline)
    return trials, 0 if improves(trials[0].outcome, baseline) else -1


def _expandable(
    run: MemoryRun, where: Where, baseline: Outcome | None, trials: Sequence[Trial]
) -> Outcome | None:
    """The run with expandable segments, where it has them not and loses memory or time."""
    if baseline is None or "expandable_segments" in run.settings:
        return None
    for one in trials:
        if one.settings == EXPANDABLE:
            return one.outcome
    apart = baseline.peak_reserved - baseline.peak_allocated
    trouble = baseline.shortage is not None or baseline.failures or baseline.retries
    if not trouble and apart < _APART * baseline.peak_reserved:
        return None
    return attempt(run, EXPANDABLE, where).outcome


def fidelity(run: MemoryRun, replay: Simulation) -> Fidelity:
    """How well the replay of `run` under its own settings meets what was recorded."""
    recorded, outcome = run.recorded, replay.outcome()
    assert recorded is not None
    misses = [
        f"{name} {got} for {was}"
        for name, got, was in (
            ("cudaMalloc", outcome.mallocs, recorded.mallocs),
            ("cudaFree", outcome.frees, recorded.frees),
            ("mappings", outcome.maps, recorded.maps),
            ("unmappings", outcome.unmaps, recorded.unmaps),
            ("retries", outcome.retries, recorded.retries if recorded.retries >= 0 else outcome.retries),
            ("failed requests", outcome.failures, recorded.ooms),
            ("bytes reserved at the peak", outcome.peak_reserved, recorded.peak_reserved),
            ("bytes reserved at the end", outcome.final_reserved, recorded.final_reserved),
        )
        if got != was
    ]
    return Fidelity(
        exact=not misses,
        misses=tuple(misses),
        addresses=replay.placed,
        allocations=sum(action == ALLOC for action in run.action),
    )


def _how(trials: list[Trial], best: int) -> list[str]:
    """How to set what is advised, where an older torch does not know it."""
    if best < 0 or "per_process_memory_fraction" not in trials[best].settings:
        return []
    return [
        "where torch refuses per_process_memory_fraction as a setting, call "
        "torch.cuda.set_per_process_memory_fraction() before anything is allocated"
    ]


def _notes(run: MemoryRun, wishes: Wishes) -> list[str]:
    notes = []
    held = sum(segment.size for segment in run.start)
    if 0 <= wishes.capacity < held and wishes.begin == "recorded":
        notes.append("recording began with more reserved than that: what was in use is laid out anew")
    elif run.start and wishes.begin == "recorded" and (wishes.tried or wishes.search):
        notes.append(
            "recording began with memory in use: other settings are tried from there on, with that memory "
            "as it lay (--fresh lays it out anew)"
        )
    recorded = run.recorded
    if recorded is not None and recorded.ceiling > recorded.floor and wishes.capacity < 0:
        slack = recorded.ceiling - recorded.floor
        notes.append(
            f"what this process could get is known to {slack / 1e6:.0f} MB; the least of it is assumed"
        )
    return notes

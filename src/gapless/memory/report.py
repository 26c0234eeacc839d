"""`MemoryRun` to `MemoryReport`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from gapless.memory import recorded_curve
from gapless.memory.growth import growth
from gapless.memory.kept import kept
from gapless.memory.modules import with_classes
from gapless.memory.moment import moment
from gapless.memory.remedies import remedies, winner
from gapless.memory.sentence import advice, answer, sentence
from gapless.memory.settings import parse
from gapless.memory.shortfall import ended, needed, opened, shortfall, tightened
from gapless.memory.simulate import Begin, Simulation, simulate
from gapless.memory.trials import (
    EXPANDABLE,
    Progress,
    Where,
    attempt,
    attempt_all,
    candidates,
    improves,
    lowers_peak,
    rank,
)
from gapless.memory.unused import checkpoints, unused_graphs
from gapless.model.memory import ALLOC, STEP, MemoryRun
from gapless.model.memory_answer import OutOfMemory
from gapless.model.memory_report import Curve, Fidelity, MemoryReport, Moment, Outcome, Remedy, StepEnd, Trial
from gapless.model.wording import binary_size

_QUICK = 100_000
"""Rows up to which all settings are tried in seconds."""
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

    @property
    def where(self) -> Where:
        """What every trial shares."""
        return Where(self.capacity, self.total, self.begin)


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
    lack: OutOfMemory | None = None
    needs: int = -1


def report(run: MemoryRun, wishes: Wishes | None = None, progress: Progress | None = None) -> MemoryReport:
    """What replaying `run` says; ``progress(done, of)`` counts trials.

    Raises:
        InvalidSettings: torch would refuse one of the settings that are to be tried.
    """
    wishes = wishes or Wishes()
    where = wishes.where
    if where.capacity < 0:
        run = tightened(run)
    for one in wishes.tried:
        parse(one)  # what is wrong is said before the first replay
    run = with_classes(run, wishes.source)
    make = _of_curve if recorded_curve.has_curve(run) else _replayed if len(run) else _still
    base = make(run, wishes, where)
    trials, best = _trials(run, wishes, where, base, progress)
    lack = _afresh(run, where, base.lack, best)
    tried: tuple[Remedy, ...] = ()
    untried = ""
    if wishes.search and run.batches and base.measure is not None:
        tried, untried = remedies(run, where, base.measure)
    grown = growth(run)
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
        growth=grown,
        holders=run.holders if grown else (),
        kept=kept(run, wishes.source, where),
        unused_graphs=unused_graphs(run, where),
        checkpoints=checkpoints(run, where),
        expandable=_expandable(run, where, base.measure, trials),
        needs=base.needs,
        at_least=base.needs >= 0 and opened(run),
        ended=ended(run),
        lack=lack,
        handled=_handled(run, lack),
        failing=_failing(run, where, lack),
        trials=tuple(trials),
        searched=wishes.search or len(trials) > len(wishes.tried),
        best=best,
        remedies=tried,
        remedy=winner(tried, trials[best] if best >= 0 else None, base.outcome),
        replayed=base.measure is not None,
        calls=run.calls,
        notes=(*run.notes, *base.notes, *_how(trials, best), *filter(None, [untried])),
    )
    made = msgspec.structs.replace(
        made, sentence=sentence(made), advice=advice(made), advised=_advised(made, base.measure)
    )
    return msgspec.structs.replace(made, answer=answer(made))


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
    lack = shortfall(run, where, outcome)
    needs = lack.needs if lack is not None else -1
    if lack is None and where.capacity >= 0:
        needs = needed(run, where, outcome.peak_allocated, replay.begin)
    return _Base(
        outcome=outcome,
        measure=outcome,
        lack=lack,
        needs=needs,
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
        "the history of requests was not recorded: this is only the final memory layout, so no setting can "
        "be tried on it (to record the history, call torch.cuda.memory._record_memory_history() at the "
        "start of the script)"
    )
    base = _replayed(run, wishes._replace(tried=(), search=False), where)
    return base._replace(measure=None, fidelity=None, notes=(*base.notes, note))


def _of_curve(run: MemoryRun, wishes: Wishes, where: Where) -> _Base:
    """The run as a profile recorded it; replayed for a comparison, where what it shows is enough for that."""
    own = Simulation(run).go()
    why_not = recorded_curve.why_not(run, own)
    if not why_not and (where.capacity >= 0 or wishes.tried or wishes.search):
        compared = (recorded_curve.compared(run, own),)
        return _replayed(run, wishes, where)._replace(fidelity=None, notes=compared)
    doubt = recorded_curve.in_doubt(run, where.capacity)
    outcome = recorded_curve.outcome(run, where.capacity)
    return _Base(
        outcome=outcome,
        lack=recorded_curve.lack(run, outcome, where.capacity),
        measure=None if why_not else own.outcome(),
        curve=recorded_curve.curve(run),
        peak=recorded_curve.peak(run, run.allocated),
        height=recorded_curve.peak(run, run.reserved),
        ends=recorded_curve.ends(run),
        notes=tuple(filter(None, [why_not, doubt])),
        open=bool(doubt),
    )


def _trials(
    run: MemoryRun, wishes: Wishes, where: Where, base: _Base, progress: Progress | None
) -> tuple[list[Trial], int]:
    """What was tried, the best first, and the position of the one to take.

    Where a request fails or finds the GPU full, settings are tried unasked. Where one failed that the replay
    meets, no trial can tell.
    """
    baseline = base.measure
    if baseline is None:
        return [], -1
    wanted = list(wishes.tried)
    fails = baseline.shortage is not None or baseline.failures > 0
    crowded = baseline.retries > 0 and len(run) <= _QUICK
    if wishes.search or (base.lack is not None and fails) or crowded:
        known = wishes.total >= 0 or wishes.capacity >= 0 or run.total_memory >= 0 or run.limit >= 0
        wanted += [one for one in candidates(known) if one not in wanted and one != run.settings]
    if not wanted:
        return [], -1
    made = attempt_all(run, wanted, where, wishes.jobs, progress)
    told = [msgspec.structs.replace(one, asked=one.settings in wishes.tried) for one in made]
    trials = rank(told, baseline)
    untold = base.lack is not None and not fails
    return trials, 0 if improves(trials[0].outcome, baseline) and not untold else -1


def _afresh(run: MemoryRun, where: Where, lack: OutOfMemory | None, best: int) -> OutOfMemory | None:
    """`lack`, with the setting that helps only if what was in use when recording began is laid out anew.

    Where tensors alone need more than there is, no layout helps.
    """
    if lack is None or best >= 0 or where.begin == "fresh" or lack.allocated + lack.asked > lack.has:
        return lack
    if not any(block.ident >= 0 for segment in run.start for block in segment.blocks):
        return lack
    anew = simulate(run, EXPANDABLE, **where._replace(begin="fresh")._asdict())
    helps = anew.shortage is None and not anew.failures
    return msgspec.structs.replace(lack, afresh=EXPANDABLE if helps else "")


def _handled(run: MemoryRun, lack: OutOfMemory | None) -> int:
    """How many errors the recorded run met and went on after."""
    if lack is None or not lack.recorded or lack.ended:
        return 0
    return max(run.recorded.ooms if run.recorded is not None else 0, len(run.refusals))


def _failing(run: MemoryRun, where: Where, lack: OutOfMemory | None) -> Moment | None:
    """The memory when the request failed; None where none did, or a profile does not tell."""
    if lack is None or lack.event < 0 or recorded_curve.has_curve(run):
        return None
    return moment(run, lack.event, **where._asdict())


def _advised(report: MemoryReport, measure: Outcome | None) -> str:
    """The one setting that is advised, which a replay has confirmed; "" where none is."""
    if report.remedy >= 0:
        return report.remedies[report.remedy].settings
    if report.best >= 0:
        return report.trials[report.best].settings
    if (
        report.trials
        or measure is None
        or report.expandable is None
        or not improves(report.expandable, measure)
    ):
        return ""
    # Memory that is never given back is asked for once: sooner is no reason then.
    again = measure.frees or measure.unmaps or measure.retries or measure.failures
    return EXPANDABLE if again or measure.shortage or lowers_peak(report.expandable, measure) else ""


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
        "where PyTorch rejects per_process_memory_fraction as a setting, call "
        "torch.cuda.set_per_process_memory_fraction() before anything is allocated"
    ]


def _notes(run: MemoryRun, wishes: Wishes) -> list[str]:
    notes = []
    held = sum(segment.size for segment in run.start)
    if 0 <= wishes.capacity < held and wishes.begin == "recorded":
        notes.append(
            "more than that was already reserved when recording began: what was in use is laid out again"
        )
    elif run.start and wishes.begin == "recorded" and (wishes.tried or wishes.search):
        notes.append(
            "memory was already in use when recording began: other settings are tried from there on, with "
            "that memory left in place (--fresh lays it out again)"
        )
    recorded = run.recorded
    guessed = recorded is not None and not recorded.told and run.limit <= recorded.floor
    if recorded is not None and guessed and recorded.ceiling > recorded.floor and wishes.capacity < 0:
        slack = recorded.ceiling - recorded.floor
        notes.append(
            f"the memory available to this process is known to within {binary_size(slack)}; the lowest "
            "value is assumed"
        )
    return notes

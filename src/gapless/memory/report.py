"""Build the `MemoryReport` of a `MemoryRun`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from gapless.memory import recorded_curve
from gapless.memory.growth import find_growth
from gapless.memory.kept import find_kept
from gapless.memory.modules import with_classes
from gapless.memory.moment import moment
from gapless.memory.remedies import choose_remedy, try_remedies
from gapless.memory.sentence import advice, answer, sentence
from gapless.memory.settings import parse
from gapless.memory.shortfall import ends_with_failure, find_least_bytes, is_partial, shortfall, tighten_limit
from gapless.memory.simulate import Begin, Simulation, simulate
from gapless.memory.trials import (
    EXPANDABLE,
    Progress,
    TrialConditions,
    attempt,
    attempt_all,
    candidates,
    improves,
    lowers_peak,
    rank,
)
from gapless.memory.unused import price_checkpoints, price_unused_graphs
from gapless.model.memory import ALLOC, STEP, MemoryRun
from gapless.model.memory_answer import OutOfMemory
from gapless.model.memory_report import Curve, Fidelity, MemoryReport, Moment, Outcome, Remedy, StepEnd, Trial
from gapless.model.wording import binary_size

_MAX_ROWS_TO_SEARCH = 100_000
"""Rows up to which trying all settings takes seconds."""
_MIN_IDLE_SHARE = 0.1
"""Share of the reserved memory idle at the peak from which expandable segments are tried."""


class ReportOptions(NamedTuple):
    """Options of a report.

    `source` returns the text of a file of the run, "" if it does not exist; classes and variable names are
    looked up in it. `capacity` is what the process may reserve and `total` what the device has (bytes; -1: as
    in the run), `gpu` the device's name. `tried` are settings to try; `search` tries all sensible ones, on
    `jobs` processes.
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
    def where(self) -> TrialConditions:
        """The conditions that all trials share."""
        return TrialConditions(self.capacity, self.total, self.begin)


def _device(run: MemoryRun, options: ReportOptions) -> dict[str, Any]:
    """Return the fields that describe the device: the one given by `options`, or the run's."""
    if options.capacity < 0:
        return {"gpu": run.gpu, "limit": run.limit, "total_memory": run.total_memory}
    total = options.total if options.total >= 0 else run.total_memory
    return {"gpu": options.gpu, "limit": options.capacity, "total_memory": total}


class _Baseline(NamedTuple):
    """The run before anything is tried.

    `outcome` is shown; trials are compared with `measure`: the same, except for profiles, which are shown as
    recorded (None: they cannot be replayed). `open` means that whether the run fits is unknown.
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


def report(
    run: MemoryRun, options: ReportOptions | None = None, progress: Progress | None = None
) -> MemoryReport:
    """Replay `run` and report on it; ``progress(done, of)`` counts trials.

    Raises:
        InvalidSettings: torch would reject one of the settings to try.
    """
    options = options or ReportOptions()
    where = options.where
    if where.capacity < 0:
        run = tighten_limit(run)
    for settings in options.tried:
        parse(settings)  # reports an error before the first replay
    run = with_classes(run, options.source)
    base = _report_baseline(run, options, where)
    trials, best = _trials(run, options, where, base, progress)
    lack = _try_fresh_start(run, where, base.lack, best)
    tried, untried = _try_remedies(run, options, base)
    grown = find_growth(run)
    result = MemoryReport(
        sentence="",
        path=run.path,
        origin=run.origin,
        device=run.device,
        **_device(run, options if not base.open else ReportOptions()),
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
        kept=find_kept(run, options.source, where),
        unused_graphs=price_unused_graphs(run, where),
        checkpoints=price_checkpoints(run, where),
        expandable=_try_expandable(run, where, base.measure, trials),
        needs=base.needs,
        at_least=base.needs >= 0 and is_partial(run),
        ended=ends_with_failure(run),
        lack=lack,
        handled=_count_handled_failures(run, lack),
        failing=_moment_of_failure(run, where, lack),
        trials=tuple(trials),
        searched=options.search or len(trials) > len(options.tried),
        best=best,
        remedies=tried,
        remedy=choose_remedy(tried, trials[best] if best >= 0 else None, base.outcome),
        replayed=base.measure is not None,
        calls=run.calls,
        notes=(*run.notes, *base.notes, *_usage_notes(trials, best), *filter(None, [untried])),
    )
    return _with_words(result, base.measure)


def _report_baseline(run: MemoryRun, options: ReportOptions, where: TrialConditions) -> _Baseline:
    """Return what the run's own settings give: from its profile's curve, its events, or its layout alone."""
    make = _report_profile if recorded_curve.has_curve(run) else _replay_run if len(run) else _report_layout
    return make(run, options, where)


def _try_remedies(run: MemoryRun, options: ReportOptions, base: _Baseline) -> tuple[tuple[Remedy, ...], str]:
    """Return the changes tried on a run whose batches are known, and why others were not."""
    if not options.search or not run.batches or base.measure is None:
        return (), ""
    return try_remedies(run, options.where, base.measure)


def _with_words(report: MemoryReport, measure: Outcome | None) -> MemoryReport:
    """Return `report` with its sentence, advice and answer; trials were compared with `measure`."""
    report = msgspec.structs.replace(
        report,
        sentence=sentence(report),
        advice=advice(report),
        advised=_advised_setting(report, measure),
    )
    return msgspec.structs.replace(report, answer=answer(report))


def _replay_run(run: MemoryRun, options: ReportOptions, where: TrialConditions) -> _Baseline:
    """Replay the run through the allocator."""
    recorded = run.recorded
    own = (
        Simulation(run, total=options.total).go()
        if recorded is not None or where == TrialConditions()
        else None
    )
    replay = (
        own if own is not None and where == TrialConditions() else Simulation(run, **where._asdict()).go()
    )
    outcome = replay.outcome()
    peak = moment(run, replay.peak_event, **where._asdict())
    height = peak
    if replay.height_event != replay.peak_event:
        height = moment(run, replay.height_event, **where._asdict())
    lack = shortfall(run, where, outcome)
    needs = lack.needs if lack is not None else -1
    if lack is None and where.capacity >= 0:
        needs = find_least_bytes(run, where, outcome.peak_allocated, replay.begin)
    return _Baseline(
        outcome=outcome,
        measure=outcome,
        lack=lack,
        needs=needs,
        curve=replay.curve,
        peak=peak,
        height=height,
        ends=tuple(replay.ends),
        fidelity=compare_with_recording(run, own) if own is not None and recorded is not None else None,
        notes=tuple(_notes(run, options)),
    )


def _report_layout(run: MemoryRun, options: ReportOptions, where: TrialConditions) -> _Baseline:
    """Report the memory layout of a snapshot without a history."""
    note = (
        "the history of requests was not recorded: this is only the final memory layout, so no setting can "
        "be tried on it (to record the history, call torch.cuda.memory._record_memory_history() at the "
        "start of the script)"
    )
    base = _replay_run(run, options._replace(tried=(), search=False), where)
    return base._replace(measure=None, fidelity=None, notes=(*base.notes, note))


def _report_profile(run: MemoryRun, options: ReportOptions, where: TrialConditions) -> _Baseline:
    """Report the run as a profile recorded it; replay it if settings are to be tried and that is possible."""
    own = Simulation(run).go()
    why_not = recorded_curve.why_not(run, own)
    if not why_not and (where.capacity >= 0 or options.tried or options.search):
        note = (recorded_curve.describe_replay(run, own),)
        return _replay_run(run, options, where)._replace(fidelity=None, notes=note)
    doubt = recorded_curve.in_doubt(run, where.capacity)
    outcome = recorded_curve.outcome(run, where.capacity)
    return _Baseline(
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
    run: MemoryRun, options: ReportOptions, where: TrialConditions, base: _Baseline, progress: Progress | None
) -> tuple[list[Trial], int]:
    """Try settings; return the trials, best first, and the index of the one to use (-1: none).

    Settings are also tried unasked if a request fails or finds the GPU full. If a recorded failure does not
    occur in the replay, no trial can answer it.
    """
    baseline = base.measure
    if baseline is None:
        return [], -1
    wanted = list(options.tried)
    fails = baseline.shortage is not None or baseline.failures > 0
    crowded = baseline.retries > 0 and len(run) <= _MAX_ROWS_TO_SEARCH
    if options.search or (base.lack is not None and fails) or crowded:
        has_limit = options.total >= 0 or options.capacity >= 0 or run.total_memory >= 0 or run.limit >= 0
        wanted += [
            settings
            for settings in candidates(has_limit)
            if settings not in wanted and settings != run.settings
        ]
    if not wanted:
        return [], -1
    trials_in_order = attempt_all(run, wanted, where, options.jobs, progress)
    marked = [
        msgspec.structs.replace(trial, asked=trial.settings in options.tried) for trial in trials_in_order
    ]
    trials = rank(marked, baseline)
    is_unreproduced = base.lack is not None and not fails
    return trials, 0 if improves(trials[0].outcome, baseline) and not is_unreproduced else -1


def _try_fresh_start(
    run: MemoryRun, where: TrialConditions, lack: OutOfMemory | None, best: int
) -> OutOfMemory | None:
    """Return `lack` with the setting that helps only if memory in use at the start is laid out anew.

    If the tensors alone need more than there is, no layout helps.
    """
    if lack is None or best >= 0 or where.begin == "fresh" or lack.allocated + lack.asked > lack.has:
        return lack
    if not any(block.ident >= 0 for segment in run.start for block in segment.blocks):
        return lack
    anew = simulate(run, EXPANDABLE, **where._replace(begin="fresh")._asdict())
    helps = anew.shortage is None and not anew.failures
    return msgspec.structs.replace(lack, afresh=EXPANDABLE if helps else "")


def _count_handled_failures(run: MemoryRun, lack: OutOfMemory | None) -> int:
    """Count the recorded out-of-memory errors after which the run continued."""
    if lack is None or not lack.recorded or lack.ended:
        return 0
    return max(run.recorded.ooms if run.recorded is not None else 0, len(run.refusals))


def _moment_of_failure(run: MemoryRun, where: TrialConditions, lack: OutOfMemory | None) -> Moment | None:
    """Return the memory when the request failed; None if none did or the run is a profile."""
    if lack is None or lack.event < 0 or recorded_curve.has_curve(run):
        return None
    return moment(run, lack.event, **where._asdict())


def _advised_setting(report: MemoryReport, measure: Outcome | None) -> str:
    """Return the advised setting, confirmed by a replay; "" if there is none."""
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
    # Memory that is never released is requested once: doing that earlier is no reason.
    again = measure.frees or measure.unmaps or measure.retries or measure.failures
    return EXPANDABLE if again or measure.shortage or lowers_peak(report.expandable, measure) else ""


def _try_expandable(
    run: MemoryRun, where: TrialConditions, baseline: Outcome | None, trials: Sequence[Trial]
) -> Outcome | None:
    """Return the outcome with expandable segments if the run lacks them and wastes memory or time."""
    if baseline is None or "expandable_segments" in run.settings:
        return None
    for trial in trials:
        if trial.settings == EXPANDABLE:
            return trial.outcome
    apart = baseline.peak_reserved - baseline.peak_allocated
    trouble = baseline.shortage is not None or baseline.failures or baseline.retries
    if not trouble and apart < _MIN_IDLE_SHARE * baseline.peak_reserved:
        return None
    return attempt(run, EXPANDABLE, where).outcome


def compare_with_recording(run: MemoryRun, replay: Simulation) -> Fidelity:
    """Compare the replay of `run` under its own settings with the recording."""
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


def _usage_notes(trials: list[Trial], best: int) -> list[str]:
    """Say how to apply the advised setting if older versions of torch do not have it."""
    if best < 0 or "per_process_memory_fraction" not in trials[best].settings:
        return []
    return [
        "where PyTorch rejects per_process_memory_fraction as a setting, call "
        "torch.cuda.set_per_process_memory_fraction() before anything is allocated"
    ]


def _notes(run: MemoryRun, options: ReportOptions) -> list[str]:
    notes = []
    held = sum(segment.size for segment in run.start)
    if 0 <= options.capacity < held and options.begin == "recorded":
        notes.append(
            "more than that was already reserved when recording began: what was in use is laid out again"
        )
    elif run.start and options.begin == "recorded" and (options.tried or options.search):
        notes.append(
            "memory was already in use when recording began: other settings are tried from there on, with "
            "that memory left in place (--fresh lays it out again)"
        )
    recorded = run.recorded
    guessed = recorded is not None and not recorded.told and run.limit <= recorded.floor
    if recorded is not None and guessed and recorded.ceiling > recorded.floor and options.capacity < 0:
        slack = recorded.ceiling - recorded.floor
        notes.append(
            f"the memory available to this process is known to within {binary_size(slack)}; the lowest "
            "value is assumed"
        )
    return notes

"""Turn a `Session` into a `Report`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from gapless.analyze.estimate.traffic import communication_buffers, step_traffic
from gapless.analyze.findings.compiled_code import findings as of_compiled
from gapless.analyze.findings.compiled_code import notes as compiled_notes
from gapless.analyze.findings.finding import finding, source_basis
from gapless.analyze.findings.graph_faults import findings as of_graphs
from gapless.analyze.findings.optimizer_findings import findings as of_optimizers
from gapless.analyze.findings.order import order
from gapless.analyze.findings.race_findings import findings as of_races
from gapless.analyze.loaders import findings as of_loaders
from gapless.analyze.loaders import notes as loader_notes
from gapless.analyze.loaders import reprice_for_steps, with_input_limit
from gapless.analyze.memory_report import replay_memory, with_longest
from gapless.analyze.offers import offers, with_costs
from gapless.analyze.run.assumed import decisions
from gapless.analyze.run.causes import join_causes
from gapless.analyze.run.counted import select_events
from gapless.analyze.run.failed_dry import with_failed_dry
from gapless.analyze.run.frequency import frequency
from gapless.analyze.run.group import Group, group_events, happens_once
from gapless.analyze.run.inference import noun, with_own_noun, with_tokens_only
from gapless.analyze.run.later import later_steps, with_late_sites
from gapless.analyze.run.later import remark as later_remark
from gapless.analyze.run.loop import ReadSource, training_loops
from gapless.analyze.run.merge import callers, merge_groups, name_callers, spots
from gapless.analyze.run.phases import Phases, sum_phases
from gapless.analyze.run.steps import RunSteps, find_steps
from gapless.analyze.tables.session_tables import tables
from gapless.analyze.verdicts.search import with_search
from gapless.analyze.verdicts.session_verdict import verdict
from gapless.cores import no_collection
from gapless.files.input import source_text
from gapless.model import FINE, NOTHING, Finding, Hit, Report, Session, Site, StepSummary, Verdict
from gapless.model.assumption import describe_switch
from gapless.model.estimate import Estimate
from gapless.model.loader_use import LoaderUse
from gapless.model.memory import MemoryRun
from gapless.model.memory_report import MemoryReport
from gapless.model.planned import Planned
from gapless.model.readiness import Readiness
from gapless.model.tally import UNTRAINED
from gapless.rules.causes import remedy_by_cause
from gapless.rules.superfluous import Superfluous, superfluous_at


def report(
    session: Session,
    read: ReadSource = source_text,
    priced: bool = True,
    drawn: bool = False,
    by_line: bool = False,
) -> Report:
    """Return the report on `session`: waits, loaders and memory. `read` returns the text of source files.

    ``priced=True`` estimates what a step and each of its waits take on the GPU, if the session holds the work
    of its steps; ``drawn=True`` lays the memory out for a page. ``by_line=True`` keeps apart the lines that
    one change mends, so that two runs can be compared line by line.
    """
    return with_loaders(draft(session, read, priced, drawn, by_line), session.loaders, session.memory)


@no_collection()  # tables of a long programme hold hundreds of thousands of objects
def draft(
    session: Session,
    read: ReadSource = source_text,
    priced: bool = True,
    drawn: bool = False,
    by_line: bool = False,
) -> Report:
    """Return the report on `session` without its loaders, which `with_loaders` adds; see `report`."""
    steps = find_steps(session.marks, read)
    recorded, session = session, _with_steps(session, steps)
    loops = training_loops(steps.marks, session.marks, read)
    phases = Phases(session, steps, loops)
    steps = replace(steps, mixed=phases.steps())
    groups = group_events(session, steps, loops, phases)
    if not by_line:
        groups = join_causes(merge_groups(groups, session, steps), session, steps)
        groups = name_callers(groups, session)
    waits = [_make_finding(group, session, steps, read) for group in groups]
    name = noun(steps, session.marks, loops, read)
    estimate, waits = _estimate_prices(session, steps, groups, waits) if priced else (None, waits)
    estimate = with_tokens_only(estimate, name)
    memory = _replay_memory(session, drawn, read)
    return Report(
        verdict=Verdict(sentence=""),
        script=session.script,
        environment=session.environment,
        ending=session.ending,
        steps=msgspec.structs.replace(summarize(groups, steps), noun=name),
        phases=sum_phases(session.phases, waits),
        findings=(
            *of_races(session.races),
            *of_graphs(session.graphs),
            *waits,
            *of_optimizers(estimate),
            *of_compiled(session.compiled),
            *(finding for memory_report in memory for finding in memory_report.findings),
        ),
        notes=tuple(_notes(session, recorded, steps)),
        unknown=session.unknown,
        assumptions=decisions(session.assumptions, read),
        switch=session.switch,
        failed_dry=session.failed_dry,
        estimate=estimate,
        traffic=step_traffic(session, steps),
        memory=memory,
        offers=offers(session, steps, estimate, memory),
        asked=session.asked,
        search=session.search,
        remedies=session.remedies,
        readiness=_readiness(session, steps) if priced else None,
        compiled=session.compiled,
        planned=_planned_steps(session, steps),
    )


def _with_steps(session: Session, steps: RunSteps) -> Session:
    """Return `session` with the events that count, assigned to `steps`."""
    session = with_late_sites(session, steps)
    session = msgspec.structs.replace(session, events=steps.assign_ticks(session.events, session.strands))
    if steps.strands:  # the length of their steps depends on how they share the GPU
        session = msgspec.structs.replace(session, programme=None)
    return msgspec.structs.replace(session, events=select_events(session, steps))


def _notes(session: Session, recorded: Session, steps: RunSteps) -> Iterator[str]:
    """Yield the notes of `session`, which was `recorded` before its events were assigned to `steps`."""
    yield from session.notes
    if session.switch is not None:
        yield describe_switch(session.switch)
    yield from _remarks(steps, session.cut)
    yield from later_remark(recorded, steps)
    yield from compiled_notes(session.compiled)
    for run in session.memory:
        yield from run.notes


def _replay_memory(session: Session, drawn: bool, read: ReadSource) -> tuple[MemoryReport, ...]:
    """Return a report for each GPU whose memory `session` recorded."""
    nccl = communication_buffers(session)
    finished = session.ending.is_own
    return tuple(
        msgspec.structs.replace(replay_memory(run, drawn, finished, read), nccl=nccl)
        for run in session.memory
    )


def _planned_steps(session: Session, steps: RunSteps) -> Planned:
    """Return how many steps the run has: the steps seen, if it ended by itself."""
    if not session.ending.is_own:
        return session.planned
    later = later_steps(session.later, session, steps) if session.later is not None else 0
    return Planned(steps=steps.seen + later)


def _readiness(session: Session, steps: RunSteps) -> Readiness | None:
    """Return what of a step CUDA graphs could hold, if the session recorded lines for that."""
    if session.programme is None or not session.programme.lines:  # --graphs records them
        return None
    from gapless.analyze.estimate.readiness import assess_readiness  # loads the replay

    return assess_readiness(session, steps)


def with_loaders(report: Report, uses: Sequence[LoaderUse], runs: Sequence[MemoryRun] = ()) -> Report:
    """Complete the draft of a session's report: how loaders fed it, the order of findings, the verdict.

    A running check measures the loaders for the step that the draft estimates. `runs` are the memory
    requests behind the report's memory: a loader's longest item decides whether they fit.
    """
    estimate = with_input_limit(report.estimate, uses) if report.estimate is not None else None
    report = msgspec.structs.replace(
        report,
        loaders=tuple(uses),
        memory=with_longest(report.memory, runs, uses),
        estimate=estimate,
        offers=with_costs(report.offers, uses, estimate, report.planned.steps),
        findings=order([*report.findings, *reprice_for_steps(of_loaders(uses), estimate)]),
        notes=tuple(dict.fromkeys([*report.notes, *loader_notes(uses)])),
    )
    first = with_failed_dry(with_search(report, verdict(report)), report.failed_dry)
    return with_own_noun(msgspec.structs.replace(report, verdict=first, tables=tables(report)))


def _estimate_prices(
    session: Session, steps: RunSteps, groups: Sequence[Group], findings: list[Finding]
) -> tuple[Estimate | None, list[Finding]]:
    """Return the estimate, if there is one, and `findings` with the prices of training steps."""
    if session.programme is None:
        return None, findings
    from gapless.analyze.estimate.estimate import estimate  # loads the replay
    from gapless.analyze.estimate.together import ToPrice, group_by_place

    inside = [
        n for n, finding in enumerate(findings) if finding.frequency.when in ("every-step", "some-steps")
    ]
    what_if = "compile" in session.what_if
    priced = ToPrice(
        {n: sorted(groups[n].by_site) for n in inside},
        {site: removed for n in inside for site, removed in _superfluous_parts(groups[n], session.sites)},
        group_by_place({n: findings[n] for n in inside}),
    )
    result = estimate(session, steps, priced, what_if)
    if result is None or not result.prices.each:
        return result, findings
    prices = dict(zip(inside, result.prices.each, strict=True))
    return result, [
        msgspec.structs.replace(finding, price=prices[n]) if n in prices and prices[n].waits else finding
        for n, finding in enumerate(findings)
    ]


def _superfluous_parts(group: Group, sites: Sequence[Site]) -> Iterator[tuple[int, Superfluous]]:
    """Yield the sites of `group` with what its remedy removes besides the waits there."""
    for part in group.parts or (group,):
        for site in part.by_site:
            yield site, superfluous_at(sites[site], part.rule.code, joined=bool(group.change))


def summarize(groups: Sequence[Group], steps: RunSteps) -> StepSummary:
    """Return waits per steady training step; those of evaluation and set-up do not count."""
    if not steps.seen:
        return StepSummary()
    counts = [sum(group.steps[step] for group in groups) for step in steps.steady]
    return StepSummary(
        seen=steps.seen,
        steady=len(counts),
        waits_per_step=sum(counts) / len(counts),
        least=min(counts),
        most=max(counts),
        source=steps.source,
        side_by_side=_side_by_side(groups, steps),
    )


def _side_by_side(groups: Sequence[Group], steps: RunSteps) -> tuple[float, ...]:
    """Return waits per steady step of each training thread; empty if there is one thread."""
    if not steps.strands:
        return ()
    steady = frozenset(steps.steady)
    parts = [[step for step in part if step in steady] for part in steps.parts]
    return tuple(sum(group.steps[step] for group in groups for step in part) / len(part) for part in parts)


def _fallback_notes(sites: Sequence[Site], session: Session) -> Iterator[str]:
    """Yield which missing package made a library take the path that these `sites` are in."""
    for fallback in session.fallbacks:
        inside = [any(map(fallback.runs, site.stack)) for site in sites]
        if any(inside):
            part = "" if all(inside) else "partly "
            owner = f" of {fallback.library}" if fallback.library else ""  # the project's own has no name
            yield (
                f"{part}made by the fallback{owner} without {fallback.package}: "
                f"with {fallback.package} installed this path is not taken"
            )
            return


def _make_finding(group: Group, session: Session, steps: RunSteps, read: ReadSource) -> Finding:
    """Return the finding of a group of waits, with its frequency, spots and callers."""
    timing = frequency(group, steps)
    sites = [session.sites[number] for number in group.by_site]
    evidence = (*source_basis(sites), *_fallback_notes(sites, session))
    change = group.change or remedy_by_cause(sites[0])[1]
    hit = Hit(evidence=evidence, remedy=group.remedy, change=change, bytes=group.bytes)
    if happens_once(group, session, steps, read):
        hit = msgspec.structs.replace(hit, remedy=FINE, change=f"{NOTHING}: it is outside the training loop")
    result = finding(
        group.rule,
        hit,
        timing,
        sites=tuple(dict.fromkeys(_own_sites_first(group, session))),
        line=group.line,
        backward=group.backward,
    )
    ways = callers(group, session, steps, timing.waits) if not group.change else ()
    return msgspec.structs.replace(result, spots=spots(group, steps), callers=ways)


def _own_sites_first(group: Group, session: Session) -> Iterator[Site]:
    """Yield a group's sites, those of its own line before those that follow from it, most waits first."""
    sites = [session.sites[number] for number, _ in group.by_site.most_common()]
    yield from sorted(sites, key=lambda site: bool(group.change) and site.line != group.line)


def _remarks(steps: RunSteps, cut: float) -> tuple[str, ...]:
    """Return notes on how reliable the steps are: why the run was cut, and what ends a step."""
    if cut:
        return (
            f"the script was stopped after {cut:.0f} s, in the middle of the code that follows the last "
            "step: that code has more syncs",
        )
    if steps.marks and steps.marks[0].kind == "gradients":
        return (
            "no optimizer was created, so each backward pass counts as a step: if that is wrong, call "
            "`gapless.step()` at the end of an iteration",
        )
    if steps.marks and steps.marks[0].kind in UNTRAINED:
        return (
            f"nothing is trained: {steps.source} ends each step, unless your code calls `gapless.step()`",
        )
    if steps.seen and len(steps.steady) < 3:
        few = "1 step is" if steps.seen == 1 else f"{steps.seen} steps are"
        return (f"{few} too few to separate syncs in every step from those in the first steps",)
    return ()

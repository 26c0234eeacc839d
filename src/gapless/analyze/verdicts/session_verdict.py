"""The verdict on a checked script: what a step would lose, to what, and what to change first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from gapless.analyze.phrases.limiter import limit_sentence
from gapless.analyze.phrases.speed import format_utilisation, speed_text, time_range
from gapless.analyze.verdicts import unstarted
from gapless.analyze.verdicts.answer import with_answer
from gapless.analyze.verdicts.changes import MAX_CHANGES, changes
from gapless.analyze.verdicts.compiled_verdict import with_compiled_code
from gapless.analyze.verdicts.faults import with_faults
from gapless.analyze.verdicts.memory_verdict import fit_facts, with_memory
from gapless.analyze.verdicts.memory_verdict import verdict as of_memory
from gapless.analyze.verdicts.offers_verdict import offers_sentence
from gapless.analyze.verdicts.phases_verdict import (
    phase_changes,
    phase_clause,
    phase_syncs_per_step,
    worth_fixing,
)
from gapless.analyze.verdicts.readiness_verdict import with_readiness
from gapless.analyze.verdicts.remedies_verdict import with_remedies
from gapless.analyze.verdicts.unseen import unseen_notes
from gapless.model import Finding, Report, Verdict
from gapless.model.estimate import Estimate
from gapless.model.verdict import Change, Level
from gapless.model.wording import (
    count,
    duration,
    number,
    percent,
    rate,
    span,
    spans,
    three_digits,
    three_figures,
)

MIN_LOSS_SHARE = 0.001
"""Share of a step below which a loss is not worth fixing."""
MIN_WAITING_SHARE = 0.005
"""Share of a step that waiting must take to be mentioned."""
MIN_PADDING_SHARE = 0.01
"""Share of a step that unneeded work must take to be mentioned."""
MIN_STEADY_STEPS = 3
"""Steady steps needed to conclude that there are no syncs."""
_UNCOMPILED = (
    "Compiled code ran uncompiled here and keeps results that fused kernels never write: this is an upper "
    "limit"
)
ONE_BY_ONE = "GAP507"
"""The rule for optimizers that update their parameters one by one."""
_IN_STEPS = ("every-step", "some-steps")
"""Frequencies of syncs in training steps."""


def verdict(report: Report) -> Verdict:
    """Return the verdict of a session from the rest of its report."""
    return with_faults(with_compiled_code(with_readiness(_verdict(report), report), report), report)


def _verdict(report: Report) -> Verdict:
    """Return the verdict without compiled code, CUDA graphs and faults."""
    early = _verdict_without_steps(report)
    if early is not None:
        lacks = any(memory.lack is not None for memory in report.memory)
        unknown = (
            unstarted.ending_words(report) is not None and not lacks
        )  # the rest of the run may need more memory
        return early if unknown else with_answer(early, report)
    exhausted = next((memory for memory in report.memory if memory.lack is not None), None)
    if exhausted is not None:
        result = with_remedies(of_memory(exhausted), report)
        answer = next(offers_sentence(report), "")
        result = (
            msgspec.structs.replace(result, sentence=f"{answer}. {result.sentence}") if answer else result
        )
        compiled = report.estimate is not None and report.estimate.eager > 0
        return _with_uncompiled_note(result) if compiled else result
    estimate = report.estimate if report.estimate is not None and not report.estimate.refused else None
    late = _late_loader(report)
    sentence, level = _with_work(report, *_sentence(report, estimate, late))
    todo, per = _to_do(report, estimate, late) if level == "act" else ((), "")
    of_steps = Verdict(
        sentence=sentence,
        level=level,
        why=tuple(_why(report, estimate, late, level)),
        facts=(*fit_facts(report), *speed_facts(report, estimate)),
        do_first=todo,
        per=per,
        confidence=confidence(report, estimate),
        not_seen=tuple(unseen_notes(report)),
    )
    return with_answer(with_memory(of_steps, report), report)


def _with_uncompiled_note(verdict: Verdict) -> Verdict:
    """Return `verdict` saying that a run may not fit, because its compiled code ran uncompiled."""
    sentence = verdict.sentence.replace("Does not fit: needs", "May not fit: uncompiled, it needs", 1)
    return msgspec.structs.replace(verdict, sentence=sentence, why=(_UNCOMPILED, *verdict.why))


def _verdict_without_steps(report: Report) -> Verdict | None:
    """Return the verdict if no step on the GPU was seen, else None."""
    if report.steps.seen and not report.environment.unused:
        return None
    result = unstarted.verdict(report)
    if report.environment.unused:
        return result
    return msgspec.structs.replace(result, do_first=_unpriced_changes(report), per=_per(report))


def _per(report: Report) -> str:
    """Return what the numbers of changes refer to if none is in a step."""
    recurring = {finding.frequency.phase for finding in report.findings if finding.frequency.times}
    return f"at each {recurring.pop()}" if len(recurring) == 1 else "in all"


# -- what a step loses ------------------------------------------------------------------------------


def _late_loader(report: Report) -> Finding | None:
    """Return the priced finding of the loader that makes steps wait longest; None if there is none."""
    inputs = [
        finding for finding in report.findings if finding.code.startswith("GAP3") and not _at_most(finding)
    ]
    priced = [finding for finding in inputs if finding.price is not None]
    return max(priced, key=lambda finding: finding.price.last if finding.price else 0, default=None)


def _at_most(finding: Finding) -> bool:
    """Whether `finding` is about unneeded work, which nothing waits for."""
    return finding.price is not None and finding.price.at_most


def _padding(report: Report) -> Finding | None:
    """Return the finding of the padding that takes most of a step, if it is enough to mention."""
    padding = [finding for finding in report.findings if finding.price is not None and _at_most(finding)]
    most = max(padding, key=lambda finding: finding.price.last if finding.price else 0, default=None)
    price = most.price if most is not None else None
    return most if price is not None and price.of and price.last >= MIN_PADDING_SHARE * price.of else None


def _share_for_data(report: Report, late: Finding | None) -> float:
    """Return the share of a step in which the GPU waits for its batch, including what cannot be saved."""
    estimate = report.estimate
    if estimate is not None and estimate.waiting.likely:
        return estimate.waiting.likely / estimate.whole.likely
    if late is None or late.price is None:
        return 0.0
    waits = [late.price.last, *(use.late.likely for use in report.loaders if use.line == late.line)]
    begins = [
        finding
        for finding in report.findings
        if finding.code == LATE_FIRST_BATCH and finding.line == late.line
    ]
    beginning = sum(
        finding.price.last for finding in begins if finding.price is not None and finding is not late
    )
    return (max(waits) + beginning) / late.price.of if late.price.of else 0.0


def _sentence(report: Report, estimate: Estimate | None, late: Finding | None) -> tuple[str, Level]:
    """Return the sentence and level: what a step loses to data and to syncs."""
    in_steps = describe_syncs(report)
    more, apart = phase_clause(report, bool(in_steps)), worth_fixing(report)
    waiting = _share_for_data(report, late)
    if late is not None and late.price is not None and waiting >= MIN_WAITING_SHARE:
        step = late.price.of
        bound = estimate is not None and bool(estimate.reasons)
        saved = (estimate.saved.most if bound else estimate.saved.likely) if estimate is not None else 0
        stalls = saved / step if in_steps else 0.0
        lost = f"{percent(waiting)} waiting for data"
        if stalls >= MIN_LOSS_SHARE:
            total = percent(min(waiting + stalls, 1.0))
            both = f"{lost}, {'up to ' if bound else ''}{percent(stalls)} in {in_steps}"
            return f"Your GPU would idle for {total} of each step: {both}{more}", "act"
        return f"Your GPU would idle for {lost.replace(' waiting', ' of each step, waiting')}{more}", "act"
    if not in_steps:
        sample = f"{count(report.steps.steady, 'training step')}"
        if apart:
            return f"No syncs in training steps{more}", "act"
        if report.steps.steady < MIN_STEADY_STEPS:
            return f"Not enough was seen to tell: no syncs in {sample}", "unknown"
        return f"Nothing worth fixing: no syncs in {sample}{more}", "fine"
    if estimate is None or not _has_prices(report):
        return f"{in_steps}{more}", "act"
    step = estimate.whole.likely
    most = estimate.saved.most / step if step else 0.0
    if not apart and most < (MIN_WAITING_SHARE if report.steps.waits_per_step < 1 else MIN_LOSS_SHARE):
        below = f"below {percent(MIN_LOSS_SHARE)}" if most < MIN_LOSS_SHARE else f"at most {percent(most)}"
        return f"Nothing worth fixing: {in_steps}{_single_place(report)}, {below} of a step{more}", "fine"
    if estimate.reasons:
        return f"{in_steps}: together up to {percent(most)} of each step{more}", "act"
    if not estimate.saved.tells(step):
        if estimate.saved.small(step) and not apart:
            where = f"{in_steps}{_single_place(report)}"
            return f"{where}: too small to tell, at most {percent(most)} of a step{more}", "fine"
        return f"{in_steps}: together up to {percent(most)} of each step, or nothing{more}", "act"
    likely, least = percent(estimate.saved.likely / step), percent(estimate.saved.least / step)
    ends = f" ({least}–{percent(most)})".replace(" %", "") if least != percent(most) else ""
    return f"{in_steps}: together {likely}{ends} of each step{more}", "act"


def _slow_optimizer(report: Report) -> Finding | None:
    """Return the finding of the costliest optimizer that updates parameters one by one."""
    results = [
        finding for finding in report.findings if finding.code == ONE_BY_ONE and finding.price is not None
    ]
    return max(results, key=lambda finding: finding.price.last if finding.price else 0, default=None)


def _with_work(report: Report, sentence: str, level: Level) -> tuple[str, Level]:
    """Add to the sentence what is lost without waiting: to an optimizer, and to padding."""
    lost = "; ".join(filter(None, (_optimizer_clause(report), _padding_clause(report))))
    if not lost:
        return sentence, level
    return (f"{sentence}; {lost}" if level == "act" else lost[0].upper() + lost[1:]), "act"


def _optimizer_clause(report: Report) -> str:
    """Say what a step loses to parameters updated one by one; "" if nothing."""
    finding = _slow_optimizer(report)
    price = finding.price if finding is not None else None
    if price is None or not price.of:
        return ""
    likely, least, most = (
        percent(time / price.of) for time in (price.last, price.least_last, price.most_last)
    )
    lost = f"the optimizer loses {likely} ({least}–{most})".replace(" %–", "–")
    return f"{lost} of each step to parameters updated one by one"


def _padding_clause(report: Report) -> str:
    """Say what a step loses to padding; "" if nothing."""
    finding = _padding(report)
    price = finding.price if finding is not None else None
    return f"up to {percent(price.last / price.of)} of each step goes to padding" if price is not None else ""


def describe_syncs(report: Report) -> str:
    """Return ``7 syncs in every step``, ``2.2 syncs per step (2 to 3)`` or ``1 sync every 10 steps``; ""
    for none."""
    steps = report.steps
    if not steps.most:
        return ""
    if steps.side_by_side:
        return _side_by_side(steps.side_by_side)
    inside = _syncs_in_steps(report)
    if steps.least == steps.most:
        return f"{count(steps.most, 'sync')} in every step"
    rare = [finding for finding in inside if finding.frequency.every > 1]
    together = sum(finding.frequency.waits for finding in rare)
    if not steps.least and len(inside) == len(rare) and together == steps.most:  # all in the same steps
        return f"{count(together, 'sync')} every {rare[0].frequency.every} steps"
    if steps.waits_per_step < 1:
        return rate(steps.waits_per_step, "sync")
    if not steps.least:
        return f"up to {count(steps.most, 'sync')} in a step"
    return f"{steps.least} to {steps.most} syncs in every step"


def _side_by_side(means: Sequence[float]) -> str:
    """Return ``1 sync in every step of one training loop and 2 of the other`` for parallel loops."""
    several = f"{len(means)} training loops that run side by side"
    least, most = min(means), max(means)
    if least == most:
        return f"{_rate(least)} in each of {several}"
    if len(means) == 2:
        second = number(means[1]) if least >= 1 else _rate(means[1])
        return f"{_rate(means[0])} in one training loop and {second} in the one beside it"
    return f"{_rate(least)} to {_rate(most)} in {several}"


def _rate(mean: float) -> str:
    """Return ``2.5 syncs per step``, or ``no syncs``."""
    return rate(mean, "sync") if mean else "no syncs"


def _syncs_in_steps(report: Report) -> list[Finding]:
    """Return the findings of syncs in training steps."""
    return [
        finding
        for finding in report.findings
        if finding.frequency.when in _IN_STEPS and finding.frequency.waits
    ]


def _has_prices(report: Report) -> bool:
    """Whether syncs in training steps have prices; those in steps that contain phases have none."""
    return any(finding.price is not None for finding in _syncs_in_steps(report))


def _single_place(report: Report) -> str:
    """Return the line in parentheses if all syncs are at one, else ""."""
    inside = _syncs_in_steps(report)
    line = inside[0].line if len(inside) == 1 else None
    return f" ({line.short})" if line is not None else ""


# -- why ----------------------------------------------------------------------------------------------


def _why(report: Report, estimate: Estimate | None, late: Finding | None, level: Level) -> Iterator[str]:
    """Yield the evidence behind the sentence, the limit of a step and its prices."""
    if level == "fine" and estimate is not None and estimate.limiter and not estimate.reasons:
        launches = estimate.limiter == "host" and not estimate.eager and estimate.compiling is None
        yield limit_sentence(estimate) + (_COMPILING if launches else "")
    if level != "act":
        return
    wasted = _padding(report)
    for of_input in (late, wasted):
        if of_input is not None and of_input.evidence:
            yield of_input.evidence[0]
    inside = _syncs_in_steps(report)
    if len(inside) > 1 and report.steps.waits_per_step and not report.steps.side_by_side:
        most = max(inside, key=lambda finding: finding.frequency.per_step)
        part = most.frequency.per_step / report.steps.waits_per_step
        if part >= 0.4:
            at = f" at {most.line.short}" if most.line is not None else ""
            yield f"{percent(part)} of the syncs are {most.name}{at}"
    if estimate is None and report.estimate is not None:
        yield f"No prices: {report.estimate.refused}"
    elif estimate is not None and (report.steps.most or late or _slow_optimizer(report) or wasted):
        if estimate.reasons:
            yield f"Upper limits: {'; '.join(estimate.reasons)}"
        elif late is None:
            yield limit_sentence(estimate) + _blocked_clause(estimate)
    if estimate is not None and estimate.uncalibrated > 0 and estimate.profiled > 0:
        off = three_digits(estimate.uncalibrated / estimate.profiled)
        step = duration(estimate.profiled)
        yield f"Without the profile, the estimate was {off} × the profile's step of {step}"


LATE_FIRST_BATCH = "GAP305"
"""The rule for a loader whose first batch comes late."""

_COMPILING = ": `--what-if compile` estimates what compiling would bring"


def _blocked_clause(estimate: Estimate) -> str:
    """Return ``; syncs block the CPU for 12 ms (8–19) of each step``; "" if next to nothing."""
    if estimate.blocked.likely < MIN_WAITING_SHARE * estimate.step.likely:
        return ""
    return f"; syncs block the CPU for {time_range(estimate.blocked)} of each step"


# -- what to do first -----------------------------------------------------------------------------------


def _to_do(report: Report, estimate: Estimate | None, late: Finding | None) -> tuple[tuple[Change, ...], str]:
    """Return the changes of steps and phases, and what their numbers refer to."""
    todo, apart = _changes(report, estimate, late), phase_changes(report)
    if not apart:
        return (
            (todo, "per step")
            if todo
            else (_unpriced_changes(report), "per step" if describe_syncs(report) else _per(report))
        )
    if not todo and (estimate is None or not _has_prices(report)):
        todo = _by_syncs(report, _steady_rates(report))
    starved = _share_for_data(report, late) >= MIN_WAITING_SHARE
    if (
        phase_syncs_per_step(report) > report.steps.waits_per_step and not starved
    ):  # phases have the most syncs
        return (*apart, *todo)[:MAX_CHANGES], "per step" if todo else ""
    return (*todo[: MAX_CHANGES - len(apart)], *apart), "per step" if todo else ""


def _changes(report: Report, estimate: Estimate | None, late: Finding | None) -> tuple[Change, ...]:
    """Return the changes that shorten a step, by price."""
    if estimate is None and late is None:
        return ()
    bound = estimate is not None and bool(estimate.reasons)
    before = float(estimate.whole.likely) if estimate is not None else 0.0
    savings: list[tuple[int, float]] = []
    for position, finding in enumerate(report.findings):
        price = finding.price
        if price is None:
            continue
        if finding.code == ONE_BY_ONE:
            savings.append((position, float(price.last)))
        elif finding.code.startswith("GAP3"):
            if finding is late:
                before = max(before, float(price.of))
            savings.append((position, float(price.last)))
    savings += _wait_savings(report.findings, estimate, bound) if estimate is not None else []
    # If workers make batches too slowly, a shorter step only waits longer: mend the loader first.
    beside_it = estimate is not None and estimate.overlapped and late is not None
    first = [position for position, finding in enumerate(report.findings) if beside_it and finding is late]
    return changes(report.findings, savings, before, bound=bound, first=first)


def _wait_savings(findings: Sequence[Finding], estimate: Estimate, bound: bool) -> list[tuple[int, float]]:
    """Return positions of sync findings, those that save most first, with what mending each adds."""
    prices = estimate.prices
    positions = {id(finding.price): n for n, finding in enumerate(findings) if finding.price is not None}
    gains: list[tuple[int, float]] = []
    before = 0
    for at, saved in zip(prices.shortest, prices.saved, strict=True):
        position = positions.get(id(prices.each[at]))
        if position is not None and not findings[position].frequency.rare:
            gains.append((position, float(saved - before)))
        before = saved
    if bound and before:  # an upper limit of all, shared out as the likely savings are
        gains = [(position, saving * estimate.saved.most / before) for position, saving in gains]
    return gains


def _unpriced_changes(report: Report) -> tuple[Change, ...]:
    """Return changes without prices: by syncs per step, or per evaluation if steps have none."""
    counts = _steady_rates(report)
    if not counts:
        together = (
            len({finding.frequency.phase for finding in report.findings if finding.frequency.times}) == 1
        )
        counts = {
            n: finding.frequency.waits if together else float(finding.frequency.total)
            for n, finding in enumerate(report.findings)
            if finding.frequency.when in ("evaluation", "phase", "no-steps")
        }
    return _by_syncs(report, counts)


def _steady_rates(report: Report) -> dict[int, float]:
    """Return syncs per step of the findings that recur more often than a log line."""
    steady = ((n, finding.frequency) for n, finding in enumerate(report.findings))
    return {n: timing.per_step for n, timing in steady if timing.per_step and not timing.rare}


def _by_syncs(report: Report, counts: dict[int, float]) -> tuple[Change, ...]:
    """Return changes by number of syncs: `counts`, by position in the findings."""
    return changes(report.findings, counts.items(), float(sum(counts.values())), unit="syncs")


_MAX_SAME_RATIO = 1.05
"""Ratio of an interval's ends below which no interval is shown."""


def speed_facts(report: Report, estimate: Estimate | None) -> Iterator[str]:
    """Yield the throughput of steps, and how long the whole run takes."""
    if estimate is None:
        return
    done, whole = estimate.throughput, estimate.whole
    counts = (("samples", done.samples), ("tokens", done.tokens)) if done is not None else ()
    parts = [
        f"{speed_text(counted.number, whole)} {name}/s" for name, counted in counts if counted is not None
    ]
    if parts and done is not None and done.flops and done.peak:
        peak = f"{three_figures(done.peak)} TFLOP/s in {done.unit}"
        parts.append(f"MFU {format_utilisation(done, whole)} of {peak}")
    if parts:
        of_rank = " of this rank" if report.environment.world_size > 1 else ""
        yield f"Speed{of_rank}: {', '.join(parts)}"
    yield from _whole_run_sentence(report, estimate)


def _whole_run_sentence(report: Report, estimate: Estimate) -> Iterator[str]:
    """Yield ``All 2,560 steps (20 passes) take 2.9 min (2–4 min)``."""
    planned, each = report.planned, estimate.whole
    if not planned.steps or not each.likely:
        return
    passes = f" in {planned.passes:,} passes" if planned.passes > 1 else ""
    least, likely, most = (planned.steps * time for time in (each.least, each.likely, each.most))
    between = "" if most < _MAX_SAME_RATIO * least else f" ({spans(least, most)})"
    limit = "at most " if planned.most else ""
    subject = (
        "run" if report.steps.noun == "step" else "loop"
    )  # an inference script may do more than its loop
    yield f"The whole {subject}: {limit}{planned.steps:,} steps{passes}, {span(likely)}{between}"


def confidence(report: Report, estimate: Estimate | None) -> str:
    """Return what the numbers are based on: ``A100, estimated: step 8.8 ms (7–11 ms)``."""
    if estimate is None:
        return f"counted on an emulated {report.environment.device}" if report.environment.emulated else ""
    basis = "times from a real profile" if estimate.calibrated else "estimated"
    gpu = (estimate.gpu or report.environment.device).removeprefix("NVIDIA ")
    on_time = f"; {time_range(estimate.step)} if every batch were on time" if estimate.waiting.likely else ""
    return f"{gpu}, {basis}: step {time_range(estimate.whole)}{on_time}"

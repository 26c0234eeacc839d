"""`Session` to `Report`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gapless.analyze.frequency import frequency
from gapless.analyze.group import Group, group_events
from gapless.analyze.loaders import with_loaders
from gapless.analyze.loop import ReadSource, read_source, training_loop
from gapless.analyze.sentence import sentence
from gapless.analyze.settle import settle
from gapless.analyze.steps import Steps, find_steps
from gapless.model import Finding, Report, Session, SourceLine, StepSummary
from gapless.model.estimate import Estimate

_ORDER = ("every-step", "some-steps", "no-steps", "evaluation", "first-step", "set-up", "after")


def report(session: Session, read: ReadSource = read_source, priced: bool = True) -> Report:
    """What `session` means: its findings, the worst first. `read` gives the text of source files.

    With `priced`, what a step and each wait in it would take on the GPU is estimated, where the session holds
    what its steps asked of the device.
    """
    steps = find_steps(session.marks)
    session = msgspec.structs.replace(session, events=settle(session, steps))
    loop = training_loop(steps.marks, session.marks, read)
    groups = group_events(session, steps, loop)
    summary = summarize(groups, steps)
    findings = [finding(group, session, steps) for group in groups]
    estimate, findings = _estimated(session, steps, groups, findings) if priced else (None, findings)
    found = Report(
        sentence=sentence(session, summary),
        script=session.script,
        environment=session.environment,
        ending=session.ending,
        steps=summary,
        findings=order(findings),
        notes=session.notes + _remarks(steps),
        estimate=estimate,
    )
    return with_loaders(found, session.loaders)


def _estimated(
    session: Session, steps: Steps, groups: Sequence[Group], findings: list[Finding]
) -> tuple[Estimate | None, list[Finding]]:
    """The estimate, where there is one, and the findings of training steps with their prices in it."""
    if session.programme is None:
        return None, findings
    from gapless.analyze.estimate.estimate import estimate  # the replay is loaded when it is needed

    inside = [n for n, one in enumerate(findings) if one.frequency.when in ("every-step", "some-steps")]
    found = estimate(session, steps, {n: sorted(groups[n].by_site) for n in inside})
    if found is None or not found.prices.each:
        return found, findings
    priced = dict(zip(inside, found.prices.each, strict=True))
    return found, [
        msgspec.structs.replace(one, price=priced[n]) if n in priced and priced[n].waits else one
        for n, one in enumerate(findings)
    ]


def summarize(groups: Sequence[Group], steps: Steps) -> StepSummary:
    """Waits per steady training step; those of evaluation in between and of the set-up do not count."""
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
    )


def finding(group: Group, session: Session, steps: Steps) -> Finding:
    """`group` as a finding."""
    sites = tuple(dict.fromkeys(session.sites[number] for number, _ in group.by_site.most_common()))
    return Finding(
        code=group.rule.code,
        name=group.rule.name,
        line=group.line,
        frequency=frequency(group, steps),
        remedy=group.remedy,
        operators=tuple(dict.fromkeys(site.operator for site in sites)),
        library_stack=sites[0].library_frames,
        backward=group.backward,
        node=sites[0].node,
        bytes=group.bytes,
        sites=sites,
    )


def order(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """`findings`, the worst first: each step before some steps, and those before what happens once; of equal
    frequency the dearest."""

    def weight(one: Finding) -> tuple[object, ...]:
        often = one.frequency
        line = one.line or SourceLine("", 0)
        place = (line.file, line.line, one.backward, one.code, one.remedy)
        price = (one.price.last, one.price.alone) if one.price is not None else (0, 0)
        return (_ORDER.index(often.when), -often.per_step, -often.waits, -price[0], -price[1], place)

    return tuple(sorted(findings, key=weight))


def _remarks(steps: Steps) -> tuple[str, ...]:
    if steps.seen and len(steps.steady) < 3:
        few = "1 step is" if steps.seen == 1 else f"{steps.seen} steps are"
        return (f"{few} too few to tell waits of every step from those of the first ones",)
    return ()

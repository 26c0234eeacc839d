"""The verdict on profiles of one run: why the GPU idles, and what to change first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from gapless.analyze.phrases.copy_share import copies_dominate
from gapless.analyze.verdicts import copies_verdict as copies
from gapless.analyze.verdicts.changes import MAX_CHANGES, action_of, changes
from gapless.model import NOTHING, Cause, Change, Finding, Profile, Report, Verdict
from gapless.model.profile import Asked, Prices
from gapless.model.verdict import Level
from gapless.model.wording import ASSUMED, count, duration, percent

MIN_NAMED_CAUSE_SHARE = 0.05
"""Share of the steps from which a cause is named in the sentence."""
MAX_FINE_IDLE_SHARE = 0.02
"""Idle share of the steps below which there is nothing to gain."""
_MAX_MAIN_WORK = 3
"""Operators named of a busy GPU."""

_RECORDING = "GAP7"
"""Prefix of rules about how the profile was taken: training without it does not pay for them."""

_CLAUSES: dict[Cause, str] = {
    "input": "because the next batch is late",
    "wait": "because of syncs: the CPU waits for the GPU and then has nothing queued",
    "communication": "while ranks communicate or wait for one another",
    "launch": "because kernels finish faster than the CPU launches them",
    "host": "while the CPU does other work between launches",
    "allocator": "while the allocator gets memory from the driver or returns it",
    "graph": "in long driver calls (graph launches, compilation)",
    "profiler": "because of the profiler's own overhead",
    "unknown": "for a reason that was not recorded",
}
"""What the GPU idles for, as clauses."""


def verdict(report: Report, profile: Profile) -> Verdict:
    """Return the verdict on `profile`; `report` holds its findings."""
    total = profile.steps.total
    if not total:
        return Verdict(sentence="The trace covers no time", level="unknown")
    if not profile.coverage.complete:
        return _incomplete(profile)
    do_first = _changes(report, profile)
    sentence, level = _sentence(report, profile, do_first)
    return Verdict(
        sentence=sentence,
        level=level,
        why=tuple(_why(report, profile, level)),
        do_first=do_first if level == "act" else (),
        confidence=_confidence(profile),
        not_seen=tuple(_missing(profile)),
        per="per step" if profile.steps.count > 1 else "",
    )


def _incomplete(profile: Profile) -> Verdict:
    """Return the verdict if too many records are missing."""
    coverage = profile.coverage
    remedy = coverage.remedy
    return Verdict(
        sentence=f"Cannot tell: {coverage.reason}",
        level="unknown",
        why=(*_idle_bounds(profile), f"{remedy[:1].upper()}{remedy[1:]}"),
        confidence=_confidence(profile),
        not_seen=tuple(_missing(profile)),
    )


def _idle_bounds(profile: Profile) -> Iterator[str]:
    """Yield the GPU's idleness as far as known: exactly, between bounds, or not at all."""
    coverage, total = profile.coverage, profile.steps.total
    idle = profile.idle / total
    period = _period(profile)
    if coverage.idle_known:
        yield f"The GPU idles {percent(idle)} of {period}; the reason cannot be determined"
    elif coverage.profiles > 1 or coverage.processes > 1 or coverage.contradictory:
        return
    elif coverage.cut or coverage.unrecorded:
        yield f"In what was recorded, the GPU idles {percent(idle)}; this says little about {period}"
    else:
        least = max(idle - coverage.hidden / total, 0.0)
        bounded = coverage.hidden and not any(gap.kind == "record" for gap in coverage.missing)
        between = f"between {percent(least)} and {percent(idle)}" if bounded else f"at most {percent(idle)}"
        yield f"As far as this was recorded, the GPU idles {between} of {period}"


def _period(profile: Profile) -> str:
    """Return what times refer to: ``each 2 ms step``, or the whole recording."""
    steps = profile.steps
    if steps.source == "span":
        return f"the {duration(steps.total)} recorded"
    return f"each {duration(steps.mean)} step"


def _sentence(report: Report, profile: Profile, do_first: Sequence[Change]) -> tuple[str, Level]:
    """Return the sentence and level: how much the GPU idles, and why."""
    total, idle = profile.steps.total, profile.idle
    period = _period(profile)
    who = "Your GPU"
    if report.ranks:
        named = f"rank {profile.rank}" if profile.rank >= 0 else "the slowest rank"
        who = f"The GPU of {named} (of {len(report.ranks)} in these files)"
    causes = profile.idle_by_cause()
    if copies_dominate(profile):
        rank_words = who.removeprefix("The GPU") if report.ranks else ""
        level: Level = "act" if copies.is_actionable(profile, report.findings) else "fine"
        return copies.sentence(profile, period, rank_words), level
    if idle < MAX_FINE_IDLE_SHARE * total:
        return (
            f"{who} is busy {percent(1 - idle / total)} of {period}: nothing to gain from less waiting",
            "fine",
        )
    if idle < MIN_NAMED_CAUSE_SHARE * total and not _saves_much(do_first):
        return f"{who} is busy {percent(1 - idle / total)} of {period}: waits are not worth fixing", "fine"
    sentence = f"{who} idles {percent(idle / total)} of {period}"
    if not causes or causes[0][1] < MIN_NAMED_CAUSE_SHARE * total:
        return f"{sentence}, with no single dominant cause", "act"
    cause, lost = causes[0]
    part = f", mostly ({percent(lost / total)})" if lost < 0.95 * idle else ""
    return f"{sentence}{part or ','} {_CLAUSES[cause]}", "act"


def _saves_much(do_first: Sequence[Change]) -> bool:
    """Whether these changes together save more than what is fine to lose."""
    return bool(do_first) and do_first[-1].after < (1 - MAX_FINE_IDLE_SHARE) * do_first[0].before


def _main_work(profile: Profile) -> str:
    """Return where a busy GPU's time goes: the operators whose kernels take most of the steps."""
    times: Counter[str] = Counter()
    for kernel in profile.kernels:
        times[kernel.operator or kernel.name] += kernel.total
    total = profile.steps.total
    parts = [
        f"{percent(time / total)} {name.partition('(')[0]}"
        for name, time in times.most_common(_MAX_MAIN_WORK)
        if time >= MIN_NAMED_CAUSE_SHARE * total
    ]
    return f"Its time goes to {', '.join(parts)}" if parts else ""


def _why(report: Report, profile: Profile, level: Level) -> Iterator[str]:
    """Yield the answer to a what-if, and the evidence of the costliest finding."""
    prices = profile.prices
    if prices is not None and prices.asked is not None:
        yield _what_if_answer(prices, prices.asked)
    if copies_dominate(profile):
        yield from copies.why(profile)
        return
    if level == "fine":
        if work := _main_work(profile):
            yield work
        return
    idle = [finding for finding in report.findings if finding.loss is not None and finding.loss.idle]
    fixable = (finding for finding in idle if not action_of(finding).startswith(NOTHING))
    worst = next(fixable, idle[0] if idle else None)
    if worst is not None:
        place = worst.line.short if worst.line is not None else worst.place or "unknown lines"
        culprit = f"{worst.name} at {place}"
        skip = _is_the_sentence(worst, profile)  # not repeated
        sentences = [
            text.replace("because of it", f"because of {culprit}") for text in worst.evidence[skip : skip + 2]
        ]
        yield from (f"{text[:1].upper()}{text[1:]}" for text in sentences)


def _is_the_sentence(worst: Finding, profile: Profile) -> bool:
    """Whether the evidence of `worst` repeats the sentence: it has all idleness of the main cause."""
    causes = profile.idle_by_cause()
    assert worst.loss is not None
    if not causes or len(worst.evidence) < 2 or "because of it" in worst.evidence[0]:  # it names the line
        return False
    return worst.loss.idle >= 0.99 * causes[0][1]


def _what_if_answer(prices: Prices, question: Asked) -> str:
    """Return the answer to ``--without`` and ``--what-if``."""
    parts = (
        [f"without {' and '.join(question.what)} ({count(question.waits, 'sync')})"] if question.what else []
    )
    parts += [
        ASSUMED.get(change, f"with {change.removeprefix('half:')} twice as fast")
        for change in question.assumed
    ]
    text = ", ".join(parts)
    whole, left = duration(prices.span), duration(prices.span - question.saved)
    text = f"{text[:1].upper()}{text[1:]}, the {whole} recorded would "
    if not question.saved:
        text += "take as long"
    elif left == whole:
        text += f"take {duration(abs(question.saved))} {'less' if question.saved > 0 else 'more'}"
    else:
        share = percent(abs(question.saved) / prices.span)
        text += f"take {left}, {share} {'less' if question.saved > 0 else 'more'}"
    if question.least < question.saved:
        waiting = duration(question.saved - question.least)
        text += f" ({waiting} of it only if the other ranks also arrive earlier)"
    return f"At best: {text[:1].lower()}{text[1:]}" if prices.reasons else text


def _confidence(profile: Profile) -> str:
    """Return the GPU and the number of steps."""
    steps = profile.steps
    marked = "no steps are marked" if steps.source == "span" else count(steps.count, "step")
    return ", ".join(part for part in (profile.gpu, marked) if part)


def _missing(profile: Profile) -> Iterator[str]:
    """Yield what is missing from a profile that has enough for a verdict."""
    coverage = profile.coverage
    if coverage.excerpt:
        yield f"The trace is an excerpt: {coverage.excerpt:,} CPU events came before it"
    if coverage.endless and coverage.complete and not coverage.excerpt:
        yield "The trace lacks the profiler's end mark, so its end may be missing"
    if coverage.silent and coverage.complete:
        yield f"Nothing was recorded in the first {duration(coverage.silent)} of the trace"
    if coverage.bare:
        yield "The trace has no CPU operators"
    if coverage.complete and coverage.missing:
        yield f"The trace has {100 * coverage.share:.1f} % of the records"
    elif coverage.complete and coverage.broken:
        yield f"{count(coverage.broken, 'damaged event')} {'was' if coverage.broken == 1 else 'were'} skip"


def _changes(report: Report, profile: Profile) -> tuple[Change, ...]:
    """Return the changes: syncs at the replay's price, everything else at its idleness."""
    per = max(profile.steps.count, 1)
    prices = profile.prices
    trusted = prices is not None and not prices.refused and not prices.reasons
    savings = list(_replay_savings(report.findings, prices, per)) if prices is not None and trusted else []
    priced = {position for position, _ in savings}
    for position, finding in enumerate(report.findings):
        if finding.code.startswith(_RECORDING):
            continue
        idle = finding.loss.idle if finding.loss is not None and position not in priced else 0
        if idle and (finding.price is None or not trusted):
            savings.append((position, idle * profile.unrecorded_idle / max(profile.idle, 1) / per))
    pins = copies.pinning_changes(profile, report.findings) if copies_dominate(profile) else ()
    mended = {position for pin in pins for position in pin.findings}
    left = pins[-1].after if pins else profile.unrecorded_step
    savings = [(position, saving) for position, saving in savings if position not in mended]
    if copies_dominate(profile):
        beside = [n for n, finding in enumerate(report.findings) if finding.code == "GAP302"]
        savings += [(position, copies.overlap_saving(profile, left)) for position in beside[:1]]
    return (*pins, *changes(report.findings, savings, left, bound=True))[:MAX_CHANGES]


def _replay_savings(findings: Sequence[Finding], prices: Prices, per: int) -> Iterator[tuple[int, float]]:
    """Yield positions of sync findings in the replay's order, with what mending each adds."""
    positions = {finding.price.costs: n for n, finding in enumerate(findings) if finding.price is not None}
    before = 0
    for at, saved in zip(prices.shortest, prices.saved, strict=True):
        position = positions.get(prices.each[at].costs)
        if position is not None:
            yield position, (saved - before) / per
        before = saved

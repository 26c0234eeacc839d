"""Apply every rule to profiles and sort the findings by lost GPU time."""

from __future__ import annotations

from collections.abc import Sequence

from gapless.analyze.collectives.ranks import compare_ranks
from gapless.analyze.findings.finding import finding
from gapless.analyze.findings.order import order
from gapless.analyze.profile.grouping import (
    MIN_IDLE_SHARE,
    MIN_WORKING_SHARE,
    WaitGroup,
    group_waits,
    is_long_wait,
    waits_for_unrecorded,
)
from gapless.model import Finding, Frequency, Hit, Loss, Profile, ProfileRule, RanksRule, Rule, Site, When
from gapless.model.profile import Price
from gapless.model.wording import count, duration, percent
from gapless.rules import rules_of_kind

_RECORDING = "GAP7"
"""Rules about how the profile was recorded: the only ones applied to incomplete profiles, beside waits."""


def find_in_profiles(profiles: Sequence[Profile]) -> tuple[Finding, ...]:
    """Apply the rules to the profiles of one run's ranks; the first is examined in full."""
    if not profiles:
        return ()
    main = profiles[0]
    findings_ = [_finding_of_waits(group, main) for group in group_waits(main.costs)]
    rules = [
        rule
        for rule in rules_of_kind(ProfileRule)
        if main.coverage.complete or rule.code.startswith(_RECORDING)
    ]
    hits = [(rule, hit) for rule in rules for hit in rule.of_profile(main)]
    ranks = None
    if len(profiles) > 1 and all(profile.coverage.complete for profile in profiles):
        ranks = compare_ranks(profiles)
        hits = [(rule, rule.beside(hit, ranks)) for rule, hit in hits]
    findings_ += [_finding_of_hit(rule, hit, main) for rule, hit in hits]
    if ranks is not None:
        findings_ += [
            _finding_of_hit(rule, hit, main)
            for rule in rules_of_kind(RanksRule)
            for hit in rule.of_ranks(ranks)
        ]
    return order(findings_)


def _finding_of_waits(group: WaitGroup, profile: Profile) -> Finding:
    costs = [profile.costs[position] for position in group.costs]
    longest = max(costs, key=lambda cost: (cost.idle, cost.blocked))
    idle = sum(cost.idle for cost in costs) if profile.coverage.complete else 0
    blocked, working = sum(cost.blocked for cost in costs), sum(cost.working for cost in costs)
    price = _price(group, profile)
    # Only pinned memory also shortens the copy itself.
    faster = price is not None and price.alone >= (1 - MIN_WORKING_SHARE) * blocked
    faster = faster and all(cost.site.mechanism == "h2d" for cost in costs)
    hidden = not faster and waits_for_unrecorded(idle, blocked, working, profile.steps.total)
    loss = Loss(
        idle=idle,
        share=_share(idle, profile),
        blocked=blocked,
        working=working,
        unknown=not profile.coverage.complete or hidden,
        calls=sum(cost.calls for cost in costs),
        start=longest.start,
        end=longest.end,
    )
    return finding(
        group.rule,
        Hit(
            evidence=_evidence(loss, profile, faster),
            remedy=group.remedy,
            bytes=sum(cost.bytes for cost in costs),
        ),
        _frequency(loss.calls, max(cost.steps for cost in costs), profile),
        sites=tuple(cost.site for cost in costs),
        line=group.line,
        place=group.place,
        backward=group.backward,
        loss=loss,
        price=None if loss.unknown else price,
    )


def _price(group: WaitGroup, profile: Profile) -> Price | None:
    if profile.prices is None:
        return None
    return next(
        (candidate for candidate in profile.prices.each if candidate.costs == tuple(group.costs)), None
    )


def _evidence(loss: Loss, profile: Profile, faster: bool) -> tuple[str, ...]:
    """Put the numbers of a wait into words, also of a long wait that cost nothing."""
    steps = max(profile.steps.count, 1)
    per = (
        f"of each {duration(profile.steps.mean)} step" if steps > 1 else f"of {duration(profile.steps.total)}"
    )
    sentences = []
    if loss.share >= MIN_IDLE_SHARE:
        sentences.append(
            f"the GPU idles {duration(loss.idle / steps)} {per} because of it, {percent(loss.share)}"
        )
    if loss.calls:
        per_step, syncs = " per step" if steps > 1 else "", count(loss.calls, "sync")
        blocked = f"the CPU stops for {duration(loss.blocked / steps)}{per_step}, {syncs} in all"
        if not profile.coverage.complete:
            blocked += "; the cost is unknown"
        elif loss.unknown:
            blocked += ", for something that the profile does not show: the cost is unknown"
        elif is_long_wait(loss.idle, loss.blocked, profile.steps.total):
            blocked += (
                ", while its copies run"
                if faster
                else ", nearly all of it while the GPU works: shortening the sync alone gains little"
            )
        sentences.append(blocked)
    return tuple(sentences)


def _finding_of_hit(rule: Rule, hit: Hit, profile: Profile) -> Finding:
    loss = Loss(
        idle=hit.idle,
        share=_share(hit.idle, profile),
        blocked=hit.blocked,
        calls=hit.calls,
        start=hit.start,
        end=hit.end,
        rank=hit.rank,
    )
    frequency = _frequency(hit.calls, hit.steps, profile)
    return finding(rule, hit, frequency, place=_place_of(hit.site, profile) if hit.site else "", loss=loss)


def _place_of(site: Site, profile: Profile) -> str:
    """Return in words where a site without a line is."""
    places = (cost.place for cost in profile.costs if cost.site == site and cost.place)
    return next(places, site.operator)


def _share(time: int, profile: Profile) -> float:
    return time / profile.steps.total if profile.steps.total else 0.0


def _frequency(calls: int, steps: int, profile: Profile) -> Frequency:
    """Return how often a finding occurs, by steps if the trace has any."""
    every = profile.steps.count
    when: When = "some-steps"
    if profile.steps.source == "span" or every < 2:
        when = "no-steps"
    elif steps >= every:
        when = "every-step"
    per_step = calls / every if every else 0.0
    return Frequency(
        when=when, waits=calls if when == "no-steps" else per_step, per_step=per_step, total=calls
    )

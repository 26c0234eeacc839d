"""Findings about how loaders fed a run, and about a profile whose loader was measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import NormalDist

import msgspec
import numpy as np

from gapless.analyze.findings.finding import finding
from gapless.analyze.findings.order import order
from gapless.analyze.tables.loader_tables import tables
from gapless.analyze.verdicts.loader_verdict import verdict
from gapless.model import Finding, Frequency, Hit, LoaderRule, Report, Rule
from gapless.model.estimate import BATCHES_IN_TIME, SMALL_SAVING_SHARE, Estimate, Range
from gapless.model.loader_use import LoaderUse
from gapless.model.loading import Diagnosis
from gapless.model.profile import Price, Profile
from gapless.model.wording import duration
from gapless.rules import _loader as loader_advice
from gapless.rules import rules_of_kind

STARVED = "GAP301"
"""The rule for a loader that does not keep up with the steps."""
_Z_90 = NormalDist().inv_cdf(0.9)
"""The standard normal's 90th percentile: the ends of an interval, in standard deviations."""
_STEP_QUANTILES = [NormalDist().inv_cdf((place + 0.5) / 64) for place in range(64)]
"""Equally likely lengths of a step, in standard deviations."""
_MAX_RATIO = 2.0
"""Factor by which measurement and profile may differ and still describe the same loader."""


def report(diagnosis: Diagnosis) -> Report:
    """Return the diagnosis of a loader as a report."""
    return Report(
        verdict=verdict(diagnosis),
        kind="loader",
        findings=order(findings([_single_use(diagnosis)])),
        tables=tables(diagnosis),
        notes=diagnosis.notes,
        loader=diagnosis,
    )


def _single_use(diagnosis: Diagnosis) -> LoaderUse:
    """Return the loader as a run uses it that takes one batch per step."""

    def exactly(nanoseconds: float) -> Range:
        return Range(*[round(nanoseconds)] * 3)

    is_predicted = (
        diagnosis.demand.step > 0
        and diagnosis.now is not None
        and diagnosis.advised is not None
        and diagnosis.doubt is None
    )
    best = diagnosis.remedy.advised if diagnosis.remedy is not None else diagnosis.advised
    return LoaderUse(
        dataset=diagnosis.dataset,
        made=diagnosis.line,
        setting=diagnosis.setting,
        length=diagnosis.length,
        per_step=1.0,
        step=exactly(diagnosis.demand.step),
        late=exactly(diagnosis.now.wait) if is_predicted and diagnosis.now is not None else Range(),
        left=exactly(best.wait) if is_predicted and best is not None else Range(),
        fetch=diagnosis.fetch,
        diagnosis=diagnosis if diagnosis.doubt is None else None,
        mistakes=diagnosis.correctness.mistakes if diagnosis.correctness is not None else (),
    )


def findings(uses: Iterable[LoaderUse]) -> Iterator[Finding]:
    """Yield what the rules find in `uses`, each finding once, the most expensive first."""
    results = [finding for use in uses for finding in _use_findings(use)]
    yield from dict.fromkeys(
        sorted(results, key=lambda finding: -(finding.price.last if finding.price is not None else 0))
    )


def _use_findings(use: LoaderUse) -> Iterator[Finding]:
    """Yield what the rules find in one use; prices are shares of a step including its wait for data."""
    hits = list(_hits(use))
    step = use.step.likely + use.late.likely + _start_time(hits)
    for rule, hit in hits:
        yield _finding(rule, hit, use, step)


def _finding(rule: Rule, hit: Hit, use: LoaderUse, step: int) -> Finding:
    """Return the finding for `hit` with its price in a `step`."""
    return finding(
        rule,
        hit,
        _frequency(hit),
        line=hit.site.line if hit.site is not None else use.line,
        place=f"a loader of {use.dataset}",
        price=_price(use, hit, step) if hit.idle else _at_most(hit.saves, step) if hit.saves else None,
    )


def _frequency(hit: Hit) -> Frequency:
    """Return in which steps the loader's hit happens."""
    if not hit.steps:
        return Frequency(when="no-steps", waits=0.0)
    if hit.every > 1:
        return Frequency(when="some-steps", waits=0.0, every=hit.every)
    return Frequency(when="every-step", waits=0.0)


def _price(use: LoaderUse, hit: Hit, step: int) -> Price:
    """Return how much shorter a `step` would be if it waited only for what remains after the change."""
    late = _wait(use, hit)
    left = use.left if use.late.likely == hit.idle else Range()
    likely = max(late.likely - left.likely, 0)
    least, most = sorted((max(late.least - left.least, 0), max(late.most - left.most, 0)))
    saved = Range(likely=likely, least=min(least, likely), most=max(most, likely))
    return Price.estimate(saved, removal="free", of=step)


def _at_most(saves: int, step: int) -> Price:
    """Return the price of work in a `step` that nobody needs: an upper limit."""
    return Price.estimate(Range(likely=saves, most=saves), removal="free", of=step, at_most=True)


def with_input_limit(estimate: Estimate, uses: Iterable[LoaderUse]) -> Estimate:
    """Return `estimate`, limited by its input if that is the likeliest limit.

    A loader with workers is the limit as soon as a step waits for it; one without takes turns with the rest
    of the step, and is the limit if it takes longer. Step lengths are drawn from the estimate's interval, and
    waits follow from them.
    """
    estimate = _with_waiting(estimate, uses)
    starved = (use for use in uses if any(finding.code == STARVED for finding in findings([use])))
    use = max(starved, key=lambda use: use.late.likely, default=None)
    step = estimate.step
    if use is None or min(use.step.least, step.least) <= 0:
        return estimate
    most, likely, least = use.late.most, use.late.likely, use.late.least  # a short step waits longest
    lengths = np.exp(
        np.interp(_STEP_QUANTILES, [-_Z_90, 0, _Z_90], np.log([step.least, step.likely, step.most]))
    )
    waits = np.interp(lengths, [use.step.least, use.step.likely, use.step.most], [most, likely, least])
    share = float((waits > (SMALL_SAVING_SHARE * lengths if use.setting.workers else lengths)).mean())
    if not share:
        return estimate
    shares = {"input": share, **{name: (1 - share) * part for name, part in estimate.limiters.items()}}
    limiters = dict(sorted(shares.items(), key=lambda item: -item[1]))
    limiter, sure = next(iter(limiters.items()))
    prices = msgspec.structs.replace(estimate.prices, limiter=limiter)
    return msgspec.structs.replace(estimate, limiter=limiter, sure=sure, limiters=limiters, prices=prices)


def _with_waiting(estimate: Estimate, uses: Iterable[LoaderUse]) -> Estimate:
    """Return `estimate` with the time a step waits for the slowest of its loaders."""
    waits = [(wait, use) for use in uses if (wait := _wait_of_step(use)).likely]
    if not waits or not estimate.step.likely:
        return estimate
    wait, use = max(waits, key=lambda pair: pair[0].likely)
    beside = bool(use.setting.workers) and 2 * use.late.likely > wait.likely
    rest = tuple(text for text in estimate.assumptions if text != BATCHES_IN_TIME)
    return msgspec.structs.replace(estimate, waiting=wait, overlapped=beside, assumptions=rest)


def _wait_of_step(use: LoaderUse) -> Range:
    """Return how long each step waits: for its batch, and for its share of a pass's start."""
    hits = list(_hits(use))
    late = use.late if any(rule.code == STARVED for rule, _ in hits) else Range()
    begins = _start_time(hits)
    return Range(*(wait + begins for wait in (late.least, late.likely, late.most)))


def reprice_for_steps(findings: Iterable[Finding], estimate: Estimate | None) -> Iterator[Finding]:
    """Yield `findings` of loaders with prices as parts of the estimated step.

    A step takes at least as long as the CPU needs to launch it.
    """
    for each in findings:
        price = each.price
        if price is not None and estimate is not None and price.at_most:
            room = max(estimate.step.likely - estimate.host, 0)
            price = _at_most(min(price.last, room), estimate.whole.likely)
        elif price is not None and estimate is not None and estimate.waiting.likely:
            price = msgspec.structs.replace(price, of=estimate.whole.likely)
        yield msgspec.structs.replace(each, price=price)


def _hits(use: LoaderUse) -> Iterator[tuple[LoaderRule, Hit]]:
    """Yield each rule that applies to the loader, with its hit."""
    for rule in rules_of_kind(LoaderRule):
        for hit in rule.of_loader(use):
            yield rule, hit


def _start_time(hits: Iterable[tuple[LoaderRule, Hit]]) -> int:
    """Return a step's share of what else than batches it waits for, such as the start of a pass."""
    return sum(hit.idle for rule, hit in hits if rule.code != STARVED)


def _wait(use: LoaderUse, hit: Hit) -> Range:
    """Return how long a step waits: as measured of the loader, else as the rule says."""
    return use.late if use.late.likely == hit.idle else Range(hit.idle, hit.idle, hit.idle)


def notes(uses: Iterable[LoaderUse]) -> Iterator[str]:
    """Yield what could not be determined about each loader."""
    for use in uses:
        line = use.line
        where = f"the loader of {line.short}" if line is not None else f"a loader of {use.dataset}"
        for note in use.notes:
            yield f"{where}: {note}"


# -- a profile, and the loader that fed it, measured -------------------------------------------------


def own_step(profile: Profile) -> float:
    """Return nanoseconds of a step without host time in the loader; 0 if the profile has no steps."""
    if not profile.steps.count or profile.steps.source == "span":
        return 0.0
    return max(profile.steps.mean - loader_time(profile), 0.0)


def loader_time(profile: Profile) -> float:
    """Return nanoseconds per step that the host spends in the loader."""
    spent = sum(phase.host for phase in profile.phases if phase.name == "loading")
    return spent / max(profile.steps.count, 1)


def with_measurement(report: Report, diagnosis: Diagnosis) -> Report:
    """Return the report of a profile with its waits for input explained by a measured loader.

    `diagnosis` was computed for this profile's own step. Prices stay those of the replay.
    """
    profile = report.profile
    if profile is None or diagnosis.now is None or diagnosis.advised is None:
        return report
    starved = any(finding.code == STARVED for finding in report.findings)
    return msgspec.structs.replace(
        report,
        findings=tuple(
            _explain(finding, profile, diagnosis) if finding.code == STARVED else finding
            for finding in report.findings
        ),
        notes=(*report.notes, *_differences(profile, diagnosis, starved)),
    )


def _explain(finding: Finding, profile: Profile, diagnosis: Diagnosis) -> Finding:
    """Return `finding` with evidence and remedy from the measured loader."""
    assert diagnosis.now is not None
    assert diagnosis.advised is not None
    where = loader_advice.describe_hottest_line(diagnosis)
    cost = loader_advice.describe_cost(diagnosis) + (f"; {where}" if where else "")
    predicted = (
        f"predicted for this profile's step of {duration(diagnosis.demand.step)} without its input: "
        f"{duration(diagnosis.now.wait)} of waiting with "
        f"{loader_advice.describe_setting(diagnosis.setting)}, "
        f"measured on a machine with {loader_advice.describe_cores(diagnosis)}"
    )
    remedy, change = _advice(profile, diagnosis)
    return msgspec.structs.replace(
        finding, evidence=(*finding.evidence, cost, predicted), remedy=remedy, change=change
    )


def _advice(profile: Profile, diagnosis: Diagnosis) -> tuple[str, str]:
    """Return what to write instead, in full and in a few words."""
    assert diagnosis.now is not None
    assert diagnosis.advised is not None
    now, advised = diagnosis.now, diagnosis.advised
    remedy = diagnosis.remedy
    if remedy is not None and remedy.advised is not None:
        advice_text = "; ".join(loader_advice.describe_remedy(diagnosis, remedy))
        step = f"predicted step {duration(remedy.advised.step)} instead of {duration(profile.steps.mean)}"
        code = loader_advice.remedy_code(diagnosis, remedy)
        return f"{advice_text}: {step}\n{code}", loader_advice.remedy_change(diagnosis, remedy)
    if (
        loader_advice.has_recommended(diagnosis.setting, diagnosis)
        or advised.step > (1 - loader_advice.MIN_SHARE_OF_STEP) * now.step
    ):
        return (
            f"no setting keeps up on the machine where it was measured: {loader_advice.MAKE_CHEAPER}",
            loader_advice.MAKE_CHEAPER,
        )
    gain = (
        f"`DataLoader(..., {loader_advice.recommended_arguments(diagnosis)})`: predicted step "
        f"{duration(advised.step)} instead of "
        f"{duration(profile.steps.mean)}"
    )
    if advised.wait > 2 * loader_advice.MIN_SHARE_OF_STEP * advised.step:
        gain += f"; for the rest, {loader_advice.MAKE_CHEAPER}"
    return gain, loader_advice.short_recommendation(diagnosis)


def _differences(profile: Profile, diagnosis: Diagnosis, starved: bool) -> Iterator[str]:
    """Say where profile and measurement seem to be of different loaders or machines."""
    assert diagnosis.now is not None
    observed, predicted, step = loader_time(profile), diagnosis.now.wait, profile.steps.mean
    if max(observed, predicted) < loader_advice.MIN_SHARE_OF_STEP * step:
        return
    if not starved and predicted > loader_advice.MIN_SHARE_OF_STEP * step:
        yield (
            f"according to the loader measurement a step would wait {duration(predicted)} for its batch, "
            "but in this profile it does not"
        )
    elif max(observed, predicted) > _MAX_RATIO * min(observed, predicted):
        yield (
            f"according to the loader measurement a step waits {duration(predicted)} for its batch, but in "
            f"this profile {duration(observed)}: was it the same loader, on the same machine?"
        )

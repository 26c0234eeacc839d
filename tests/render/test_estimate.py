"""Estimates as a reader sees them: marked as such, in ranges, as bounds, or not at all."""

from __future__ import annotations

import html
import json

import msgspec
import pytest
from programmes import add, read, session

from gapless.analyze import report
from gapless.analyze.tables.session_tables import tables
from gapless.analyze.verdicts.session_verdict import verdict
from gapless.model.estimate import Range
from gapless.model.profile import Price
from gapless.render import Style, renderer
from gapless.render._words import saving

STYLE = Style(folder="/work", width=200)
WAITING = [add(10.0), read(), *[add()] * 300]


def shown(report, **style: object) -> str:
    return renderer("text")(report, msgspec.structs.replace(STYLE, **style))


def report_of(*step, **more):
    return report(session(*[list(step)] * 8, **more))


def test_a_price_is_marked_as_an_estimate():
    text = shown(report_of(*WAITING))
    assert "(A100-SXM4-80GB, estimated: step " in text
    assert "  saves   " in text
    assert "(step ≈ " in text


def test_assumptions_are_listed_with_all():
    verdicts_own = "speed is assumed: --calibrate"
    assert "assumed: " not in shown(report_of(*WAITING)).replace(verdicts_own, "")
    assert "assumed: NVIDIA A100-SXM4-80GB by its data sheet" in shown(report_of(*WAITING), unfold=True)


def test_the_limiter_of_a_step_and_the_assumed_host_are_reported():
    text = shown(report_of(*[add()] * 50, read(), *[add()] * 50))
    assert ("Almost certainly limited by the CPU, which launches the kernels (its speed is assumed: ") in text
    assert "--calibrate" in text
    assert "at best" not in text
    deep = shown(report_of(*[add(5.0)] * 20, read(), *[add()] * 60))
    assert "Almost certainly limited by the GPU; syncs block the CPU for " in " ".join(deep.split())


@pytest.mark.parametrize("form", ["text", "html", "markdown", "json"])
def test_what_is_likely_to_limit_no_more_than_half_of_the_time_is_not_clear(form):
    report = report_of(*[add()] * 50, read(), *[add()] * 50)

    def limited(**shares: float) -> str:
        (first, share), *_ = shares.items()
        estimate = msgspec.structs.replace(report.estimate, limiter=first, sure=share, limiters=shares)
        other = msgspec.structs.replace(report, estimate=estimate)
        other = msgspec.structs.replace(other, verdict=verdict(other), tables=tables(other))
        return renderer(form)(other, msgspec.structs.replace(STYLE, unfold=True))

    even = limited(device=0.41, communication=0.38, host=0.21)
    assert "Cannot tell what limits it: the GPU (41 %) or communication (38 %)" in even
    assert "robably (" not in even
    assert "the GPU (50 %) or the CPU (30 %); the CPU's speed is" in html.unescape(
        limited(device=0.5, host=0.3, copies=0.2)
    )
    assert "Cannot tell what limits it: the GPU (56 %) or the CPU (44 %)" in limited(device=0.56, host=0.44)
    assert "Probably (71 %) limited by the GPU" in limited(device=0.71, host=0.29)
    if form in ("text", "html"):  # the table of what an estimate rests on
        assert "cannot tell: the GPU (41 %) or communication (38 %)" in even


def test_how_long_syncs_block_the_cpu_is_one_number_everywhere():
    report = report_of(*[add(5.0)] * 20, read(), *[add()] * 60)
    (finding,) = report.findings
    blocked = report.estimate.blocked
    assert blocked.least <= blocked.likely <= blocked.most
    assert blocked.likely == finding.price.blocked > 50_000_000
    for form in ("text", "html"):
        shown_whole = renderer(form)(report, msgspec.structs.replace(STYLE, unfold=True))
        assert "CPU blocked in syncs" in shown_whole
    told_in_json = json.loads(renderer("json")(report, STYLE))["estimate"]["blocked"]
    assert told_in_json == {"least": blocked.least, "likely": blocked.likely, "most": blocked.most}
    assert report.estimate.prices.limiter == report.estimate.limiter


def test_a_saving_that_may_be_none_is_no_number():
    report = report_of(*WAITING)
    (finding,) = report.findings
    step = report.estimate.step.likely

    def saves(least: float, likely: float, most: float) -> str:
        price = msgspec.structs.replace(
            finding.price,
            **{
                f"{end}{kind}": round(share * step)
                for kind in ("alone", "last")
                for end, share in (("least_", least), ("", likely), ("most_", most))
            },
        )
        return shown(
            msgspec.structs.replace(report, findings=(msgspec.structs.replace(finding, price=price),))
        )

    assert "saves   too small to tell, at most " in saves(0.0, 0.004, 0.01)
    assert ", or nothing (step" in saves(0.0, 0.004, 0.2)
    assert "saves   next to nothing" in saves(0.0, 0.0004, 0.0005)
    assert "too small" not in saves(0.001, 0.004, 0.01)


def test_the_verdict_on_a_loss_that_may_be_none():
    report = report_of(*WAITING)
    step = report.estimate.step.likely

    def sentence(*shares: float):
        saved = Range(*(round(share * step) for share in shares))
        report_verdict = verdict(
            msgspec.structs.replace(report, estimate=msgspec.structs.replace(report.estimate, saved=saved))
        )
        return report_verdict.level, report_verdict.sentence

    assert sentence(0.0, 0.004, 0.01) == (
        "fine",
        "1 sync in every step (train.py:1): too small to tell, at most 1.0 % of a step",
    )
    assert sentence(0.0, 0.05, 0.2) == (
        "act",
        "1 sync in every step: together up to 20 % of each step, or nothing",
    )
    assert sentence(0.02, 0.05, 0.2) == ("act", "1 sync in every step: together 5.0 % (2.0–20) of each step")
    assert sentence(0.0, 0.0, 0.0005)[1].startswith("Nothing worth fixing")


def test_no_estimate_says_why():
    odd = msgspec.structs.replace(add(1.0), name="mine::op")
    text = shown(report_of(odd, read()))
    assert "No prices: operators whose cost is not known" in text
    assert "saves" not in text


def test_the_saving_alone_is_shown_where_it_is_smaller():
    result = report(session(*[[add(10.0), read(0), read(1), *[add()] * 300]] * 8), by_line=True)
    text = shown(result)
    assert "if you fix only this" in text


def test_without_prices_nothing_is_said():
    result = report(session(*[WAITING] * 8), priced=False)
    assert "stimate" not in shown(result)
    assert "saves" not in shown(result)


@pytest.mark.parametrize("width", [50, 80])
def test_no_line_is_wider_than_the_terminal(width):
    lines = shown(report_of(*WAITING), width=width, unfold=True).splitlines()
    assert max(map(len, lines)) <= width


def test_json_has_all_of_it():
    report = report_of(*WAITING)
    document = json.loads(renderer("json")(report, STYLE))
    assert document["estimate"]["step"]["likely"] == report.estimate.step.likely
    assert document["estimate"]["assumptions"] == list(report.estimate.assumptions)
    price = document["findings"][0]["price"]
    assert price["estimated"] is True
    assert price["least_last"] <= price["last"] <= price["most_last"]


def test_a_loader_that_no_setting_helps_saves_nothing_and_says_no_number():
    report = report_of(*WAITING)
    price = Price(estimated=True, of=4_000_000)
    late = msgspec.structs.replace(report.findings[0], price=price)
    assert saving(late, report) == []
    helped = msgspec.structs.replace(price, last=2_000_000, most_last=2_000_000, least_last=2_000_000)
    assert saving(msgspec.structs.replace(late, price=helped), report) == ["2 ms per step, of 4 ms"]

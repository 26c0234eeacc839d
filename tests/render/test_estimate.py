"""Estimates as a reader sees them: marked as such, in ranges, as bounds, or not at all."""

from __future__ import annotations

import json

import msgspec
import pytest
from programmes import add, read, session

from gapless.analyze import report
from gapless.render import Style, renderer

STYLE = Style(folder="/work", width=200)
WAITING = [add(10.0), read(), *[add()] * 300]


def shown(made, **style: object) -> str:
    return renderer("text")(made, msgspec.structs.replace(STYLE, **style))


def told(*step, **more):
    return report(session(*[list(step)] * 8, **more))


def test_a_price_is_marked_as_an_estimate():
    text = shown(told(*WAITING))
    assert "(A100-SXM4-80GB, estimated: step " in text
    assert "  saves   " in text
    assert "(step ≈ " in text


def test_assumptions_are_told_when_all_is():
    assert "assumed: " not in shown(told(*WAITING))
    assert "assumed: NVIDIA A100-SXM4-80GB by its data sheet" in shown(told(*WAITING), unfold=True)


def test_a_wide_range_is_a_bound():
    text = shown(told(*[add()] * 50, read(), *[add()] * 50))
    assert "saves   up to " in text
    assert "Upper limits: this step is limited by CPU/Python overhead" in text
    assert "→ ≥ " in text
    assert "--calibrate" in text


def test_no_estimate_says_why():
    odd = msgspec.structs.replace(add(1.0), name="mine::op")
    text = shown(told(odd, read()))
    assert "No prices: operators whose cost is not known" in text
    assert "saves" not in text


def test_alone_is_told_where_it_is_less():
    made = report(session(*[[add(10.0), read(0), read(1), *[add()] * 300]] * 8), by_line=True)
    text = shown(made)
    assert "if you fix only this" in text


def test_without_prices_nothing_is_said():
    made = report(session(*[WAITING] * 8), priced=False)
    assert "stimate" not in shown(made)
    assert "saves" not in shown(made)


@pytest.mark.parametrize("width", [50, 80])
def test_no_line_is_wider_than_the_terminal(width):
    lines = shown(told(*WAITING), width=width, unfold=True).splitlines()
    assert max(map(len, lines)) <= width


def test_json_has_all_of_it():
    made = told(*WAITING)
    document = json.loads(renderer("json")(made, STYLE))
    assert document["estimate"]["step"]["likely"] == made.estimate.step.likely
    assert document["estimate"]["assumptions"] == list(made.estimate.assumptions)
    price = document["findings"][0]["price"]
    assert price["estimated"] is True
    assert price["least_last"] <= price["last"] <= price["most_last"]

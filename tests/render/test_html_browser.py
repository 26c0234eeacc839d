"""Pages in a browser: they open from disk, load nothing, and do what they are told."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from building import example
from tracing import training

from gapless.analyze.profile.profile import profile
from gapless.analyze.profile.report import report
from gapless.model import Report
from gapless.render import Style, renderer

sync_api = pytest.importorskip("playwright.sync_api")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
READY = "() => document.documentElement.dataset.ready === 'yes'"
DARK = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        root = hasattr(os, "geteuid") and os.geteuid() == 0
        options = {"args": ["--no-sandbox"] if root else []}
        if CHROMIUM:
            options["executable_path"] = CHROMIUM
        try:
            started = playwright.chromium.launch(**options)
        except sync_api.Error as error:
            pytest.skip(f"no browser here: {str(error).splitlines()[0]}")
        yield started
        started.close()


Open = Callable[..., Any]


@pytest.fixture
def visit(browser, tmp_path: Path) -> Iterator[Open]:
    """``visit(report, hash)`` opens the page from disk; at the end nothing may have gone wrong."""
    told: list[str] = []
    contexts: list[Any] = []

    def visit(found: Report, where: str = "", **options: Any) -> Any:
        file = tmp_path / "report.html"
        file.write_text(renderer("html")(found, Style(folder="/work")), encoding="utf-8")
        contexts.append(browser.new_context(viewport={"width": 1200, "height": 800}, **options))
        page = contexts[-1].new_page()
        page.on("console", lambda message: told.append(message.text))
        page.on("pageerror", lambda error: told.append(str(error)))
        page.on(
            "request",
            lambda request: told.append(request.url) if not request.url.startswith("file:") else None,
        )
        page.goto(file.as_uri() + where)
        page.wait_for_function(READY)
        return page

    yield visit
    for one in contexts:
        one.close()
    assert told == []


@pytest.fixture(scope="module")
def made() -> Report:
    return report([profile(training(steps=6).timeline(), priced=True, drawn=4000)])


def shown(page: Any) -> list[float]:
    return page.evaluate("gaplessTimeline.range()")


def test_it_opens_and_the_filter_filters(visit):
    page = visit(example())
    every = page.locator(".finding").count()
    assert every > 3
    page.get_by_label("Text in the finding").fill("nonzero")
    assert page.locator(".finding:visible").count() == 1
    assert page.locator(".finding:visible .code").first.inner_text() == "GAP110"
    page.wait_for_function("() => location.hash.includes('q=nonzero')")
    page.get_by_label("Text in the finding").fill("no such thing")
    assert page.get_by_text("No finding matches.").is_visible()
    page.get_by_label("Text in the finding").fill("")
    page.get_by_label("Whose code waits").select_option("torchmetrics")
    assert page.locator(".finding:visible").count() == 1
    page.get_by_label("Whose code waits").select_option("")
    page.get_by_label("Kind of rule").select_option("1")
    assert page.locator(".finding:visible").count() == every


def test_links_lead_to_a_finding_whatever_hides_it(visit):
    page = visit(example(), "#GAP120-train.py-5?q=nonzero")
    target = page.locator("[id='GAP120-train.py-5']")
    assert target.is_visible()
    assert target.locator("> details").get_attribute("open") is not None
    assert "at" in target.get_attribute("class").split()
    assert page.evaluate("document.activeElement.closest('.finding').id") == "GAP120-train.py-5"


def test_a_filter_comes_back_with_the_link(visit):
    page = visit(example())
    page.get_by_label("Text in the finding").fill("100 % of #a & b")
    page.wait_for_function("() => location.hash.includes('q=')")
    again = visit(example(), page.evaluate("location.hash"))
    assert again.get_by_label("Text in the finding").input_value() == "100 % of #a & b"
    broken = visit(example(), "#%zz?q=%e0")
    assert broken.locator(".finding").count() > 0


def test_the_timeline_zooms_and_pans(visit, made):
    page = visit(made)
    whole = shown(page)
    canvas = page.locator("#lanes")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    canvas.focus()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    page.mouse.wheel(0, -400)
    page.wait_for_function(
        f"() => gaplessTimeline.range()[1] - gaplessTimeline.range()[0] < {whole[1] - whole[0]}"
    )
    zoomed = shown(page)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2 - 200, box["y"] + 60, steps=4)
    page.mouse.up()
    dragged = shown(page)
    assert dragged[0] > zoomed[0]
    assert dragged[1] - dragged[0] == pytest.approx(zoomed[1] - zoomed[0])
    canvas.focus()
    page.keyboard.press("ArrowLeft")
    assert shown(page)[0] < dragged[0]
    page.keyboard.press("+")
    assert shown(page)[1] - shown(page)[0] < dragged[1] - dragged[0]
    page.keyboard.press("0")
    assert shown(page) == whole


def test_the_wheel_scrolls_the_page_until_the_timeline_is_meant(visit, made):
    page = visit(made)
    canvas = page.locator("#lanes")
    page.evaluate("document.querySelector('#timeline').scrollIntoView({behavior: 'instant'})")
    box = canvas.bounding_box()
    before = shown(page)
    page.mouse.move(box["x"] + 300, box["y"] + 60)
    height = page.evaluate("scrollY")
    page.mouse.wheel(0, -300)
    page.wait_for_function("before => scrollY < before", arg=height)
    assert shown(page) == before


def test_what_is_shown_is_in_the_link(visit, made):
    page = visit(made)
    page.locator("#lanes").focus()
    page.keyboard.press("n")
    page.wait_for_function("() => location.hash.includes('from=')")
    where, range_ = page.evaluate("location.hash"), shown(page)
    again = visit(made, where)
    assert shown(again) == pytest.approx(range_, abs=1)


def test_a_wait_leads_to_its_finding(visit, made):
    page = visit(made)
    data = page.evaluate("JSON.parse(document.getElementById('data').textContent)")
    lanes = data["lanes"]
    window = lanes["windows"][0]
    row = next(one for one in window["boxes"] if lanes["lanes"][one["lane"]]["kind"] == "waits")
    start = window["start"] + row["start"][0]
    number = data["waits"][str(row["what"][0])]
    page.evaluate("span => gaplessTimeline.show(...span)", [start - 2000, start + row["length"][0] + 2000])
    page.evaluate("document.querySelector('#timeline').scrollIntoView({behavior: 'instant'})")
    box = page.locator("#lanes").bounding_box()
    # The row of waits is somewhere below: the first place where the pointer becomes a hand.
    middle = box["x"] + 148 + (box["width"] - 148) / 2
    for y in range(30, int(box["height"]), 4):
        page.mouse.move(middle, box["y"] + y)
        if page.evaluate("document.getElementById('lanes').style.cursor") == "pointer":
            break
    assert data["findings"][number]["code"] in page.locator("#tip").inner_text()
    page.mouse.down()
    page.mouse.up()
    assert page.evaluate("document.querySelector('.finding.at').id") == data["findings"][number]["id"]
    assert page.evaluate("location.hash").startswith("#" + data["findings"][number]["id"])


def test_light_and_dark(visit, made):
    page = visit(made, color_scheme="dark")
    dark = page.evaluate(DARK)
    page.get_by_label("Light or dark").click()
    light = page.evaluate(DARK)
    assert dark != light
    assert visit(made, color_scheme="light").evaluate(DARK) == light


def test_the_timeline_can_be_read_as_a_table(visit, made):
    page = visit(made)
    page.get_by_text("The timeline as a table").click()
    assert page.locator("#timeline-table tr", has_text="stream 7").is_visible()
    assert page.locator("#timeline-table a").count() == sum(
        1 for one in made.findings if one.loss is not None and one.loss.end
    )


def test_it_fits_a_telephone(visit, made):
    page = visit(made)
    page.set_viewport_size({"width": 380, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert visit(example()).evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_it_is_read_without_scripts(visit, made, browser, tmp_path):
    file = tmp_path / "still.html"
    file.write_text(renderer("html")(made, Style()), encoding="utf-8")
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(file.as_uri())
        assert page.locator(".finding").first.is_visible()
        assert page.locator("h1").inner_text() == made.sentence + "."

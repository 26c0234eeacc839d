"""Pages in a browser: they open from disk, load nothing, and do what they are told."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from memory_runs import diagnosed, remembered, trained
from sessions import example
from trace_builder import training

from gapless.analyze import report
from gapless.analyze.across import with_summary
from gapless.analyze.profile.building import build_profile
from gapless.memory.report import ReportOptions
from gapless.model import Report, SourceLine, Table, Verdict
from gapless.model.memory_report import MemoryReport
from gapless.model.table import Column, Row
from gapless.model.wording import binary_size
from gapless.render import Style, html, renderer

sync_api = pytest.importorskip("playwright.sync_api")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
READY = "() => document.documentElement.dataset.ready === 'yes'"
FRAME = "() => new Promise((then) => requestAnimationFrame(() => requestAnimationFrame(then)))"
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


def page_of(page_html: Report | list[Report] | MemoryReport) -> str:
    style = Style(folder="/work")
    if isinstance(page_html, list):
        return html.together(with_summary(page_html), style)
    if isinstance(page_html, MemoryReport):
        page_html = report(page_html)
    return renderer("html")(page_html, style)


@pytest.fixture
def visit(browser, tmp_path: Path) -> Iterator[Open]:
    """``visit(report, hash)`` opens the page from disk; at the end nothing may have gone wrong."""
    errors: list[str] = []
    contexts: list[Any] = []

    def visit(report_to_show: Any, where: str = "", **options: Any) -> Any:
        file = tmp_path / "report.html"
        file.write_text(page_of(report_to_show), encoding="utf-8")
        contexts.append(browser.new_context(viewport={"width": 1200, "height": 800}, **options))
        page = contexts[-1].new_page()
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on(
            "request",
            lambda request: errors.append(request.url) if not request.url.startswith("file:") else None,
        )
        page.goto(file.as_uri() + where)
        page.wait_for_function(READY)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert errors == []


@pytest.fixture(scope="module")
def profile_report() -> Report:
    return report([build_profile(training(steps=6).timeline(), priced=True, max_boxes=4000)])


def shown(page: Any) -> list[float]:
    return page.evaluate("gaplessStages[0].range()")


def test_a_page_opens_and_its_filter_works(visit):
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
    page.get_by_label("Whose code it is in").select_option("torchmetrics")
    assert page.locator(".finding:visible").count() == 1
    page.get_by_label("Whose code it is in").select_option("")
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


def test_the_timeline_zooms_and_pans(visit, profile_report):
    page = visit(profile_report)
    whole = shown(page)
    canvas = page.locator(".canvas .main")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    canvas.focus()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    page.mouse.wheel(0, -400)
    page.wait_for_function(
        f"() => gaplessStages[0].range()[1] - gaplessStages[0].range()[0] < {whole[1] - whole[0]}"
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


def test_the_wheel_scrolls_the_page_until_the_timeline_is_meant(visit, profile_report):
    page = visit(profile_report)
    canvas = page.locator(".canvas .main")
    page.evaluate("document.querySelector('#timeline').scrollIntoView({behavior: 'instant'})")
    box = canvas.bounding_box()
    before = shown(page)
    page.mouse.move(box["x"] + 300, box["y"] + 60)
    height = page.evaluate("scrollY")
    page.mouse.wheel(0, -300)
    page.wait_for_function("before => scrollY < before", arg=height)
    assert shown(page) == before


def test_the_view_is_stored_in_the_link(visit, profile_report):
    page = visit(profile_report)
    page.locator(".canvas .main").focus()
    page.keyboard.press("n")
    page.wait_for_function("() => location.hash.includes('from=')")
    where, range_ = page.evaluate("location.hash"), shown(page)
    again = visit(profile_report, where)
    assert shown(again) == pytest.approx(range_, abs=1)


def test_a_wait_leads_to_its_finding(visit, profile_report):
    page = visit(profile_report)
    data = page.evaluate("JSON.parse(document.getElementById('timeline-data').textContent)")
    lanes = data["lanes"]
    window = lanes["windows"][0]
    row = next(box for box in window["boxes"] if lanes["lanes"][box["lane"]]["kind"] == "waits")
    start = window["start"] + row["start"][0]
    number = data["waits"][str(row["what"][0])]
    page.evaluate("span => gaplessStages[0].show(...span)", [start - 2000, start + row["length"][0] + 2000])
    page.evaluate("document.querySelector('#timeline').scrollIntoView({behavior: 'instant'})")
    box = page.locator(".canvas .main").bounding_box()
    # The row of waits is somewhere below: the first place where the pointer becomes a hand.
    middle = box["x"] + 148 + (box["width"] - 148) / 2
    for y in range(30, int(box["height"]), 4):
        page.mouse.move(middle, box["y"] + y)
        if page.evaluate("document.querySelector('.canvas .main').style.cursor") == "pointer":
            break
    assert data["findings"][number]["code"] in page.locator(".tip").inner_text()
    page.mouse.down()
    page.mouse.up()
    assert page.evaluate("document.querySelector('.finding.at').id") == data["findings"][number]["id"]
    assert page.evaluate("location.hash").startswith("#" + data["findings"][number]["id"])


def drawn(page: Any) -> Any:
    return page.evaluate("JSON.parse(document.getElementById('timeline-data').textContent)")


def test_n_goes_from_sync_to_sync(visit, profile_report):
    """Each sync is gone to by itself, in the order of time, and named by its finding."""
    page = visit(profile_report)
    data = drawn(page)
    lanes, window = data["lanes"], data["lanes"]["windows"][0]
    spans = []
    for row in window["boxes"]:
        if lanes["lanes"][row["lane"]]["kind"] == "waits":
            at = window["start"]
            for since, length, content in zip(row["start"], row["length"], row["what"], strict=True):
                at += since
                spans.append((at, at + length, data["waits"][str(content)]))
    spans.sort()
    assert len(spans) > 3
    page.locator(".canvas .main").focus()
    for start, end, number in spans[:3]:
        page.keyboard.press("n")
        low, high = shown(page)
        assert low <= start < end <= high
        assert high - low < 60_000 + 3 * (end - start)  # that one, and little around it
        assert data["findings"][number]["code"] in page.locator(".tip").inner_text()
    page.keyboard.press("p")
    low, high = shown(page)
    assert low <= spans[1][0] < spans[1][1] <= high
    page.keyboard.press("f")
    assert any(finding["code"] in page.locator(".tip").inner_text() for finding in data["findings"])


def test_spans_are_searched(visit, profile_report):
    page = visit(profile_report)
    name = next(
        name
        for name, kind in zip(drawn(page)["lanes"]["names"], drawn(page)["lanes"]["kinds"], strict=True)
        if kind == "kernel"
    )
    picture = "document.querySelector('.canvas .main').toDataURL()"
    plain = page.evaluate(picture)
    page.locator(".canvas .main").focus()
    page.keyboard.press("/")
    page.keyboard.type(name.upper())
    count = int(page.locator(".seek output").inner_text().split()[0].replace(",", ""))
    assert count > 1
    page.evaluate(FRAME)
    assert page.evaluate(picture) != plain
    before = shown(page)
    page.keyboard.press("Enter")
    first = shown(page)
    assert first[1] - first[0] < before[1] - before[0]
    assert name in page.locator(".tip").inner_text()
    page.keyboard.press("Enter")
    assert shown(page)[0] > first[0]
    page.keyboard.press("Shift+Enter")
    assert shown(page) == first
    page.get_by_label("Search the spans").fill("no such span")
    assert page.locator(".seek output").inner_text() == "0 found"
    page.keyboard.press("Escape")
    assert page.locator(".seek output").inner_text() == ""


def test_a_launch_is_described_from_the_call_and_from_the_kernel(visit, profile_report):
    """What is pointed at on a stream says when it was launched, and the call that did, what it launched."""
    page = visit(profile_report)
    lanes = drawn(page)["lanes"]
    window = lanes["windows"][0]
    row = next(box for box in window["boxes"] if any(at >= 0 for at in box.get("thread", ())))
    single = [n for n in range(len(row["start"])) if row.get("count", [1] * len(row["start"]))[n] == 1]
    number = next(n for n, at in enumerate(row["thread"]) if at >= 0)
    start = window["start"] + sum(row["start"][: single[number] + 1])
    began = start - row["launch"][number]
    page.evaluate("document.querySelector('#timeline').scrollIntoView({behavior: 'instant'})")

    def tooltips_at(at: float) -> list[str]:
        """What the pointer is told at that time, row by row."""
        page.evaluate("span => gaplessStages[0].show(...span)", [at - 500, at + 500])
        page.evaluate(FRAME)
        low, high = shown(page)
        box = page.locator(".canvas .main").bounding_box()
        across = box["x"] + 148 + (at + 20 - low) / (high - low) * (box["width"] - 148)
        tooltips = []
        for y in range(30, int(box["height"]), 4):
            page.mouse.move(across, box["y"] + y)
            tooltips.append(page.locator(".tip").inner_text() if page.locator(".tip").is_visible() else "")
        return tooltips

    assert any("launched" in tooltip and "before" in tooltip for tooltip in tooltips_at(start))
    assert any("launch in it" in tooltip or "launches in it" in tooltip for tooltip in tooltips_at(began))


def test_every_key_is_named(visit, profile_report):
    page = visit(profile_report)
    assert page.locator(".help summary").is_visible()
    page.locator(".canvas .main").focus()
    page.keyboard.press("?")
    help_ = page.locator(".help dl")
    assert help_.is_visible()
    named = help_.inner_text()
    for key in ("n", "p", "f", "F", "/", "+", "0", "Home", "Enter", "Esc", "?", "a", "d", "w", "s"):
        assert key in named.replace("\n", " ").split(), key
    page.keyboard.press("?")
    assert not help_.is_visible()


def test_labels_do_not_run_into_each_other(visit, profile_report):
    """No two texts of one line of the canvas overlap, at any zoom."""
    page = visit(profile_report)
    overlaps = page.evaluate(
        """async () => {
          const pen = document.querySelector('.canvas .main').getContext('2d');
          const was = pen.fillText.bind(pen);
          let texts = [];
          pen.fillText = (text, x, y) => {
            texts.push([x, x + pen.measureText(text).width, y, text]);
            was(text, x, y);
          };
          const [low, high] = gaplessStages[0].whole;
          const found = [];
          for (const share of [1, 0.3, 0.05, 0.01]) {
            texts = [];
            gaplessStages[0].show(low, low + (high - low) * share);
            gaplessStages[0].redraw();
            texts.sort((a, b) => a[2] - b[2] || a[0] - b[0]);
            for (let i = 1; i < texts.length; i++) {
              const [left, right] = [texts[i - 1], texts[i]];
              if (left[2] === right[2] && right[0] < left[1]) found.push([share, left, right]);
            }
          }
          return found;
        }"""
    )
    assert overlaps == []


def test_a_long_table_unfolds(visit):
    rows = tuple(Row((SourceLine("/work/train.py", n), f"{n} ms")) for n in range(1, 40))
    columns = (Column("", "text"), Column("time"))
    table = Table(title="Lines", columns=columns, rows=rows, shown=3, rest="lines", where="before")
    page = visit(msgspec.structs.replace(example(), tables=(table,)))
    assert page.get_by_text("train.py:3", exact=True).is_visible()
    assert not page.get_by_text("train.py:39", exact=True).is_visible()
    page.get_by_text("… and 36 lines").click()
    assert page.get_by_text("train.py:39", exact=True).is_visible()


def test_light_and_dark(visit, profile_report):
    page = visit(profile_report, color_scheme="dark")
    dark = page.evaluate(DARK)
    page.get_by_label("Light or dark").click()
    light = page.evaluate(DARK)
    assert dark != light
    assert visit(profile_report, color_scheme="light").evaluate(DARK) == light


def test_the_timeline_can_be_read_as_a_table(visit, profile_report):
    page = visit(profile_report)
    page.get_by_text("The timeline as a table").click()
    assert page.locator(".told tr", has_text="stream 7").is_visible()
    assert page.locator(".told a").count() == sum(
        1 for finding in profile_report.findings if finding.loss is not None and finding.loss.end
    )


def test_a_page_fits_a_telephone(visit, profile_report):
    page = visit(profile_report)
    page.set_viewport_size({"width": 380, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert visit(example()).evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_page_can_be_read_without_scripts(visit, profile_report, browser, tmp_path):
    file = tmp_path / "still.html"
    file.write_text(renderer("html")(profile_report, Style()), encoding="utf-8")
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(file.as_uri())
        assert page.locator(".finding").first.is_visible()
        assert page.locator("h1").inner_text() == profile_report.sentence + "."


# Memory, loaders, several runs --------------------------------------------------------------------


@pytest.fixture(scope="module")
def memory() -> MemoryReport:
    return remembered(trained(40), ReportOptions(tried=("expandable_segments:True", "max_split_size_mb:64")))


def test_memory_zooms_pans_and_goes_to_the_peak(visit, memory):
    page = visit(memory)
    whole = shown(page)
    canvas = page.locator(".canvas .main")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    canvas.focus()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 90)
    page.mouse.wheel(0, -400)
    page.wait_for_function(f"() => gaplessStages[0].range()[1] - gaplessStages[0].range()[0] < {whole[1]}")
    zoomed = shown(page)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2 - 120, box["y"] + 90, steps=4)
    page.mouse.up()
    assert shown(page)[0] > zoomed[0]
    page.keyboard.press("0")
    assert shown(page) == whole
    page.keyboard.press("n")
    low, high = shown(page)
    assert low <= memory.peak.event <= high
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash").startswith("#numbers-at-the-peak-")
    again = visit(memory, page.evaluate("location.hash"))
    assert shown(again) == pytest.approx([low, high], abs=1)


def test_memory_is_shown_at_the_pointer(visit, memory):
    page, at = visit(memory), memory.peak.event
    canvas = page.locator(".canvas .main")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    low, high = page.evaluate(f"gaplessStages[0].show({at - 9}, {at + 9}) || gaplessStages[0].range()")
    share = (at - 0.5 - low) / (high - low)  # an event ends where its number is
    page.mouse.move(box["x"] + 148 + share * (box["width"] - 148), box["y"] + 150)
    text = page.locator(".tip").inner_text()
    assert f"{binary_size(memory.peak.allocated)} allocated of" in text
    assert f"event {at + 1:,}" in text
    assert "temporaries" in text


def test_lines_of_other_settings_come_and_go(visit, memory):
    page = visit(memory)

    def picture() -> str:
        page.mouse.move(0, 0)  # what is under the pointer is marked
        page.evaluate(FRAME)
        return page.evaluate("document.querySelector('.canvas .main').toDataURL()")

    both = picture()
    page.get_by_label("reserved with expandable_segments:True").uncheck()
    assert picture() != both
    page.get_by_label("reserved with expandable_segments:True").check()
    assert picture() == both


def test_memory_in_the_dark_on_a_telephone_and_on_paper(visit, memory):
    page = visit(memory, color_scheme="dark")
    picture = "document.querySelector('.canvas .main').toDataURL()"
    dark = page.evaluate(picture)
    page.get_by_label("Light or dark").click()
    assert page.evaluate(picture) != dark
    page.set_viewport_size({"width": 380, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.emulate_media(media="print")
    assert page.locator("h1").is_visible()
    assert not page.locator(".tools").first.is_visible()


def test_a_loader_opens_and_fits(visit):
    page = visit(report(diagnosed()))
    page.set_viewport_size({"width": 380, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_link_into_one_of_several_runs(visit, profile_report):
    runs = [example(), profile_report, msgspec.structs.replace(profile_report, memory=(remembered(),))]
    page = visit(runs)
    assert not page.locator("#run3 .finding").first.is_visible()
    page.locator("#run1 > summary").click()
    page.locator("#run1 [name=q]").fill("nonzero")
    page.evaluate("gaplessStages[1].show(...%s)" % [100_000, 400_000])
    page.wait_for_function("() => location.hash.includes('from2=')")
    name = page.locator("#run3 .finding").first.get_attribute("id")
    again = visit(runs, "#" + name + "?" + page.evaluate("location.hash").split("?")[1])
    assert again.locator(f"[id='{name}']").is_visible()
    assert again.evaluate("document.activeElement.closest('.finding').id") == name
    assert again.locator("#run1 .finding:not([hidden])").count() == 1
    assert again.locator("#run3 .finding:not([hidden])").count() == len(profile_report.findings)
    ranges = again.evaluate("gaplessStages.map((one) => one.range())")
    assert ranges[1] == pytest.approx([100_000, 400_000], abs=1)
    assert ranges[0] == again.evaluate("gaplessStages[0].whole")
    assert again.locator("#run3 .memory-track .main").evaluate("one => one.width") > 300


def named(text: str) -> Report:
    return msgspec.structs.replace(
        example(), verdict=Verdict(sentence=text), script=(text,), path=text, notes=(text,)
    )


@pytest.mark.parametrize(
    "text",
    ["</script><script>alert(1)</script>", "\"'><b onmouseover='alert(1)'>\u202e\0"],
    ids=["script", "quotes"],
)
def test_hostile_names_stay_names(visit, text):
    for hostile in (remembered(trained(2, text, path=text)), [named(text), named(text)]):
        page = visit(hostile)
        assert page.locator("b[onmouseover]").count() == 0
        assert (
            page.evaluate("[...document.scripts].filter((one) => one.textContent === 'alert(1)').length") == 0
        )


def test_a_very_long_run_moves(visit):
    """A page of many events draws in a frame what it shows: no more columns than there are pixels."""
    page = visit(remembered(trained(1_500)))
    assert page.evaluate("gaplessStages[0].whole[1]") > 10_000
    strokes = page.evaluate(
        """() => {
          let calls = 0;
          const pen = document.querySelector('.canvas .main').getContext('2d');
          for (const name of ['fillRect', 'lineTo']) {
            const was = pen[name].bind(pen);
            pen[name] = (...words) => { calls += 1; was(...words); };
          }
          gaplessStages[0].redraw();
          return calls;
        }"""
    )
    assert strokes < 60 * page.locator(".canvas .main").evaluate("one => one.width")

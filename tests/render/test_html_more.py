"""Pages of memory, of loaders, and of several runs."""

from __future__ import annotations

import re
from itertools import accumulate

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_runs import diagnosed, remembered, trained
from pages import Page, assert_sound
from sessions import example
from trace_builder import training

from gapless.analyze import report
from gapless.analyze.across import with_summary
from gapless.analyze.profile.building import build_profile
from gapless.memory.recorder import Recorder
from gapless.memory.report import ReportOptions
from gapless.model import Report, Verdict
from gapless.model.loading import Diagnosis
from gapless.render import Style, html, renderer
from gapless.render.html._clean import visible

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<!-- <img src=x onerror=alert(1)>",
    "\"'><b onmouseover='alert(1)'>",
    "\u202egnp.exe\u2066",
    "nul\0 and \x1b[31m",
    "]]>&amp;{{ 7*7 }}{% endif %}`",
    "\udce9 \u2028 \ufffe",
    "k" * 10_000,
)
IDS = ("script", "comment", "quotes", "bidi", "nul", "markup", "broken", "long")
SEARCHED = ReportOptions(search=True)


@pytest.fixture(scope="module")
def memory_report():
    return remembered(trained(6), SEARCHED)


@pytest.fixture(scope="module")
def page(memory_report) -> Page:
    return Page(renderer("html")(report(memory_report), Style(folder="/work")))


def test_memory_is_a_sound_page(memory_report, page):
    assert_sound(page)
    assert memory_report.sentence + "." in page.text
    assert memory_report.trials[memory_report.best].settings in page.text
    assert "/work/model.py" not in page.source
    for finding in memory_report.findings:
        assert finding.code in page.text
    assert page.elements["canvas"] == 2
    assert "memory" in page.ids
    assert any(id.startswith("numbers-at-the-peak") for id in page.ids)
    assert not re.search(r"https?:|@import|url\(", page.source)


def test_the_memory_picture_equals_the_replay(memory_report, page):
    data = page.drawn("memory")
    whole = data["windows"][0]
    assert max(accumulate(whole["allocated"])) * data["unit"] == memory_report.baseline.peak_allocated
    assert max(accumulate(whole["reserved"])) * data["unit"] == memory_report.baseline.peak_reserved
    assert list(accumulate(whole["event"]))[-1] == memory_report.events - 1
    assert data["peak"]["event"] == memory_report.peak.event
    assert data["peak"]["id"] in page.ids
    assert [stop["id"] for stop in data["stops"] if stop["id"] and stop["id"] not in page.ids] == []
    best = memory_report.trials[memory_report.best]
    assert [run["name"] for run in data["others"] if run["shown"]] == [best.settings]
    other = next(run for run in data["others"] if run["best"])
    assert max(accumulate(other["reserved"])) * data["unit"] == best.outcome.peak_reserved


def test_what_did_not_fit_is_a_stop():
    short = remembered(trained(6), ReportOptions(capacity=120 << 20, tried=("expandable_segments:True",)))
    page = Page(renderer("html")(report(short), Style(folder="/work")))
    assert_sound(page)
    assert any(stop["label"] == "out of memory" for stop in page.drawn("memory")["stops"])


def test_memory_without_a_picture_or_anything():
    empty = remembered(trained(0))
    for memory in (msgspec.structs.replace(empty, track=None), empty, remembered(Recorder().run())):
        assert_sound(Page(renderer("html")(report(memory), Style())))


@pytest.mark.parametrize("text", HOSTILE, ids=IDS)
def test_hostile_memory_is_text(text):
    memory = remembered(
        trained(2, text, path=text, gpu=text, settings=""), ReportOptions(tried=("max_split_size_mb:64",))
    )
    memory = msgspec.structs.replace(
        memory,
        sentence=text,
        advice=text,
        settings=text,
        trials=tuple(msgspec.structs.replace(trial, settings=text, note=text) for trial in memory.trials),
    )
    page = Page(renderer("html")(report(memory), Style()))
    assert_sound(page)
    plain = visible(text.encode("utf-8", "backslashreplace").decode())
    assert plain[:1000] in page.text
    assert plain[:200] in page.drawn("memory")["layers"][0]["name"] or page.drawn("memory")["places"]
    assert page.elements["script"] == 4
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", page.source)


def test_a_long_run_is_a_small_page():
    session = remembered(trained(2_500), ReportOptions(tried=("expandable_segments:True",)))
    assert session.events > 20_000
    assert len(renderer("html")(report(session), Style()).encode()) < 1_000_000


def test_home_folders_and_arguments_are_not_shown(monkeypatch):
    monkeypatch.setenv("HOME", "/data/people/ada")
    memory = remembered(trained(2, "../home/bob/x", path="/data/people/ada/run.pickle"))
    page = Page(renderer("html")(report(memory), Style(folder="/elsewhere")))
    assert "people/ada" not in page.source
    assert "/home/bob" not in page.source


def test_a_checked_script_shows_its_memory():
    memory = remembered(trained(3))
    both = (msgspec.structs.replace(memory, device=0), msgspec.structs.replace(memory, device=1))
    page = Page(renderer("html")(msgspec.structs.replace(example(), memory=both), Style(folder="/work")))
    assert_sound(page)
    assert {"findings", "memory0", "memory1"} <= set(page.ids)
    assert page.drawn("memory0") == page.drawn("memory1") | {"peak": page.drawn("memory0")["peak"]} | {
        "stops": page.drawn("memory0")["stops"]
    }
    alone = Page(renderer("html")(msgspec.structs.replace(example(), memory=both[:1]), Style()))
    assert "memory" in alone.ids


def test_what_a_line_holds_is_in_the_margin(tmp_path):
    (tmp_path / "model.py").write_text("\n" * 9 + "y = model(x)\n" + "\n" * 9 + "x = batch.to(device)\n")
    run = trained(2)
    lines = tuple(msgspec.structs.replace(line, file=str(tmp_path / "model.py")) for line in run.lines)
    result = report(remembered(msgspec.structs.replace(run, lines=lines)))
    page = Page(renderer("html")(result, Style(folder=str(tmp_path))))
    assert_sound(page)
    assert "source" in page.ids
    cells = re.findall(r'<tr class="hot"[^>]*><td class="num">([^<]*)</td><td class="n">(\d+)<', page.source)
    assert [number for _, number in cells] == ["10", "20"]
    assert all(cell.endswith(" MB") for cell, _ in cells)


# Loaders ------------------------------------------------------------------------------------------


def test_a_loader_is_a_sound_page():
    diagnosis = diagnosed()
    page = Page(renderer("html")(report(diagnosis), Style(folder="/work")))
    assert_sound(page)
    assert "num_workers=2" in page.text
    assert "data.py:7" in page.text
    assert "GAP311" in page.text
    assert "more than the memory" in page.text


@pytest.mark.parametrize(
    "bare",
    [
        Diagnosis(),
        msgspec.structs.replace(
            diagnosed(), predictions=(), now=None, advised=None, seen=None, seen_advised=None
        ),
        msgspec.structs.replace(diagnosed(), demand=diagnosed().demand.__class__()),
    ],
    ids=["nothing", "unpredicted", "no-step"],
)
def test_a_loader_with_little_known_about_it(bare):
    assert_sound(Page(renderer("html")(report(bare), Style())))


@pytest.mark.parametrize("text", HOSTILE, ids=IDS)
def test_hostile_loaders_are_text(text):
    page = Page(renderer("html")(report(diagnosed(text)), Style()))
    assert_sound(page)
    plain = visible(text.encode("utf-8", "backslashreplace").decode())
    assert plain[:900] in page.text
    assert page.elements["script"] == 1
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", page.source)


# Several runs -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def profiled() -> Report:
    return report([build_profile(training(steps=4).timeline(), max_boxes=500)])


def test_several_runs_are_one_page(profiled):
    checked = msgspec.structs.replace(example(), path="/work/runs/monday.json", memory=(remembered(),))
    report = msgspec.structs.replace(
        profiled, profile=msgspec.structs.replace(profiled.profile, path="/work/runs/a")
    )
    page = Page(html.together(with_summary([checked, report, report]), Style(folder="/elsewhere")))
    assert_sound(page)
    assert {"run1", "run2", "run3", "run1-memory", "run2-timeline", "run3-timeline"} <= set(page.ids)
    assert page.drawn("run2-timeline")["lanes"] == page.drawn("run3-timeline")["lanes"]
    assert page.elements["details"] > 3
    for phrase in ("monday.json", "a (1)", "a (2)", checked.sentence + ".", report.sentence + ".", "2 of 3"):
        assert phrase in page.text
    assert page.text.index("3 runs: ") < page.text.index(checked.sentence + ".")
    assert {"#run1", "#run2"} <= set(page.links)
    for number, result in enumerate((checked, report, report), 1):
        mine = [name for name in page.ids if name.startswith(f"run{number}-GAP")]
        assert len(mine) == len(result.findings)


def test_one_run_is_a_page_of_its_own(profiled):
    assert html.together([profiled], Style()) == renderer("html")(profiled, Style())


@settings(max_examples=6, deadline=None)
@given(st.lists(st.text(max_size=20), min_size=2, max_size=3))
def test_runs_of_any_name(names):
    runs = [msgspec.structs.replace(example(), path=name, verdict=Verdict(sentence=name)) for name in names]
    page = Page(html.together(with_summary(runs), Style()))
    assert_sound(page)
    assert page.elements["h1"] == 1

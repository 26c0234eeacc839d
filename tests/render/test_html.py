"""The report as a page."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import msgspec
import pytest
from compared_profiles import fast, slow
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import Page, assert_sound
from sessions import example
from trace_builder import training

from gapless.analyze import report
from gapless.analyze.compare import compare_profiles, compare_reports, subject
from gapless.analyze.profile.building import build_profile, profile_file
from gapless.analyze.profile.profile_findings import find_in_profiles
from gapless.model import Change, Report, SourceLine, Table, Verdict
from gapless.model.finding import Caller, Spot
from gapless.model.table import Column, Row
from gapless.render import Style, formats, renderer
from gapless.render.html._clean import MAX_TEXT_LENGTH, Clean, visible
from gapless.render.html._source import highlight

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<!-- <img src=x onerror=alert(1)>",
    "\"'><b onmouseover='alert(1)'>",
    "\u202egnp.exe\u2066",
    "nul\0 and \x1b[31m",
    "]]>&amp;&lt;{{ 7*7 }}{% endif %}`",
    "\udce9 \u2028 \ufffe",
)
BENIGN = "name"


@pytest.fixture(scope="module")
def profile_report() -> Report:
    return report([build_profile(training(steps=4).timeline(), priced=True, max_boxes=2000)])


@pytest.fixture(scope="module")
def page(profile_report) -> Page:
    return Page(renderer("html")(profile_report, Style()))


def shown(report: Report, **style: object) -> Page:
    return Page(renderer("html")(report, Style(**style)))


def test_html_is_a_format():
    assert "html" in formats()


def test_a_profile_is_a_sound_page(profile_report, page):
    assert_sound(page)
    assert page.source.startswith("<!doctype html>\n")
    assert page.source.endswith("</html>\n")
    assert profile_report.sentence + "." in page.text
    for finding in profile_report.findings:
        assert finding.code in page.text
        assert finding.remedy.replace("`", "") in page.text


def test_a_checked_script_is_a_sound_page():
    report = example()
    page = shown(report, folder="/work")
    assert_sound(page)
    assert page.data is None
    assert page.elements["canvas"] == 0
    assert "train.py:60" in page.text
    assert "GAP110-train.py-60" in page.ids
    assert "/work/train.py" not in page.source
    assert "torch.compile ran eagerly" in page.text


@pytest.mark.parametrize("sentence", ["nothing", ""], ids=["empty", "silent"])
def test_nothing_found(sentence):
    assert_sound(shown(Report(verdict=Verdict(sentence=sentence))))


def test_the_verdict_comes_first():
    """The sentence, why, and what to do first, with what a step is before and after each change."""
    report = example()
    at = SourceLine("/work/train.py", 60, "train")
    changes = (
        Change(
            what="log `loss` rarely",
            line=at,
            lines=(60, 61, 62),
            before=8.8e6,
            after=1.9e6,
            findings=(0,),
            codes=("GAP110",),
        ),
        Change(what="launch less", place="everywhere", before=1.9e6, after=1.7e6, bound=True),
    )
    verdict = Verdict(
        sentence="It idles",
        level="act",
        why=("of the loader",),
        do_first=changes,
        confidence="estimated",
        not_seen=("evaluation",),
    )
    page = shown(msgspec.structs.replace(report, verdict=verdict), folder="/work")
    assert_sound(page)
    text = " ".join(page.text.split())
    order = [
        "It idles.",
        "estimated",
        "of the loader.",
        "Do first",
        "per step",
        "log loss rarely",
        "train.py:60–62",
        "8.8 → 1.9 ms",
    ]
    order += [
        "launch less",
        "everywhere",
        "1.9 → 1.7 ms at best",
        "evaluation.",
        f"Findings {len(report.findings)}",
    ]
    places = [text.index(word) for word in order]
    assert places == sorted(places)
    first = next(id for id in page.ids if id.startswith(report.findings[0].code))
    assert f"#{first}" in page.links


def test_a_finding_names_its_price_its_lines_and_its_callers():
    finding = example().findings[0]
    lines = [SourceLine("/work/a.py", n, "f", f"x{n}.item()") for n in (3, 4, 5)]
    spots = tuple(Spot(line=line, waits=2) for line in lines)
    callers = tuple(Caller((SourceLine("/work/b.py", n, "main"),), 3.0) for n in (7, 9))
    shown_finding = msgspec.structs.replace(finding, line=lines[0], spots=spots, callers=callers)
    page = shown(Report(verdict=Verdict(sentence="x"), findings=(shown_finding,)), folder="/work")
    assert_sound(page)
    for text in ("a.py:3–5", "x4.item()", "3× from b.py:7 main", "3× from b.py:9 main", "2× a.py:4"):
        assert text in page.text


def test_tables_are_shown_whatever_is_in_them():
    line = SourceLine("/work/train.py", 60, "train")
    rows = tuple(Row((line, f"{n} ms", n / 9, (0.0, 1.0, n / 9)), "bad" if n else "") for n in range(6))
    columns = (Column("", "text"), Column("time"), Column("", "drawn"), Column("course", "drawn"))
    before = Table(title="Seen <first>", columns=columns, rows=rows, shown=2, rest="rows", where="before")
    folded = Table(title="Seen <first>", columns=columns, rows=rows, shown=0, notes=("of `all`",))
    bare = Table(title="", columns=(Column("", "text"),), rows=(Row(("alone",)),))
    empty = Table(title="Prices", notes=("none",))
    page = shown(msgspec.structs.replace(example(), tables=(before, folded, bare, empty)), folder="/work")
    assert_sound(page)
    ids = {name: number for number, name in enumerate(page.ids)}
    assert ids["numbers-seen-first"] < ids["findings"] < ids["numbers-seen-first~2"]
    assert page.elements["svg"] == 12
    assert "… and 4 rows" in page.text
    assert "train.py:60" in page.text
    assert "of all." in page.text
    assert any(link.startswith("#GAP110-train.py-60") for link in page.links)
    assert len([id for id in page.ids if id.startswith("numbers-seen-first")]) == 3  # and a box to unfold


def test_nothing_is_loaded(page):
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(", page.source)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page.source)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'")
    scripts = re.findall(r"<script>(.*?)</script>", page.source, re.S)
    for script in scripts:
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy[1]


def test_every_wait_leads_to_its_finding(profile_report, page):
    data = page.data
    assert profile_report.profile is not None
    waits = [number for number, cost in enumerate(profile_report.profile.costs) if cost.cause == "wait"]
    assert set(data["waits"]) == {str(number) for number in waits}
    for number in waits:
        finding = profile_report.findings[data["waits"][str(number)]]
        assert profile_report.profile.costs[number].site in finding.sites
    assert [finding["id"] for finding in data["findings"] if finding["id"] not in page.ids] == []


def test_without_a_timeline_it_says_so(profile_report):
    assert profile_report.profile is not None
    bare = msgspec.structs.replace(
        profile_report, profile=msgspec.structs.replace(profile_report.profile, lanes=None)
    )
    page = shown(bare)
    assert_sound(page)
    assert page.data is None
    assert "No timeline: it is drawn" in page.text


def with_text(report: Report, text: str) -> Report:
    """`report` with `text` wherever a stranger can put text."""
    line = SourceLine(f"/work/{text}.py", 3, text, text)
    deep = SourceLine("/venv/lib/python3.11/site-packages/torch/x.py", 7, text, text, "torch")
    finding = report.findings[0]
    site = msgspec.structs.replace(
        finding.sites[0], operator=text, call=text, stack=(deep, line), forward=(line,)
    )
    hit = msgspec.structs.replace(
        finding, line=line, remedy=text, evidence=(text,), operators=(text,), sites=(site,), place=text
    )
    was = report.profile
    assert was is not None
    assert was.lanes is not None
    lanes = msgspec.structs.replace(was.lanes, names=tuple(text for _ in was.lanes.names), left_out=(text,))
    mine = msgspec.structs.replace(
        was,
        path=text,
        gpu=text,
        steps=msgspec.structs.replace(was.steps, names=tuple(text for _ in was.steps.names)),
        lanes=lanes,
    )
    change = Change(what=text, line=line, before=2.0, after=1.0, findings=(0,), codes=(text,))
    columns = (Column("", "text"), Column(text))
    return Report(
        verdict=Verdict(sentence=text, why=(text,), confidence=text, do_first=(change,), not_seen=(text,)),
        tables=(
            Table(title=text, columns=columns, rows=(Row((text, text)), Row((line, text))), notes=(text,)),
        ),
        script=(text,),
        ending=report.ending,
        findings=(hit,),
        notes=(text, text),
        profile=mine,
    )


@pytest.mark.parametrize(
    "text", HOSTILE, ids=["script", "comment", "quotes", "bidi", "nul", "markup", "broken"]
)
def test_hostile_text_is_text(profile_report, text):
    page = shown(with_text(profile_report, text))
    assert_sound(page)
    plain = visible(text.encode("utf-8", "backslashreplace").decode())
    assert plain + "." in page.text
    assert set(page.data["lanes"]["names"]) == {plain}
    assert any(plain in attribute for attribute in page.attributes)


@pytest.fixture(scope="module")
def benign(profile_report) -> Page:
    return shown(with_text(profile_report, BENIGN))


@settings(max_examples=25, deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=30))
def test_no_text_changes_what_the_page_is_made_of(profile_report, benign, text):
    page, other = shown(with_text(profile_report, "x" + text)), benign
    assert_sound(page)
    # Code may be painted, and prose may have code in it: those two elements depend on the text.
    free = ("i", "code")
    assert {k: v for k, v in page.elements.items() if k not in free} == {
        k: v for k, v in other.elements.items() if k not in free
    }
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", page.source)


def test_endless_names_are_cut(profile_report):
    page = shown(with_text(profile_report, "k" * 10_000))
    assert_sound(page)
    assert "k" * (MAX_TEXT_LENGTH + 1) not in page.source
    assert "(10,000 characters)" in page.text


def test_home_folders_are_not_shown(profile_report, monkeypatch):
    monkeypatch.setenv("HOME", "/data/people/ada")
    secret = with_text(
        profile_report,
        "/home/bob/x.py and /Users/evelyn/y.py, C:\\Users\\mallory\\z.py, /data/people/ada/w.py",
    )
    page = shown(secret)
    for name in ("/bob", "evelyn", "mallory", "ada/"):
        assert name not in page.source
    assert "~/x.py" in page.text
    assert "/home/bob/x.py" in shown(secret, frames=True).text


def test_arguments_and_environment_are_not_reported(monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2-of-the-environment")
    page = shown(msgspec.structs.replace(example(), script=("train.py", "--key", "hunter3")))
    assert "hunter" not in page.source


def test_source_is_shown_where_it_is_what_ran(tmp_path: Path):
    file = tmp_path / "train.py"
    file.write_text("def f(x):\n    # five < six\n    y = x.item()\n    return y\n")
    finding = example().findings[0]

    def at(number: int, code: str) -> Page:
        line = SourceLine(str(file), number, "f", code)
        shown_finding = msgspec.structs.replace(finding, line=line, sites=())
        return shown(Report(verdict=Verdict(sentence="one"), findings=(shown_finding,)), folder=str(tmp_path))

    fresh, stale = at(3, "y = x.item()"), at(3, "y = x.tolist()")
    assert_sound(fresh)
    assert "# five < six" in fresh.text
    assert "source" in fresh.ids
    assert "return" not in stale.text.replace("return value", "")
    assert "y = x.tolist()" in stale.text
    assert "source" not in stale.ids


@given(st.lists(st.text(alphabet=st.characters(exclude_characters="\n\r"), max_size=40), max_size=6))
@settings(max_examples=60, deadline=None)
def test_painting_keeps_the_text(lines):
    for line, painted in zip(lines, highlight(lines), strict=True):
        page = Page(f"<p>{painted}</p>")
        assert page.text == visible(line.encode("utf-8", "backslashreplace").decode())
        assert page.problems == []


def test_cleaning_twice_changes_nothing():
    clean = Clean(Style(folder="/work"))
    for text in HOSTILE:
        assert clean(clean(text)) == clean(text)
    assert clean("/work/a.py") == "a.py"


def compared(kind: str) -> Report:
    if kind == "profiles":
        sides = (
            subject(name, [profile], find_in_profiles) for name, profile in (("a", slow()), ("b", fast()))
        )
        return report(compare_profiles(*sides))
    return report(compare_reports(("a", example()), ("b", msgspec.structs.replace(example(), findings=()))))


@pytest.mark.parametrize("kind", ["profiles", "sessions"])
def test_a_comparison_is_a_sound_page(kind):
    report = compared(kind)
    page = shown(report)
    assert_sound(page)
    assert report.sentence + "." in page.text
    assert report.comparison is not None
    for row in report.comparison.findings:
        assert row.state == "same" or row.finding.code in page.text
    assert not [link for link in page.links if link.endswith("timeline")]


def test_pages_stay_small_enough_to_send(profile_report):
    """Many findings with deep stacks, and a timeline as large as they come."""
    stack = tuple(
        SourceLine(
            f"/venv/lib/python3.11/site-packages/torch/part{n}.py", n, f"f{n}", "x = y(z)" * 5, "torch"
        )
        for n in range(80)
    )
    finding = profile_report.findings[0]
    many = [
        msgspec.structs.replace(
            finding,
            line=SourceLine("/work/train.py", n, "train", "loss = criterion(outputs, target)" * 2),
            sites=tuple(
                msgspec.structs.replace(finding.sites[0], operator=f"aten::f{m}", stack=(*stack, *stack[:m]))
                for m in range(6)
            ),
        )
        for n in range(400)
    ]
    text = renderer("html")(msgspec.structs.replace(profile_report, findings=tuple(many)), Style())
    assert len(text.encode()) < 1_400_000  # the largest timeline is 0.6 million more
    assert_sound(Page(text))


FOLDER = Path(__file__).resolve().parents[3] / "shared" / "traces"
PUBLIC = (
    "HolisticTraceAnalysis-critical_path-alexnet-benchmark_result_2869224_1695835535_trace-3d4a.json.gz",
    "param-dlrm_kineto-worker0_step_12.1694128201545-b35a.json.gz",
    "TraceLens-mi300-gaunernst_bert-small-uncased-1016001-02df.json.gz",
    "kineto-resnet50_num_workers_0-worker0.1623143089861-9b36.json.gz",
)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_profiles_are_sound_and_small_pages(name):
    if not (FOLDER / name).exists():
        pytest.skip("needs the public traces")
    report_html = report([profile_file(str(FOLDER / name), max_boxes=16_000)])
    page = shown(report_html, folder=str(FOLDER))
    assert_sound(page)
    assert str(FOLDER) not in page.source
    assert len(page.source.encode()) < 1_000_000
    for window in page.data["lanes"]["windows"]:
        for row in window["boxes"]:
            assert len(row["start"]) == len(row["length"]) == len(row["what"])
            merged = sum(number > 1 for number in row.get("count", ()))
            assert len(row.get("busy", ())) == merged
            assert all(
                len(row[name]) == len(row["start"]) - merged for name in ("launch", "thread") if name in row
            )
            assert page.data["lanes"]["lanes"][row["lane"]]["kind"] == "stream" or "launch" not in row
    assert all(number >= 0 for number in page.data["waits"].values())

"""The report of a profile as text."""

from __future__ import annotations

import msgspec
import pytest
from trace_builder import training

from gapless.analyze.profile.building import build_profile
from gapless.analyze.profile.profile_report import report_run
from gapless.analyze.tables.profile_tables import tables
from gapless.model import Finding, Frequency, Loss, RankSummary, Report, Site, SourceLine
from gapless.render import Style, renderer

MS = 1_000_000


@pytest.fixture(scope="module")
def profile_report() -> Report:
    return report_run([build_profile(training(steps=4).timeline())])


def text(report: Report, **style: object) -> str:
    return renderer("text")(report, Style(**style))  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("unfold", [False, True])
def test_it_fits(profile_report, width, unfold):
    lines = text(profile_report, width=width, unfold=unfold).splitlines()
    # A place is never broken: terminals make a link of it.
    assert all(len(line) <= width or "/work/train.py" in line for line in lines)


def test_ascii_holds_everything(profile_report):
    assert text(profile_report, unicode=False, unfold=True).isascii()


def test_plain_text_has_no_escapes(profile_report):
    assert "\x1b" not in text(profile_report)
    assert "\x1b" in text(profile_report, color="standard")


def test_the_split_adds_up_in_print(profile_report):
    rows = [
        line.split("%")[0].split()[-1]
        for line in text(profile_report).splitlines()
        if line.count("%") == 1 and "█" in line
    ]
    assert sum(map(float, rows)) == pytest.approx(100, abs=0.6)


def wait(idle: int, blocked: int, line: int) -> Finding:
    model = SourceLine("transformers/model.py", 1421, "boxes", library="transformers")
    site = Site(operator="aten::to", mechanism="h2d", stack=(model, SourceLine("run.py", line, "main")))
    return Finding(
        code="GAP120",
        name="pageable-copy",
        line=site.line,
        frequency=Frequency(when="every-step", waits=1),
        remedy="pin it",
        evidence=("seen so",),
        loss=Loss(idle=idle, share=idle / (4 * MS), blocked=blocked, working=blocked, calls=5),
        library_stack=site.library_frames,
        sites=(site,),
    )


def test_a_long_wait_without_cost_is_shown_and_a_short_one_is_hidden(profile_report):
    output = text(msgspec.structs.replace(profile_report, findings=(wait(0, 3 * MS, 7), wait(0, 10, 8))))
    assert "GPU idles under 0.1 %" in output
    assert "run.py:7" in output  # other tools would name it first
    assert "run.py:8" not in output  # short, and free as well
    assert "… and 1 finding, each below 0.5 % of a step (--all)" in output


def test_everything_unfolded(profile_report):
    unfoldable = msgspec.structs.replace(
        profile_report, findings=tuple(wait(0, 10, line) for line in range(30))
    )
    assert text(unfoldable).count("run.py") == 0
    assert text(unfoldable, unfold=True).count("\n  run.py:") == 30


def test_a_thousand_ranks_are_not_a_thousand_rows(profile_report):
    ranks = tuple(RankSummary(rank=n, step=9 * MS, late=n * 1000.0, idle=3 * MS) for n in range(1000))
    report = msgspec.structs.replace(profile_report, ranks=ranks)
    output = text(msgspec.structs.replace(report, tables=tables(report, report.profile)))
    assert len(output.splitlines()) < 80
    assert "  999 " in output
    assert "… and 992 ranks that arrive earlier" in output


def test_no_steps_and_no_time():
    empty = build_profile(training(steps=1).timeline())
    bare = msgspec.structs.replace(
        empty,
        steps=msgspec.structs.replace(empty.steps, start=(), end=(), busy=(), names=()),
        costs=(),
        idle=0,
    )
    assert "The trace covers no time" in text(report_run([bare]))

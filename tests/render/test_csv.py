"""Findings as CSV."""

from __future__ import annotations

import csv
import io

import msgspec
import pytest
from hypothesis import given, settings
from render.reports import hostile, names, of_profile
from sessions import example

from gapless.model import Finding, Report
from gapless.model.wording import number
from gapless.render import Style, renderer, together
from gapless.render.csv import COLUMNS

STYLE = Style(folder="/work")


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text), strict=True))


def test_one_row_for_each_finding():
    report = msgspec.structs.replace(example(), path="/work/monday.json")
    cells = rows(renderer("csv")(report, STYLE))
    assert len(cells) == len(report.findings)
    for row, finding in zip(cells, report.findings, strict=True):
        assert (row["run"], row["code"], row["name"]) == ("monday.json", finding.code, finding.name)
        assert row["line"] == (str(finding.line.line) if finding.line else "")
        assert float(row["syncs_per_step"]) == pytest.approx(finding.frequency.per_step, abs=1e-4)
        assert row["when"] == finding.frequency.when
        assert row["remedy"].lstrip("'") == finding.remedy
        assert row["idle_ns_per_step"] == ""  # a session has no times


def test_times_are_per_step():
    profile = of_profile()
    assert profile.profile is not None
    steps = profile.profile.steps.count
    for row, finding in zip(rows(renderer("csv")(profile, STYLE)), profile.findings, strict=True):
        assert finding.loss is not None
        assert int(row["idle_ns_per_step"]) == round(finding.loss.idle / steps)
        assert float(row["idle_share"]) == pytest.approx(finding.loss.share, abs=1e-6)
        assert row["syncs"] == number(finding.loss.calls)


def test_several_runs_share_one_heading():
    text = together("csv", [example(), of_profile()], STYLE)
    assert text.splitlines()[0] == ",".join(COLUMNS)
    assert text.count("run,code,name") == 1
    assert len(rows(text)) == len(example().findings) + len(of_profile().findings)


@pytest.mark.parametrize("sign", ["=", "+", "-", "@", "＝", "＋", "－", "＠"])
@pytest.mark.parametrize("before", ["", "\t", "\r", "\n", "  "])
def test_no_cell_is_a_formula(sign, before):
    finding: Finding = example().findings[0]
    report: Report = msgspec.structs.replace(
        example(), findings=(msgspec.structs.replace(finding, remedy=f"{before}{sign}cmd|x"),)
    )
    cell = rows(renderer("csv")(report, STYLE))[0]["remedy"]
    assert cell.startswith("'")
    assert cell.endswith(f"{sign}cmd|x")


@settings(deadline=None, max_examples=25)
@given(name=names)
def test_hostile_names_are_cells(name):
    report = hostile(name)
    text = renderer("csv")(report, STYLE)
    assert len(rows(text)) == len(report.findings)
    assert all(set(row) == set(COLUMNS) and None not in row.values() for row in rows(text))

"""Several runs summed up: what each rule costs all of them."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import pytest
from sessions import example
from trace_builder import training

from gapless.analyze import report
from gapless.analyze.across import rule_costs, summary, with_summary
from gapless.analyze.profile.building import build_profile
from gapless.model import Finding, Profile, Report, SourceLine, Verdict
from gapless.model.finding import Frequency, Loss
from gapless.model.profile import Steps
from gapless.render import Style, formats, renderer, together

MS = 1_000_000


def make_finding(code: str, idle: float) -> Finding:
    often = Frequency(when="every-step", waits=1, per_step=1)
    return Finding(
        code=code,
        name=f"name-{code}",
        line=None,
        frequency=often,
        remedy="",
        loss=Loss(idle=round(idle * MS), share=0.1),
    )


def run(name: str, *findings: Finding, length: float = 100) -> Report:
    """A profile of one step of `length` milliseconds."""
    steps = Steps(source="x", start=(0,), end=(round(length * MS),), busy=(0,))
    profile = Profile(
        path=name, steps=steps, idle=sum(finding.loss.idle for finding in findings if finding.loss)
    )
    return Report(
        verdict=Verdict(sentence=name, level="act"), kind="profile", profile=profile, findings=findings
    )


def test_rules_are_ranked_by_what_all_runs_lose():
    runs = [
        run("a", make_finding("GAP120", 5), make_finding("GAP120", 6), make_finding("GAP301", 1)),
        run("b", make_finding("GAP301", 30), make_finding("GAP703", 90)),
        run("c"),
    ]
    ranked = rule_costs(runs)
    assert [rule.code for rule in ranked] == ["GAP301", "GAP120", "GAP703"]  # how it was recorded stands last
    assert [rule.idle for rule in ranked] == [31 * MS, 11 * MS, 90 * MS]
    assert [rule.runs for rule in ranked] == [{0, 1}, {0}, {1}]
    assert [rule.most for rule in ranked] == [1, 0, 1]
    document = summary(runs)
    assert document.kind == "runs"
    assert document.verdict.level == "act"
    assert document.sentence == (
        "3 profiles: the GPU idles 44 % of 300 ms of steps; 10 % of them with GAP301 name-GAP301, in 2 of 3"
    )
    rows = {row.cells[0]: row.cells[1:] for row in document.tables[0].rows}
    assert rows["GAP301 name-GAP301"] == ("2 of 3", "31 ms", "10 %", 31 / 90, SourceLine("b", 0))
    assert [row.cells[0] for row in document.tables[1].rows] == [SourceLine(name, 0) for name in "abc"]


def test_the_sums_are_those_of_the_runs():
    """Independent reckoning over real reports, of profiles and of sessions."""
    runs = [report([build_profile(training(steps=n).timeline())]) for n in (3, 5)]
    runs.append(msgspec.structs.replace(example(), path="s.json"))
    idle: dict[str, int] = defaultdict(int)
    where: dict[str, set[int]] = defaultdict(set)
    for number, entry in enumerate(runs):
        for each in entry.findings:
            idle[each.code] += each.loss.idle if each.loss else 0
            where[each.code].add(number)
    ranked = rule_costs(runs)
    assert {rule.code: rule.idle for rule in ranked} == idle
    assert {rule.code: rule.runs for rule in ranked} == where
    assert len(summary(runs).tables[0].rows) == len(idle)


def test_files_are_labelled_by_what_differs():
    """The folders that all are in tell nothing; an end that is cut off tells two ranks apart no more."""
    paths = [f"/runs/today/{'long_' * 20}{name}.json" for name in ("one", "two")]
    document = summary([run(path, make_finding("GAP120", 5 + at)) for at, path in enumerate(paths)])
    assert [row.cells[0].file for row in document.tables[1].rows] == [
        path.rpartition("/")[2] for path in paths
    ]
    assert "ng_two.json" in renderer("text")(document, Style(width=80))
    apart = summary([run(path, make_finding("GAP120", 5)) for path in ("/runs/a/x.json", "/runs/b/x.json")])
    assert [row.cells[0].file for row in apart.tables[1].rows] == ["a/x.json", "b/x.json"]
    same = summary([run("/runs/x.json", make_finding("GAP120", 5))] * 2)
    assert [row.cells[0].file for row in same.tables[1].rows] == ["x.json", "x.json"]


@pytest.mark.parametrize("level", ["fine", "unknown"])
def test_nothing_found_is_said(level):
    runs = [Report(verdict=Verdict(sentence="x", level=level), script=(name,)) for name in ("a", "b")]
    document = summary(runs)
    assert document.sentence == "2 checked scripts: found nothing to fix in any of them"
    assert document.verdict.level == level
    assert [table.title for table in document.tables] == ["Run"]


def test_only_several_runs_are_summed_up():
    first = run("a", make_finding("GAP120", 5))
    assert with_summary([first]) == [first]
    assert [each.kind for each in with_summary([first, first])] == ["runs", "profile", "profile"]
    pair = [Report(verdict=Verdict(sentence="x"), kind="memory")] * 2
    assert with_summary(pair) == pair


@pytest.mark.parametrize("form", formats())
def test_programs_get_the_runs_alone_and_people_the_summary_first(form):
    runs = [run("a", make_finding("GAP120", 5)), run("b", make_finding("GAP120", 7))]
    with_it, without = (together(form, each, Style()) for each in (with_summary(runs), runs))
    if form in ("html", "markdown", "text"):
        assert "2 profiles" in with_it.replace("&#", "")
        assert "2 profiles" not in without
    else:
        assert with_it == without

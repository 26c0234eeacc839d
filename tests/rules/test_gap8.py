"""Races: the rules' own examples, what reports say of them, and what they are kept in."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest
import torch.distributed as dist

import gapless
from gapless.analyze import report
from gapless.analyze.findings.race_findings import findings
from gapless.commands._gate import find_exceeded_limits
from gapless.model import Race, RaceRule, Session, SourceLine
from gapless.model.race import Access, RaceKind
from gapless.model.session import decode, encode
from gapless.render import Style, renderer
from gapless.rules import rules_of_kind

RULES = rules_of_kind(RaceRule)


def raced(code: str, folder: Path) -> tuple[Race, ...]:
    path = folder / "example.py"
    path.write_text("import torch\n" + code)
    ranks = 2 if "init_process_group" in code else None
    try:
        with gapless.emulate(world_size=ranks) as emulated, contextlib.redirect_stdout(io.StringIO()):
            exec(compile(path.read_text(), str(path), "exec"), {})
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return emulated.races


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_the_example_races_and_its_replacement_does_not(rule: RaceRule, tmp_path: Path) -> None:
    sections = rule.sections()
    (wrong,), (right,) = (
        re.findall(r"```python\n(.*?)```", sections[title], flags=re.DOTALL)
        for title in ("Example", "Use instead")
    )
    assert {finding.code for finding in findings(raced(wrong, tmp_path))} == {rule.code}
    assert raced(right, tmp_path) == ()


def line(number: int, code: str = "") -> tuple[SourceLine, ...]:
    return (SourceLine("/home/me/train.py", number, "main", code),)


READ = Race(
    kind="in-flight-read",
    earlier=Access(
        what="copy", where="the default stream", writes=True, stack=line(10, 'h = x.to("cpu", True)')
    ),
    later=Access(what="aten::sum", where="the CPU", stack=line(12, "h.sum()")),
    times=9,
    steps=9,
)


def test_both_places_and_what_is_between_them() -> None:
    (finding,) = findings([READ])
    assert finding.line == READ.later.line
    assert "train.py:10 `h = x.to(" in finding.evidence[0]
    assert "train.py:12 `h.sum()` reads it on the CPU" in finding.evidence[1]
    assert "nothing in between makes the CPU wait" in finding.evidence[1]
    assert finding.evidence[-1] == "met 9 times in 9 steps"


@pytest.mark.parametrize("cause", ["early-event", "unrecorded-event", "other-event"])
def test_a_wait_that_does_not_help_is_named(cause: str) -> None:
    race = msgspec.structs.replace(READ, cause=cause, cause_stack=line(11))
    (finding,) = findings([race])
    assert any("train.py:11" in sentence and "event" in sentence for sentence in finding.evidence)


def test_races_of_one_pair_of_lines_are_one_finding() -> None:
    other = msgspec.structs.replace(READ, later=msgspec.structs.replace(READ.later, what="aten::mean"))
    (finding,) = findings([READ, other])
    assert finding.evidence[-1] == "met 18 times in 9 steps"


def test_places_that_are_not_known_are_said_to_be() -> None:
    for kind in get_args(RaceKind):
        (finding,) = findings([Race(kind=kind)])
        assert finding.line is None
        assert finding.place == "not known"


def test_a_race_is_listed_before_slow_code_and_fails_a_gate() -> None:
    diagnosis = report(Session(races=(READ,)))
    assert diagnosis.verdict.level == "failed"
    assert diagnosis.sentence == "Wrong numbers possible on a GPU: 1 race (train.py:12)"
    assert diagnosis.verdict.do_first[0].codes == ("GAP801",)
    assert diagnosis.findings[0].price is None
    assert find_exceeded_limits(diagnosis, None, ("GAP8",)) == ["GAP801 at 1 line (--fail-on)"]
    text = renderer("text")(diagnosis, Style(width=100))
    assert "wrong numbers possible" in text
    for form in ("html", "json", "markdown", "github", "sarif", "junit", "csv"):
        assert "GAP801" in renderer(form)(diagnosis, Style())


def test_numbers_that_differ_are_not_called_wrong() -> None:
    drawn = Race(kind="generator", earlier=Access(stack=line(20)), later=Access(stack=line(30)))
    diagnosis = report(Session(races=(drawn,)))
    assert diagnosis.sentence == "Random numbers differ in each run despite the seed (train.py:30)"
    both = report(Session(races=(READ, drawn)))
    assert both.sentence.startswith("Wrong numbers possible on a GPU: 1 race (train.py:12); Random numbers")
    text = renderer("text")(both, Style(width=100)).lower()
    assert "different numbers in each run" in text
    assert "wrong numbers possible" in text


def test_a_session_keeps_its_races_and_an_older_one_has_none() -> None:
    session = Session(races=(READ,))
    assert decode(encode(session), "s.json") == session
    assert decode(encode(Session()).replace(b'"races"', b'"never"'), "s.json").races == ()

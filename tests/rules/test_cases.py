"""Each file in `cases/` is a script; the comment on a line tells the waits that must be found there.

``# GAP101`` is one wait in the whole run, ``# GAP141 x2`` two, ``# GAP112, GAP102 x3`` those of two rules.
``# GAP127 x?`` is any number, none included, for the set-up of a library. A line without such a comment must
not wait. ``# GAP149 x2 (before torch 2.8: x3)`` is said where torch's own code has changed. ``# needs:
transformers`` names a package without which the case is skipped, ``# needs: torch 2.6`` a version.
"""

from __future__ import annotations

import collections
import contextlib
import io
import re
from pathlib import Path

import pytest
from rules.running import Found, run

from gapless.torch_internals import VERSION

CASES = sorted((Path(__file__).parent / "cases").glob("gap*.py"))
_EXPECTED = re.compile(r"(GAP\d{3})(?: x(\d+|\?))?(?: \(before torch 2\.(\d+): x(\d+)\))?")
_ANY = -1


def expected(text: str) -> Found:
    """Waits by line and code, as the comments say."""
    counts: Found = collections.defaultdict(collections.Counter)
    for number, line in enumerate(text.splitlines(), start=1):
        comment = re.search(r"#\s*(GAP\d{3}.*)$", line)
        for code, now, changed, before in _EXPECTED.findall(comment.group(1)) if comment else ():
            times = before if changed and (2, int(changed)) > VERSION else now
            if times != "0":
                counts[number][code] += _ANY if times == "?" else int(times or 1)
    return counts


def differences(text: str, wanted: Found, counted: Found) -> list[str]:
    """A line for each place where `counted` is not what was `wanted`."""
    lines = text.splitlines()
    report = []
    for number in sorted({*wanted, *counted}):
        free = {code for code, times in wanted[number].items() if times == _ANY}
        exact = [
            {c: n for c, n in counts.items() if c not in free} for counts in (wanted[number], counted[number])
        ]
        if exact[0] != exact[1]:
            report.append(
                f"line {number}: `{lines[number - 1].split('#')[0].strip()}`\n"
                f"    expected {exact[0] or 'no wait'}, found {exact[1] or 'no wait'}"
            )
    return report


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_case(case: Path) -> None:
    text = case.read_text()
    for package in re.findall(r"^# needs: (\w+)$", text, flags=re.MULTILINE):
        pytest.importorskip(package)
    for minor in re.findall(r"^# needs: torch 2\.(\d+)$", text, flags=re.MULTILINE):
        if (2, int(minor)) > VERSION:
            pytest.skip(f"torch 2.{VERSION[1]} lacks what the case uses, which is there since 2.{minor}")
    with contextlib.redirect_stdout(io.StringIO()):
        counted = run(text, case)
    wrong = differences(text, expected(text), counted)
    assert not wrong, "\n".join([case.name, *wrong])


def test_every_rule_has_a_case_that_fires_and_a_line_that_must_not() -> None:
    from gapless.model import WaitRule
    from gapless.rules import rules_of_kind

    fired = set()
    for case in CASES:
        text = case.read_text()
        code = case.stem[:6].upper()
        assert any(code in counts for counts in expected(text).values()), f"{case.name} never expects {code}"
        assert "# no wait" in text, f"{case.name} has no line that must not wait"
        fired.add(code)
    # Rules of profiles have no lines that wait: test_profile_rules.py and its like have their cases.
    assert fired == {rule.code for rule in rules_of_kind(WaitRule)}


def test_the_comments_are_read() -> None:
    text = "a()  # GAP101\nb()\nc()  # GAP112, GAP102 x3\n"
    assert expected(text) == {1: {"GAP101": 1}, 3: {"GAP112": 1, "GAP102": 3}}


def test_differences_name_the_line() -> None:
    wanted, counted = expected("a()  # GAP101\nb()"), expected("a()\nb()  # GAP110 x2")
    report = "\n".join(differences("a()\nb()", wanted, counted))
    assert "line 1: `a()`\n    expected {'GAP101': 1}, found no wait" in report
    assert "line 2: `b()`\n    expected no wait, found {'GAP110': 2}" in report

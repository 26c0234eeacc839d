"""Every remedy runs: each text that a rule can give has a case, and following it does what it says.

A case runs the code before and after on the emulated device, in several sizes, empty input included, and in
several precisions: the syncs are gone or as few as said, the numbers are the same, nothing races, and nothing
is found that was not found before. The texts are read from the rules' source: one without a case fails.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from rules.following import Followed, difference, quoted_code, read_cases, run
from rules.running import run_example

from gapless import rules
from gapless.model import WaitRule
from gapless.rules._by_use import REMEDIES

FOLDER = Path(__file__).parent / "remedies"

CASES = {path.stem.upper(): read_cases(path) for path in sorted(FOLDER.glob("gap*.txt"))}
BY_USE = "by_use"
"""The cases, and the module, that choose a remedy by what a value is used for."""
BY_CAUSE = "causes"
"""The same by where a value comes from."""
CASES[BY_USE] = read_cases(FOLDER / "by_use.txt")
CASES[BY_CAUSE] = read_cases(FOLDER / "by_cause.txt")
EACH_CASE = pytest.mark.parametrize(
    ("code", "case"),
    [
        pytest.param(case.code or code, case, id=f"{code}-{number}")
        for code, cases in CASES.items()
        for number, case in enumerate(cases)
    ],
)
READS = {"GAP101", "GAP102", "GAP103", "GAP106", "GAP122"}
"""The rules that find the one read of everything that a remedy leaves."""
_NO_REMEDIES = {"known_change", "change_at", "evidence", "wrong"}
"""Functions of rules whose texts are no remedies."""
_OTHER_TEXTS = {"change", "name", "_CHANGES", "COPY_WHERE_MADE"}
"""Names of texts of rules that are no remedies either."""
_MIN_BLANKS = 3
"""Shorter texts are names and pieces of code."""


@EACH_CASE
def test_following_the_remedy_does_what_it_says(code: str, case: Followed) -> None:
    before, after = run(case, "before"), run(case, "after")
    assert code in before.remedies, f"the code before shows {[*before.remedies]}"
    assert_quoted(case, before.remedies[code])
    if code not in before.races:
        assert after.syncs.total() <= case.left * len(case.rows) * len(case.dtypes), after.syncs
        assert after.syncs.total() < before.syncs.total()
        allowed = {*before.syncs, *case.leaves, *(READS if case.left else ())}
        assert set(after.syncs) <= allowed, "another rule finds something in the code after"
        assert not before.races
    else:
        assert set(after.syncs) <= {"GAP122", "GAP131"}, "the remedy of a race is reported as a sync"
    assert not after.races
    for value_before, value_after in zip(before.values, after.values, strict=True):
        assert not difference(case, value_before, value_after)


def test_each_kind_of_use_has_a_case() -> None:
    kinds = {kind for case in CASES[BY_USE] for kind in run(case, "before").kinds}
    assert kinds == {*REMEDIES}


def assert_quoted(case: Followed, remedies: set[str]) -> None:
    """Check that the code after holds a piece of code that each remedy quotes."""
    before, after = (re.sub(r"[ \t]", "", side) for side in (case.before, case.after))
    for remedy in remedies:
        pieces = [piece for piece in quoted_code(remedy) if piece not in before]
        literally = any(re.search(re.escape(piece) + r"(?![\w.\[])", after) for piece in pieces)
        assert case.words or not pieces or literally, remedy


def remedy_texts(path: Path) -> Iterator[str]:
    """Yield the texts of remedies in a rule's source, with ``{}`` where something is put in."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            skipped.add(id(node.value))  # a docstring
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if isinstance(target, ast.Name) and target.id in (
                "change",
                "name",
                "_CHANGES",
                "COPY_WHERE_MADE",
            ):
                skipped.update(map(id, ast.walk(node)))
        elif isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            skipped.update(map(id, ast.walk(node.value.elts[-1])))  # a remedy in a few words
        elif isinstance(node, ast.FunctionDef) and node.name in _NO_REMEDIES:
            skipped.update(map(id, ast.walk(node)))
        elif isinstance(node, ast.JoinedStr):
            skipped.update(id(part) for part in ast.walk(node) if part is not node)
    for node in ast.walk(tree):
        text = ""
        if isinstance(node, ast.JoinedStr):
            text = "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)  # type: ignore[misc]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        if id(node) not in skipped and text.count(" ") >= _MIN_BLANKS:
            yield text


def never_in(remedies: list[str], texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts that none of the remedies contains."""
    for text in texts:
        form = ".*".join(map(re.escape, text.split("{}")))
        if not any(re.search(form, remedy) for remedy in remedies):
            yield text


def read_reasons() -> dict[str, str]:
    """Return why no case follows some remedies, by the beginning of their texts."""
    lines = (FOLDER / "not_run.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split(" | ") for line in lines if " | " in line]
    return {f"{code} {start}": reason for code, start, reason in pairs}


RULES = Path(rules.__file__).parent
RULE_FILES = [*sorted(RULES.glob("gap[18]*.py")), *sorted(RULES.glob("_needed_*.py")), RULES / "causes.py"]


@pytest.mark.parametrize("path", RULE_FILES, ids=lambda path: path.stem)
def test_each_text_of_a_remedy_is_followed_or_says_why_not(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    several = path.stem.startswith("_") or path.stem == BY_CAUSE  # texts of several rules
    code = path.stem.lstrip("_") if several else path.stem[:6].upper()
    remedies = [
        remedy
        for outcome in (
            run(case, "before") for case in CASES.get(BY_USE if path.stem[0] == "_" else code, ())
        )
        for own in (outcome.remedies if several else [code])
        for remedy in outcome.remedies.get(own, ())
    ]
    missing = list(never_in(remedies, remedy_texts(path)))
    rule = None if several else rules.rule(code)
    if missing and isinstance(rule, WaitRule):  # test_documentation.py follows what the examples meet
        waits = run_example(rule, "Example", tmp_path)
        missing = list(never_in([wait.remedy for wait in waits if wait.code == code], missing))
    reasons = [start.removeprefix(f"{code} ") for start in read_reasons() if start.startswith(code)]
    unexplained = [text for text in missing if not text.startswith(tuple(reasons))]
    assert not unexplained, f"no case follows these remedies of {code}"
    stale = [start for start in reasons if not any(text.startswith(start) for text in missing)]
    assert not stale, "these are followed, or no longer there"

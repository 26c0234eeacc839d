"""The rules' own examples run on the emulated device: the example waits, and what to use instead does not.

Examples stand on `cases/prelude.py`. A rule's case file says in lines ``# example: import torchmetrics`` what
else they need, and ``# example is not run: …`` why they cannot run here.
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
from rules.running import run

from gapless.model import Rule, WaitRule
from gapless.rules import rules_of_kind

PRELUDE = (Path(__file__).parent / "cases" / "prelude.py").read_text()
CASES = {
    path.name[:6].upper(): path.read_text() for path in (Path(__file__).parent / "cases").glob("gap*.py")
}
RULES = [rule for rule in rules_of_kind(WaitRule) if "# example is not run: " not in CASES.get(rule.code, "")]


def waits(rule: Rule, title: str, folder: Path) -> int:
    """Waits of `rule` in the code of one section."""
    (code,) = re.findall(r"```python\n(.*?)```", rule.sections()[title], flags=re.DOTALL)
    extra = re.findall(r"^# example: (.*\n)", CASES.get(rule.code, ""), flags=re.MULTILINE)
    before = PRELUDE + "".join(extra)
    path = folder / "example.py"
    path.write_text(before + code)
    with contextlib.redirect_stdout(io.StringIO()):
        counts = run(before + code, path)
    first = before.count("\n") + 1
    counted = {number: codes for number, codes in counts.items() if number >= first}
    return sum(codes[rule.code] for codes in counted.values())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_the_example_waits_and_its_replacement_does_not(
    rule: Rule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    named = waits(rule, "Example", tmp_path)
    assert named > 0, "the example never meets the rule"
    left = waits(rule, "Use instead", tmp_path)
    marked = rule.sections()["Use instead"].count("# once")
    fewer = named if "# fewer" in rule.sections()["Use instead"] else 0
    assert left <= marked or left < fewer, f"what to use instead waits {left} times itself"

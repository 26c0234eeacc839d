"""The rules' own examples run on the emulated device: the example waits, and what to use instead does not.

Examples stand on `cases/prelude.py`. A rule's case file says in lines ``# example: import torchmetrics`` what
else they need, and ``# example is not run: …`` why they cannot run here.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from rules.running import has_example, run_example

from gapless.model import Rule, WaitRule
from gapless.rules import rules_of_kind

RULES = [rule for rule in rules_of_kind(WaitRule) if has_example(rule)]


def waits(rule: Rule, title: str, folder: Path) -> int:
    """Waits of `rule` in the code of one section."""
    return sum(wait.at[1] for wait in run_example(rule, title, folder) if wait.code == rule.code)


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

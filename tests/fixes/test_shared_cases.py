"""The cases that are kept beside the project, where they are there."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixes.rewriting import rewrite

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "cases" / "fix"
CASES = sorted(FOLDER.glob("*.py"))


@pytest.mark.skipif(not CASES, reason="no cases beside the project")
@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_a_case_prints_the_same_and_waits_less(case: Path, tmp_path: Path) -> None:
    text = case.read_bytes().decode()
    shorter = text.replace("range(1000)", "range(100)")
    rewriting = rewrite(tmp_path, shorter, head="", levels=("exact", "rounding"))
    assert rewriting.after.printed == rewriting.before.printed, rewriting.text
    assert rewriting.waits[1] < rewriting.waits[0]
    assert not rewriting.after.session.races
    if "accumulators" in case.name:
        for line in rewriting.text.splitlines():
            assert "# REFUSE:" not in line or line in text.splitlines()

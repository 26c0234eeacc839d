"""Scripts as people write them, checked without values: they wait where they wait with values."""

from __future__ import annotations

from pathlib import Path

import pytest
from field.expectations import differences
from field.running import check

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.mark.parametrize("name", ["siamese", "transformer_gpt", "vae"])
def test_waits_are_those_of_a_run_with_values(name: str, tmp_path: Path) -> None:
    script = SCRIPTS / f"{name}.py"
    outcome = check(script, options=("--steps", "all", "--dry"), folder=tmp_path)
    assert outcome.status == 0, outcome.errors[-4000:]
    assert outcome.report["ending"]["how"] == "finished"
    assert outcome.report["environment"]["dry"]
    wrong = differences(outcome.report, str(script), script.read_text(), "")
    assert not wrong, "\n" + "\n".join(wrong)

"""Which fixes are kept: by scripted proofs, and by a real one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from fixes.rewriting import HEAD

from gapless.commands import main
from gapless.fixes import trial
from gapless.fixes.proof import ProofOptions, ScriptProject
from gapless.model import SourceLine
from gapless.model.fix import Edit, Fix, FixLevel, FixProof

TEXT = "a = 1\nb = 2\nc = 3\nd = 4\n"


def make_fix(row: int, level: FixLevel = "exact", text: str = "9") -> Fix:
    """A fix of a row of `TEXT`."""
    start = 6 * row + 4
    edit = Edit("script.py", start, start + 1, text)
    return Fix(code="GAP101", line=SourceLine("script.py", row + 1), level=level, edits=(edit,), waits=1.0)


class ScriptedProver:
    """Refuses versions in which a row has one of the `bad` texts; each change removes a sync."""

    bad: tuple[str, ...] = ()
    idle: tuple[int, ...] = ()
    runs = 0

    def __init__(self, _version: Any, options: ProofOptions) -> None:
        self.options = options

    def __enter__(self) -> ScriptedProver:
        return self

    def __exit__(self, *_error: object) -> None: ...

    def prove(self, version: Any) -> FixProof:
        ScriptedProver.runs += 1
        rows = version.changes["script.py"].decode().splitlines()
        changed = [n for n, (old, new) in enumerate(zip(TEXT.splitlines(), rows, strict=True)) if old != new]
        after = 4.0 - len(changed)
        if any(row.endswith(self.bad) for row in rows if self.bad):
            return FixProof(proved=False, outcome="refused", reason="it differs", before=4.0, after=after)
        idle = [row for row in changed if row in self.idle]
        if idle:
            lines = tuple(SourceLine("script.py", row + 1) for row in idle)
            return FixProof(proved=False, reason="a line never ran", not_run=lines, before=4.0, after=after)
        return FixProof(proved=True, outcome="bits", before=4.0, after=after)


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[ScriptedProver]:
    """A prover whose answers the test decides, and a project in the current folder."""
    (tmp_path / "script.py").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trial, "Prover", ScriptedProver)
    for name, value in (("bad", ()), ("idle", ()), ("runs", 0)):
        monkeypatch.setattr(ScriptedProver, name, value)
    return ScriptedProver


def rows(fixes: Iterable[Fix]) -> list[int]:
    return [fix.line.line for fix in fixes]


def run_trial(*fixes: Fix) -> trial.FixTrial:
    result = trial.FixTrial(ScriptProject(Path.cwd(), "script.py"), ProofOptions())
    result.run(fixes)
    return result


def test_sure_fixes_are_proved_together(scripted: type[ScriptedProver]) -> None:
    result = run_trial(make_fix(0), make_fix(1), make_fix(2))
    assert (rows(result.kept), rows(result.failed), scripted.runs) == ([1, 2, 3], [], 1)
    assert result.kept[0].proof is not None
    assert result.kept[0].proof.after == 1.0


def test_each_doubtful_fix_is_proved_alone(scripted: type[ScriptedProver]) -> None:
    scripted.bad = ("8",)
    result = run_trial(make_fix(0), make_fix(1, "tried", "8"), make_fix(2, "tried"))
    assert (rows(result.kept), rows(result.failed), scripted.runs) == ([1, 3], [2], 3)
    assert result.failed[0].proof is not None
    assert result.failed[0].proof.reason == "it differs"


def test_of_sure_fixes_that_fail_the_good_ones_are_kept(scripted: type[ScriptedProver]) -> None:
    scripted.bad = ("8",)
    result = run_trial(make_fix(0), make_fix(1, text="8"), make_fix(2))
    assert (rows(result.kept), rows(result.failed)) == ([1, 3], [2])


def test_a_fix_whose_line_never_ran_is_left(scripted: type[ScriptedProver]) -> None:
    scripted.idle = (1,)
    result = run_trial(make_fix(0), make_fix(1), make_fix(2))
    assert (rows(result.kept), rows(result.failed), scripted.runs) == ([1, 3], [2], 2)


def test_a_script_is_checked_fixed_and_proved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The meter prints a tensor where it gets one, so that its fix is not kept."""
    script = tmp_path / "script.py"
    script.write_text(
        f"{HEAD}class Meter:\n    total = 0\n    def update(self, value):\n        self.total += value\n"
        "meter, total = Meter(), 0.0\nfor i in range(16):\n    total += train().item()\n"
        "    meter.update(train().item())\nprint(total, meter.total)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["fix", "--steps", "all", "--write", "--dirty", "script.py"]) == 0
    error = capsys.readouterr().err
    assert "1 change written" in error
    assert "to the last bit" in error
    assert "not proved: hand the tensor on" in error
    assert "tensor(" in error
    assert "total += train().detach().double()" in script.read_text()
    assert "meter.update(train().item())" in script.read_text()

"""``gapless fix`` with a saved session: what it shows, writes and refuses to write."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from fixes.rewriting import HEAD, run

from gapless.commands import main
from gapless.model.fix import Edit, apply_edits
from gapless.model.session import save

LOOP = """total, peak = 0.0, 0.0
for i in range(6):
    total += train().item()
    peak = max(peak, train().item())
print(total)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script in a git repository that is clean, and its session beside the repository."""
    folder = tmp_path / "project"
    folder.mkdir()
    path = folder / "script.py"
    path.write_text(HEAD + LOOP)
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    for words in (("init", "-q"), ("add", "."), (*identity, "commit", "-qm", "first")):
        subprocess.run(["git", "-C", str(folder), *words], check=True)
    save(run(path).session, str(tmp_path / "s.json"))
    monkeypatch.chdir(folder)
    return path


def test_the_diff_applies(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fix", "../s.json"]) == 0
    out, err = capsys.readouterr()
    assert "-    total += train().item()\n+    total += train().detach().double()\n" in out
    assert "1 change as a diff above" in err
    assert "left: the number is not only added" in err
    subprocess.run(["git", "apply"], input=out, text=True, check=True, cwd=script.parent)
    assert "total = float(total)" in script.read_text()


def test_it_writes_what_git_can_restore(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = script.read_text()
    assert main(["fix", "--write", "../s.json"]) == 0
    assert script.read_text() != before
    assert main(["fix", "--write", "../s.json"]) == 2
    assert "script.py has changes that are not committed" in capsys.readouterr().err


def test_it_leaves_a_project_without_git_alone(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (script.parent / ".git").rename(script.parent / "git")
    before = script.read_bytes()
    assert main(["fix", "--write", "../s.json"]) == 2
    assert "no git repository" in capsys.readouterr().err
    assert script.read_bytes() == before
    assert main(["fix", "--write", "--dirty", "../s.json"]) == 0
    assert script.read_bytes() != before


def test_a_file_that_changed_since_the_run_is_left(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text("import torch\n")
    assert main(["fix", "../s.json"]) == 0
    out, err = capsys.readouterr()
    assert not out
    assert "the file has changed since the run" in err


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        (["--only", "GAP10"], 1),
        (["--only", "GAP11"], 0),
        (["--at", "script.py:14"], 1),
        (["--at", "t.py:14"], 0),
    ],
)
def test_only_some_findings(
    words: list[str], changes: int, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fix", *words, "../s.json"]) == 0
    assert capsys.readouterr().err.startswith(f"{changes} change")


def test_json_has_the_edits(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "-f", "json", "../s.json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["project"] == str(script.parent)
    change, left = (next(fix for fix in report["fixes"] if fix["line"]["line"] == line) for line in (14, 15))
    edits = [Edit(**edit) for edit in change["edits"]]
    assert b"total += train().detach().double()" in apply_edits(script.read_bytes(), edits)
    assert change["level"] == "exact"
    assert left["refusal"]
    assert not left["edits"]


def test_sarif_has_the_edits(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "-f", "sarif", "../s.json"]) == 0
    (run_,) = json.loads(capsys.readouterr().out)["runs"]
    (change,) = (change for result in run_["results"] for change in result.get("fixes", ()))
    (file,) = change["artifactChanges"]
    assert file["artifactLocation"]["uri"] == "script.py"
    data = script.read_bytes()
    for replacement in reversed(file["replacements"]):
        region = replacement["deletedRegion"]
        start = region["byteOffset"]
        end = start + region["byteLength"]
        data = data[:start] + replacement["insertedContent"]["text"].encode() + data[end:]
    assert b"total += train().detach().double()\n" in data
    assert data.endswith(b"total = float(total)\nprint(total)\n")


def test_what_is_no_script_is_refused(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fix", "scirpt.py"]) == 2
    assert "no such file: scirpt.py" in capsys.readouterr().err
    assert main(["fix"]) == 2

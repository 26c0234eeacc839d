"""The two versions that ``gapless prove`` compares, as a user names them, and how it ends on Ctrl-C."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gapless.commands import main
from gapless.errors import UsageError
from gapless.fixes.proof import runner
from gapless.fixes.proof.edited_lines import find_edits
from gapless.fixes.proof.runner import VersionRunner
from gapless.fixes.proof.versions import of_paths, of_revision

IDENTITY = ("-c", "user.name=a", "-c", "user.email=a@b.c")


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *IDENTITY, *words], cwd=folder, check=True)


def test_a_revision_names_the_version_before(tmp_path: Path) -> None:
    """Also from a folder below the repository: edited, removed, renamed and new files."""
    folder = tmp_path / "ours"
    folder.mkdir()
    (tmp_path / "pyproject.toml").touch()
    (folder / "train.py").write_text("import old, gone\n")
    (folder / "old.py").write_text("A = 1\nB = 2\nC = 3\n")
    (folder / "gone.py").write_text("D = 4\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    (folder / "train.py").write_text("import new\n")
    git(folder, "mv", "old.py", "new.py")
    (folder / "gone.py").unlink()
    before, after = of_revision(str(folder / "train.py"), "HEAD")
    assert before.read("ours/train.py") == b"import old, gone\n"
    assert (before.read("ours/old.py") or b"").startswith(b"A = 1\n")
    assert before.read("ours/gone.py") == b"D = 4\n"
    assert before.read("ours/new.py") is None
    assert set(before.sources()) == {"ours/train.py", "ours/old.py", "ours/gone.py"}
    assert set(after.sources()) == {"ours/train.py", "ours/new.py"}
    edits = find_edits(before, after)
    assert {edit.file for edit in edits} == {"ours/train.py", "ours/old.py", "ours/gone.py", "ours/new.py"}
    with pytest.raises(UsageError, match="--git nowhere: "):
        of_revision(str(folder / "train.py"), "nowhere")
    git(tmp_path, "rm", "-q", "--cached", "ours/train.py")
    git(tmp_path, "commit", "-qm", "second")
    git(tmp_path, "add", ".")
    with pytest.raises(UsageError, match="is not in that revision"):
        of_revision(str(folder / "train.py"), "HEAD")


def test_two_folders_are_versions_of_one_project(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name / "lib").mkdir(parents=True)
        (tmp_path / name / "train.py").write_text("import lib.data\n")
        (tmp_path / name / "lib" / "data.py").write_text(f"NAME = {name!r}\n")
    (tmp_path / "new" / "added.py").write_text("A = 1\n")
    folders = str(tmp_path / "old"), str(tmp_path / "new")
    versions = of_paths(*folders, "train.py")
    assert [version.project.script for version in versions] == ["train.py", "train.py"]
    assert [edit.file for edit in find_edits(*versions)] == ["added.py", "lib/data.py"]
    for words, error in (
        (folders, "two folders need the script"),
        ((*folders, "nothing.py"), "no such file: .*nothing.py"),
        ((folders[0], str(tmp_path / "new" / "train.py")), "is not: name two scripts, or two folders"),
        ((str(tmp_path / "new" / "added.py"), str(tmp_path / "new" / "train.py"), "a.py"), "--script names"),
    ):
        with pytest.raises(UsageError, match=error):
            of_paths(*words)


def test_the_kinds_of_versions_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prove", "--git", "HEAD", "--patch", "a.diff", "train.py"]) == 2
    assert "--patch and --git exclude each other" in capsys.readouterr().err


def test_ctrl_c_ends_the_run_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").write_text("import torch\n")
    (tmp_path / "b.py").write_text("import torch  # again\n")
    processes = []
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(runner.tempfile, "tempdir", str(tmp_path / "temporary"))

    def interrupt(self: VersionRunner, seconds: float) -> int | None:
        processes.append(self._process)
        raise KeyboardInterrupt

    monkeypatch.setattr(VersionRunner, "_read_number", interrupt)
    assert main(["prove", str(tmp_path / "a.py"), str(tmp_path / "b.py")]) == 130
    (process,) = processes
    assert process is not None
    assert process.returncode is not None
    assert not list((tmp_path / "temporary").iterdir())

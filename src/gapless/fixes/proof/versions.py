"""The two versions of a project that a user names: files, folders, a patch, or a git revision."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gapless.errors import UsageError
from gapless.fixes.proof.project import ProjectVersion, ScriptProject

Versions = tuple[ProjectVersion, ProjectVersion]


def of_paths(before: str, after: str, script: str = "", root: str | None = None) -> Versions:
    """Return the versions named by two scripts, or by two folders that each hold `script`.

    Two scripts in the same folder are versions of one file: the second runs at the first one's place.

    Raises:
        UsageError: one does not exist, they are of different kinds, or folders come without a script.
    """
    if os.path.isdir(before) and os.path.isdir(after):
        return _of_folders(before, after, script)
    if script:
        raise UsageError(
            "--script names the script in two folders: gapless prove --script train.py old/ new/"
        )
    for path, other in ((before, after), (after, before)):
        if os.path.isdir(path):
            raise UsageError(f"{path} is a folder but {other} is not: name two scripts, or two folders")
    first, second = ScriptProject.of(before, root), ScriptProject.of(after, root)
    if Path(before).resolve().parent == Path(after).resolve().parent:
        changes = {first.script: Path(after).read_bytes()}
        return ProjectVersion(first, name=before), ProjectVersion(first, changes, after)
    return ProjectVersion(first, name=before), ProjectVersion(second, name=after)


def _of_folders(before: str, after: str, script: str) -> Versions:
    if not script:
        raise UsageError("two folders need the script to run: gapless prove --script train.py old/ new/")
    versions = []
    for folder in (before, after):
        if not os.path.isfile(os.path.join(folder, script)):
            raise UsageError(f"no such file: {os.path.join(folder, script)}")
        project = ScriptProject(Path(folder).resolve(), Path(script).as_posix())
        versions.append(ProjectVersion(project, name=folder))
    return versions[0], versions[1]


def of_patch(script: str, patch: str, root: str | None = None) -> Versions:
    """Return the project of `script` as it is, and with the unified diff `patch` applied.

    Raises:
        UsageError: git is missing, or the patch does not apply.
    """
    project = ScriptProject.of(script, root)
    data = os.path.abspath(patch)
    if not os.path.isfile(data):
        raise UsageError(f"no such file: {patch}")
    for strip in ("-p1", "-p0"):
        names = _lines_of(_git(project.root, "apply", strip, "--numstat", "-z", data))
        files = [name.split("\t", 2)[2] for name in names if name.count("\t") >= 2]
        for base in dict.fromkeys((".", project.folder, os.path.dirname(project.script) or ".")):
            placed = [os.path.normpath(os.path.join(base, file)) for file in files]
            if any((project.root / file).is_file() for file in placed):
                changes = _apply_patch(project.root, base, placed, strip, data, patch)
                return ProjectVersion(project, name=script), ProjectVersion(project, changes, patch)
    raise UsageError(f"{patch} changes no file of {project.root}")


def _apply_patch(
    root: Path, base: str, files: Sequence[str], strip: str, data: str, patch: str
) -> dict[str, bytes | None]:
    """Apply a patch to copies of `files`, and return their bytes."""
    with tempfile.TemporaryDirectory(prefix="gapless-") as folder:
        for file in files:
            copy = Path(folder, file)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if (root / file).is_file():
                shutil.copy2(root / file, copy)
        applied = _git(Path(folder, base), "apply", strip, "--whitespace=nowarn", data)
        if applied.returncode:
            error = applied.stderr.decode("utf-8", "replace").strip().splitlines()
            raise UsageError(f"{patch} does not apply: {error[0] if error else 'git apply failed'}")
        copies = {file: Path(folder, file) for file in files}
        return {file: copy.read_bytes() if copy.is_file() else None for file, copy in copies.items()}


def of_revision(script: str, revision: str, root: str | None = None) -> Versions:
    """Return the project of `script` with tracked files as at the git `revision`, and as it is now.

    Raises:
        UsageError: git or the revision is missing.
    """
    project = ScriptProject.of(script, root)
    options = ("--name-only", "--no-renames", "--relative", "-z")  # of a renamed file both names count
    changed = _git(project.root, "diff", *options, revision, "--", inside=True)
    if changed.returncode:
        error = changed.stderr.decode("utf-8", "replace").strip().splitlines()
        raise UsageError(f"--git {revision}: {error[0] if error else 'git diff failed'}")
    files = _lines_of(changed)
    words = ("cat-file", "blob")  # the bytes, whatever `git show` would make of them
    blobs = {file: _git(project.root, *words, f"{revision}:./{file}", inside=True) for file in files}
    changes = {file: blob.stdout if not blob.returncode else None for file, blob in blobs.items()}
    before = ProjectVersion(project, changes, f"{script} at {revision}")
    if before.read(project.script) is None:
        raise UsageError(f"--git {revision}: {script} is not in that revision")
    return before, ProjectVersion(project, name=script)


def _git(folder: Path, *words: str, inside: bool = False) -> subprocess.CompletedProcess[bytes]:
    """Run git in `folder`; unless `inside`, as if there were no repository around it."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    if not inside:
        environment["GIT_DIR"] = os.devnull
    try:
        return subprocess.run(["git", *words], cwd=folder, env=environment, capture_output=True, check=False)
    except FileNotFoundError:
        raise UsageError("patches and revisions need git, which is not installed here") from None


def _lines_of(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    return [os.fsdecode(name) for name in done.stdout.split(b"\0") if name]

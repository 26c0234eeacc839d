"""The project that a script belongs to, versions of it, and copies to run them in."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gapless.errors import UsageError
from gapless.model.fix import Edit, apply_edits

_MARKERS = (".git", ".hg", "pyproject.toml", "setup.py", "setup.cfg")
"""Files and folders that stand at the root of a project."""
COPIES_PREFIX = "gapless-prove-"
"""How folders for the copies begin: they are no part of a project in whose folder they lie."""
_CACHES = frozenset(("__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".ipynb_checkpoints"))
"""Folders that are left out of copies: compiled code of another version would run."""
_LINKED = frozenset((".git", ".hg", ".svn", "node_modules"))
"""Folders that a script may need, but that hold none of its code."""
_MAX_BYTES_COPIED = 1 << 20
"""Larger files are data: they are linked, and copied once they are written to."""
_MAX_FILES_COPIED = 500
"""A folder with more files, none of them Python, is data and linked as a whole."""
_MAX_FILES = 50_000
"""More files than a project has: the folder is a home or a disk."""


@dataclass(frozen=True)
class ScriptProject:
    """A script with all that it may import or read by its place: everything below `root`.

    `script` and `folder`, the working directory, are paths relative to `root`.
    """

    root: Path
    script: str
    folder: str = "."

    @classmethod
    def of(cls, script: str | os.PathLike[str], root: str | os.PathLike[str] | None = None) -> ScriptProject:
        """Return the project of `script`, which is run in the current directory if that is part of it.

        Without `root` that is the nearest folder with a `pyproject.toml`, a repository or the like, else the
        current directory if the script is below it, else the script's folder.

        Raises:
            UsageError: there is no such script, or it is not below `root`.
        """
        path, here = Path(script).resolve(), Path.cwd().resolve()
        if not path.is_file():
            raise UsageError(f"no such file: {script}")
        base = Path(root).resolve() if root is not None else _find_root(path.parent, here)
        if not path.is_relative_to(base):
            raise UsageError(f"{script} is not below {root}")
        folder = here if here.is_relative_to(base) else path.parent
        return cls(base, path.relative_to(base).as_posix(), folder.relative_to(base).as_posix())


def _find_root(folder: Path, here: Path) -> Path:
    home = Path.home()
    for parent in (folder, *folder.parents):
        if parent != home and any((parent / marker).exists() for marker in _MARKERS):
            return parent
    return here if folder.is_relative_to(here) and here not in (home, Path(here.anchor)) else folder


@dataclass(frozen=True)
class ProjectVersion:
    """A project with some files replaced: by `changes`, from relative paths to bytes, or None if deleted.

    `name` is what the user calls it.
    """

    project: ScriptProject
    changes: Mapping[str, bytes | None] = field(default_factory=dict)
    name: str = ""

    @classmethod
    def with_edits(cls, project: ScriptProject, edits: Iterable[Edit], name: str = "") -> ProjectVersion:
        """Return `project` with `edits` applied; their files are relative to its root.

        Raises:
            ValueError: edits overlap or lie outside of their file.
            UsageError: a file is not below the project's root.
        """
        by_file: dict[str, list[Edit]] = {}
        for edit in edits:
            path = (project.root / edit.file).resolve()
            if not path.is_relative_to(project.root):
                raise UsageError(f"{edit.file} is not below {project.root}")
            by_file.setdefault(path.relative_to(project.root).as_posix(), []).append(edit)
        changes = {file: apply_edits((project.root / file).read_bytes(), of) for file, of in by_file.items()}
        return cls(project, changes, name)

    def read(self, file: str) -> bytes | None:
        """Return the bytes of the relative path `file`; None if this version has no such file."""
        if file in self.changes:
            return self.changes[file]
        try:
            return (self.project.root / file).read_bytes()
        except OSError:
            return None

    def sources(self) -> tuple[str, ...]:
        """Return the relative paths of the Python files that a copy of this version holds."""
        files = {file for file, is_link in _walk(self.project.root) if file.endswith(".py") and not is_link}
        files |= {file for file, data in self.changes.items() if file.endswith(".py") and data is not None}
        return tuple(sorted(files - {file for file, data in self.changes.items() if data is None}))

    def copy_to(self, target: Path) -> None:
        """Copy this version into the new folder `target`; data is linked, caches are left out.

        Raises:
            UsageError: the project's root holds far more files than a project.
        """
        target.mkdir(parents=True)
        for file, is_link in _walk(self.project.root):
            if file in self.changes:
                continue
            source, copy = self.project.root / file, target / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            if is_link:
                copy.symlink_to(source.resolve())
            elif source.is_dir():
                copy.mkdir(exist_ok=True)
            else:
                shutil.copy2(source, copy)
        for file, data in self.changes.items():
            if data is not None:
                (target / file).parent.mkdir(parents=True, exist_ok=True)
                (target / file).write_bytes(data)


def _walk(root: Path) -> Iterator[tuple[str, bool]]:
    """Yield the relative path of each file, each empty folder, and each folder that is linked as a whole.

    With each comes whether it is to be linked.
    """
    files = 0
    for place, folders, names in os.walk(root):
        here = Path(place).relative_to(root)
        for folder in tuple(folders):
            full = Path(place, folder)
            if folder in _CACHES or folder.startswith(COPIES_PREFIX):
                folders.remove(folder)
            elif folder in _LINKED or full.is_symlink() or (full / "pyvenv.cfg").is_file() or _is_data(full):
                folders.remove(folder)
                yield (here / folder).as_posix(), True
        if not names and not folders and place != str(root):
            yield here.as_posix(), False
        for name in names:
            path = Path(place, name)
            if path.is_file():  # neither a socket nor a broken link
                yield (here / name).as_posix(), path.stat().st_size > _MAX_BYTES_COPIED
        files += len(names)
        if files > _MAX_FILES:
            raise UsageError(f"{root} holds over {_MAX_FILES:,} files: name the project's folder with --root")


def _is_data(folder: Path) -> bool:
    """Whether `folder` holds so many files that it is data, and no Python file."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if not entry.name.endswith(".pyc")]
    return len(names) > _MAX_FILES_COPIED and not any(name.endswith(".py") for name in names)

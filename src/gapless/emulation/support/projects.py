"""Find the installed packages that the user's own project is the source of."""

from __future__ import annotations

import ast
import configparser
import contextlib
import os
import re
from importlib import metadata
from pathlib import Path

_MARKS = ("pyproject.toml", "setup.cfg", "setup.py", ".git")
"""What the root folder of a project holds."""
_NEVER = ("torch", "gapless")
"""Packages whose frames are told from the user's whoever works on them."""
_SECTION = re.compile(r"\s*\[([\w.\-]+)\]")
_NAME = re.compile(r"""\s*name\s*=\s*["']([^"']+)["']""")


def installed_from(folder: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the installed folders and modules of the project around `folder`, as absolute paths.

    A project installed in editable mode has none: its code runs from its own folder.
    """
    root = _root_of(Path(folder))
    name = _declared_name(root) if root is not None else ""
    if not name or name in _NEVER:
        return ()
    try:
        distribution = metadata.distribution(name)
    except (metadata.PackageNotFoundError, ValueError):
        return ()
    files = [Path(file) for file in distribution.files or () if file.suffix == ".py"]
    packages = {file.parent for file in files if file.name == "__init__.py"}
    outermost = {package for package in packages if package.parent not in packages}
    modules = {file for file in files if len(file.parts) == 1}
    return tuple(
        sorted(os.path.abspath(str(distribution.locate_file(str(path)))) for path in outermost | modules)
    )


def _root_of(folder: Path) -> Path | None:
    """Return the nearest folder, from `folder` upwards, that is the root of a project."""
    with contextlib.suppress(OSError):  # the current folder may be gone
        for above in (folder.resolve(), *folder.resolve().parents):
            if any((above / mark).exists() for mark in _MARKS):
                return above
    return None


def _declared_name(root: Path) -> str:
    """Return the name under which the project at `root` is installed; "" if it does not say."""
    for file, read in (
        ("pyproject.toml", _name_in_toml),
        ("setup.cfg", _name_in_config),
        ("setup.py", _name_in_setup),
    ):
        with contextlib.suppress(OSError, ValueError, SyntaxError, RecursionError, configparser.Error):
            if name := read((root / file).read_text(encoding="utf-8")):
                return name
    return ""


def _name_in_toml(text: str) -> str:
    """Return the name that a ``pyproject.toml`` declares; Python 3.10 cannot read the format itself."""
    section = ""
    for line in text.splitlines():
        if head := _SECTION.match(line):
            section = head[1]
        elif section in ("project", "tool.poetry") and (name := _NAME.match(line)):
            return name[1]
    return ""


def _name_in_config(text: str) -> str:
    """Return the name that a ``setup.cfg`` declares."""
    config = configparser.ConfigParser(interpolation=None)
    config.read_string(text)
    return config.get("metadata", "name", fallback="")


def _name_in_setup(text: str) -> str:
    """Return the name that a ``setup.py`` gives to ``setup`` as a literal."""
    for call in ast.walk(ast.parse(text)):
        if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] == "setup":
            for option in call.keywords:
                if option.arg == "name" and isinstance(option.value, ast.Constant):
                    return str(option.value.value)
    return ""

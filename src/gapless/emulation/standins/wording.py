"""Whether the user's code or command line mentions a package: by an import or a setting."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import FrameType

from gapless.emulation.standins import guards
from gapless.emulation.standins.package import Package
from gapless.emulation.support import stacks

_MAX_FILES = 300
"""Files of the user's that are read: a script rarely has more."""
_MAX_SETTINGS_BYTES = 200_000
"""Larger files on the command line are data, not settings."""
_SETTINGS_SUFFIXES = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg")
_DESCRIBING_ARGUMENTS = frozenset({"choices", "help", "description", "metavar"})
"""Arguments that describe a command-line option, which request nothing."""


def requests_package(package: Package, frame: FrameType | None) -> bool:
    """Whether the user's code imports `package`, or asks a library for a feature that needs it."""
    requests = (package.name, *package.requests)
    words = _argument_words(tuple(sys.argv[1:]))
    if any(request in words for request in requests):
        return True
    return any(request in words_of(file) for file in _files(frame) for request in requests)


def _files(frame: FrameType | None) -> Iterator[str]:
    """Yield the user's own files, the nearest first: running, imported, and imported by those."""
    pending = deque(dict.fromkeys((*_running_files(frame), *_imported_files())))
    visited: set[str] = set()
    while pending and len(visited) < _MAX_FILES:
        file = pending.popleft()
        if file in visited:
            continue
        visited.add(file)
        yield file
        pending += _imported_beside(file)


def _running_files(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        if not stacks.library_of(frame.f_code.co_filename):
            yield frame.f_code.co_filename
        frame = frame.f_back


def _imported_files() -> Iterator[str]:
    for module in list(sys.modules.values()):
        file = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(file, str) and file.endswith(".py") and not stacks.library_of(file):
            yield file


@lru_cache(maxsize=1024)
def _imported_beside(file: str) -> tuple[str, ...]:
    """Return the files of modules that `file` imports from its own folder or from the script's."""
    tree = guards.parse_source(file)
    if tree is None:
        return ()
    here = os.path.dirname(os.path.abspath(file))
    roots = (here, os.path.abspath(sys.path[0] or ".")) if sys.path else (here,)
    paths = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            modules = [base, *(f"{base}.{alias.name}".lstrip(".") for alias in node.names)]
        else:
            continue
        paths += [path for root in roots for module in modules for path in _paths(root, module)]
    return tuple(dict.fromkeys(paths))


def _paths(root: str, module: str) -> Iterator[str]:
    path = os.path.join(root, *module.split("."))
    for file in (f"{path}.py", os.path.join(path, "__init__.py")):
        if module and os.path.isfile(file) and not stacks.library_of(file):
            yield file


@lru_cache(maxsize=1024)
def words_of(file: str) -> frozenset[str]:
    """Return the imported packages, names and string constants of `file`, without docstrings."""
    tree = guards.parse_source(file)
    return frozenset(_words(tree)) if tree is not None else frozenset()


def _words(tree: ast.Module) -> Iterator[str]:
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a docstring
        if isinstance(node, ast.keyword) and node.arg in _DESCRIBING_ARGUMENTS:
            continue
        yield from _word(node)
        pending += ast.iter_child_nodes(node)


def _word(node: ast.AST) -> Iterable[str]:
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [(node.module or "").partition(".")[0]] if not node.level else []
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if (
        isinstance(node, ast.keyword)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ):
        return [f"{node.arg}={node.value.value}"]
    if isinstance(node, ast.Attribute):
        return [node.attr]
    return [node.id] if isinstance(node, ast.Name) else []


@lru_cache(maxsize=8)
def _argument_words(arguments: tuple[str, ...]) -> frozenset[str]:
    """Return the values on the command line, and the words of the settings files that it names."""
    words = set()
    for argument in arguments:
        value = argument.partition("=")[2] or argument
        words |= {value, argument.lstrip("-")}
        if (
            value.endswith(_SETTINGS_SUFFIXES)
            and os.path.isfile(value)
            and os.path.getsize(value) < _MAX_SETTINGS_BYTES
        ):
            with open(value, encoding="utf-8", errors="replace") as file:
                words |= set(re.findall(r"[\w-]+", file.read()))
    return frozenset(words)

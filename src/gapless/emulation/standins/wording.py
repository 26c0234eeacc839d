"""What the user's own code and command line say of a package: an import, or a setting that asks for it."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import FrameType

from gapless.emulation.standins import guards
from gapless.emulation.standins.package import Package
from gapless.emulation.support import stacks

_FILES_AT_MOST = 300
"""Files of the user's that are read: more are no script's."""
_BYTES_AT_MOST = 200_000
"""Of a file of settings that is named on the command line."""
_SETTINGS = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg")
_NO_REQUEST = frozenset({"choices", "help", "description", "metavar"})
"""Arguments of a command-line option that say what could be asked for."""


def names(package: Package, frame: FrameType | None) -> bool:
    """Whether the user's code imports `package`, or asks a library for what needs it."""
    requests = (package.name, *package.requests)
    words = _argument_words(tuple(sys.argv[1:]))
    if any(request in words for request in requests):
        return True
    return any(request in said(file) for file in _files(frame) for request in requests)


def _files(frame: FrameType | None) -> Iterator[str]:
    """The user's own files: those that run, that are imported, and that they will import."""
    todo = [*dict.fromkeys((*_running(frame), *_imported()))]
    done: set[str] = set()
    while todo and len(done) < _FILES_AT_MOST:
        file = todo.pop()
        if file in done:
            continue
        done.add(file)
        yield file
        todo += _imports(file)


def _running(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        if not stacks.library_of(frame.f_code.co_filename):
            yield frame.f_code.co_filename
        frame = frame.f_back


def _imported() -> Iterator[str]:
    for module in list(sys.modules.values()):
        file = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(file, str) and file.endswith(".py") and not stacks.library_of(file):
            yield file


@lru_cache(maxsize=1024)
def _imports(file: str) -> tuple[str, ...]:
    """Files beside `file`, or beside the script, that it imports."""
    tree = guards.parsed(file)
    if tree is None:
        return ()
    here = os.path.dirname(os.path.abspath(file))
    roots = (here, os.path.abspath(sys.path[0] or ".")) if sys.path else (here,)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            modules = [base, *(f"{base}.{one.name}".lstrip(".") for one in node.names)]
        else:
            continue
        found += [path for root in roots for module in modules for path in _paths(root, module)]
    return tuple(dict.fromkeys(found))


def _paths(root: str, module: str) -> Iterator[str]:
    path = os.path.join(root, *module.split("."))
    for file in (f"{path}.py", os.path.join(path, "__init__.py")):
        if module and os.path.isfile(file) and not stacks.library_of(file):
            yield file


@lru_cache(maxsize=1024)
def said(file: str) -> frozenset[str]:
    """The packages that `file` imports, the names in it, and its texts, without those of documentation."""
    tree = guards.parsed(file)
    return frozenset(_words(tree)) if tree is not None else frozenset()


def _words(tree: ast.Module) -> Iterator[str]:
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a docstring
        if isinstance(node, ast.keyword) and node.arg in _NO_REQUEST:
            continue
        yield from _word(node)
        todo += ast.iter_child_nodes(node)


def _word(node: ast.AST) -> Iterable[str]:
    if isinstance(node, ast.Import):
        return [one.name.partition(".")[0] for one in node.names]
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
    """The values on the command line, and the words of the settings that it names."""
    words = set()
    for argument in arguments:
        value = argument.partition("=")[2] or argument
        words |= {value, argument.lstrip("-")}
        if value.endswith(_SETTINGS) and os.path.isfile(value) and os.path.getsize(value) < _BYTES_AT_MOST:
            with open(value, encoding="utf-8", errors="replace") as file:
                words |= set(re.findall(r"[\w-]+", file.read()))
    return frozenset(words)

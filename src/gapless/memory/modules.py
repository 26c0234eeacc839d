"""Modules of a model: chains of forward calls, names that stand for many, and classes from the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from gapless.model.memory import MemoryRun, Place
from gapless.model.source import SourceLine

CHAIN = " > "
"""Between the links of a chain of forward calls, which begins with the outermost."""
_MACHINERY = re.compile(r"[/\\]torch[/\\]nn[/\\]modules[/\\](?:module|container)\.py$")
_BUILT_IN = re.compile(r"[/\\]torch[/\\]nn[/\\]modules[/\\](\w+)\.py$")
_NUMBER = re.compile(r"\[\d+\]")
_MOST_SOURCE = 4 << 20
Source = Callable[[str], str]
"""The text of a file; "" where it is not there."""


def chain_of(stack: Sequence[SourceLine], classes: dict[SourceLine, str] | None = None) -> str:
    """The forward calls of `stack` (innermost first): ``Model > Block > Attention``.

    A snapshot names functions and no classes: where `classes` has none for a line, the line stands for it
    (``model.py:244``). Layers that one line of a loop calls have the same chain.
    """
    links: list[str] = []
    for line in stack:
        link = _link(line, classes or {})
        if link and (not links or links[-1] != link):
            links.append(link)
    return CHAIN.join(reversed(links))


def _link(line: SourceLine, classes: dict[SourceLine, str]) -> str:
    owner, _, name = line.function.rpartition(".")
    if name != "forward" or (line.library == "torch" and not _BUILT_IN.search(line.file)):
        return ""
    if _MACHINERY.search(line.file):
        return ""
    if owner:
        return owner.rpartition(".")[2]
    known = classes.get(line)
    if known:
        return known
    built_in = _BUILT_IN.search(line.file)
    if built_in:
        return f"nn.{built_in.group(1)}"
    return line.short


def folded(module: str) -> str:
    """``layers[3].mlp`` as ``layers[*].mlp``: layers that repeat have one name."""
    return _NUMBER.sub("[*]", module)


def part_of(module: str) -> str:
    """The part of the model that `module` lies in: ``transformer.h[*]``, ``Model > Block``."""
    return folded(one_of(module))


def one_of(module: str) -> str:
    """Which one of these parts it is: ``transformer.h[3]``."""
    if CHAIN in module:
        return CHAIN.join(module.split(CHAIN)[:2])
    repeated = _NUMBER.search(module)
    return module[: repeated.end()] if repeated else ".".join(module.split(".")[:2])


def with_classes(run: MemoryRun, source: Source) -> MemoryRun:
    """`run` with the classes of its forward calls, where `source` has the files that it speaks of.

    A file in which some line of the run lies in another function than the run says is another version: it
    names nothing.
    """
    forward = {line for line in run.lines if line.function.rpartition(".")[2] == "forward"}
    classes: dict[SourceLine, str] = {}
    for file in {line.file for line in forward if not _MACHINERY.search(line.file)}:
        lines = [line for line in run.lines if line.file == file]
        classes.update(_classes_in(source(file), lines))
    if not classes:
        return run
    places = tuple(_named(run, place, classes) for place in run.places)
    return msgspec.structs.replace(run, places=places)


def _named(run: MemoryRun, place: Place, classes: dict[SourceLine, str]) -> Place:
    stack = [run.lines[line] for line in place.lines]
    if not place.module or place.module != chain_of(stack):
        return place  # a path, which says more
    return msgspec.structs.replace(place, module=chain_of(stack, classes))


def _classes_in(text: str, lines: Iterable[SourceLine]) -> dict[SourceLine, str]:
    if not text or len(text) > _MOST_SOURCE:
        return {}
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    spans = sorted(_functions(tree, ""), key=lambda span: span[1] - span[0])
    found = {}
    for line in lines:
        span = next((one for one in spans if one[0] <= line.line <= one[1]), None)
        if span is None:
            if not line.function.startswith("<"):
                return {}
            continue
        name, owner = span[2], span[3]
        if line.function.rpartition(".")[2] not in (
            name,
            "<lambda>",
            "<listcomp>",
            "<genexpr>",
            "<dictcomp>",
        ):
            return {}
        if name == "forward" and owner:
            found[line] = owner
    return found


def _functions(node: ast.AST, owner: str) -> Iterator[tuple[int, int, str, str]]:
    """First and last line, name and class of every function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _functions(child, child.name)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child.lineno, child.end_lineno or child.lineno, child.name, owner
            yield from _functions(child, "")
        else:
            yield from _functions(child, owner)

"""Modules of a model: chains of forward calls, patterns for repeated layers, classes from the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from gapless.model.memory import MemoryRun, Place
from gapless.model.source import SourceLine

CHAIN = " > "
"""Joins the forward calls of a chain, outermost first."""
_MACHINERY = re.compile(r"[/\\]torch[/\\]nn[/\\]modules[/\\](?:module|container)\.py$")
_BUILT_IN = re.compile(r"[/\\]torch[/\\]nn[/\\]modules[/\\](\w+)\.py$")
_NUMBER = re.compile(r"\[\d+\]")
_MAX_SOURCE_CHARACTERS = 4 << 20
"""Longer files are not parsed."""
Source = Callable[[str], str]
"""Returns the text of a file; "" if it does not exist."""


def chain_of(stack: Sequence[SourceLine], classes: dict[SourceLine, str] | None = None) -> str:
    """Return the chain of forward calls of `stack` (innermost first): ``Model > Block > Attention``.

    A snapshot names functions but no classes: if `classes` has none for a line, the line is used instead
    (``model.py:244``). Layers called in a loop have the same chain.
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
    class_name = classes.get(line)
    if class_name:
        return class_name
    built_in = _BUILT_IN.search(line.file)
    if built_in:
        return f"nn.{built_in.group(1)}"
    return line.short


def fold_numbers(module: str) -> str:
    """Replace layer numbers: ``layers[3].mlp`` becomes ``layers[*].mlp``."""
    return _NUMBER.sub("[*]", module)


def fold_part(module: str) -> str:
    """Return the part of the model that contains `module`, numbers folded: ``transformer.h[*]``."""
    return fold_numbers(part_name(module))


def part_name(module: str) -> str:
    """Return the part of the model that contains `module`, with its number: ``transformer.h[3]``."""
    if CHAIN in module:
        return CHAIN.join(module.split(CHAIN)[:2])
    repeated = _NUMBER.search(module)
    return module[: repeated.end()] if repeated else ".".join(module.split(".")[:2])


def with_classes(run: MemoryRun, source: Source) -> MemoryRun:
    """Return `run` with class names in its chains of forward calls, if `source` has the files.

    A file is ignored if a line of the run lies in another function there: it is another version.
    """
    forward = {line for line in run.lines if line.function.rpartition(".")[2] == "forward"}
    classes: dict[SourceLine, str] = {}
    for file in {line.file for line in forward if not _MACHINERY.search(line.file)}:
        lines = [line for line in run.lines if line.file == file]
        classes.update(_classes_in(source(file), lines))
    if not classes:
        return run
    places = tuple(_with_class_names(run, place, classes) for place in run.places)
    return msgspec.structs.replace(run, places=places)


def _with_class_names(run: MemoryRun, place: Place, classes: dict[SourceLine, str]) -> Place:
    stack = [run.lines[line] for line in place.lines]
    if not place.module or place.module != chain_of(stack):
        return place  # a path of module names says more than classes
    return msgspec.structs.replace(place, module=chain_of(stack, classes))


def _classes_in(text: str, lines: Iterable[SourceLine]) -> dict[SourceLine, str]:
    if not text or len(text) > _MAX_SOURCE_CHARACTERS:
        return {}
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    spans = sorted(_functions(tree, ""), key=lambda span: span[1] - span[0])
    class_of_line = {}
    for line in lines:
        span = next((candidate for candidate in spans if candidate[0] <= line.line <= candidate[1]), None)
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
            class_of_line[line] = owner
    return class_of_line


def _functions(node: ast.AST, owner: str) -> Iterator[tuple[int, int, str, str]]:
    """Yield first line, last line, name and class of each function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _functions(child, child.name)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child.lineno, child.end_lineno or child.lineno, child.name, owner
            yield from _functions(child, "")
        else:
            yield from _functions(child, owner)

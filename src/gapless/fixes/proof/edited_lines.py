"""What differs between two versions of a project's sources: which lines, and where each line went."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import NamedTuple

from gapless.fixes.proof.project import ProjectVersion


class Hunk(NamedTuple):
    """Lines that were replaced by others: their numbers before and after, either of which may be empty."""

    removed: range
    added: range


@dataclass(frozen=True)
class FileEdit:
    """The `hunks` in which two versions of `file` differ, which is called `renamed` after the edit.

    `places` maps each number of a line after the edit to that of the same or the replaced line before it.
    """

    file: str
    renamed: str
    hunks: tuple[Hunk, ...]
    places: Mapping[int, int]


def find_edits(before: ProjectVersion, after: ProjectVersion) -> tuple[FileEdit, ...]:
    """Return an edit for each Python file that differs; the two scripts count as one file."""
    names = {before.project.script: after.project.script}
    files = set(before.changes) | set(after.changes) | {before.project.script}
    if before.project.root != after.project.root:
        files |= {*before.sources(), *(set(after.sources()) - set(names.values()))}
    edits = []
    for file in sorted(files):
        renamed = names.get(file, file)
        texts = before.read(file) or b"", after.read(renamed) or b""
        if file.endswith(".py") and texts[0] != texts[1]:
            edits.append(FileEdit(file, renamed, *compare_lines(*texts)))
    return tuple(edits)


def compare_lines(before: bytes, after: bytes) -> tuple[tuple[Hunk, ...], dict[int, int]]:
    """Compare two texts line by line: return the hunks and places of a `FileEdit`."""
    old, new = before.splitlines(), after.splitlines()
    hunks: list[Hunk] = []
    places: dict[int, int] = {}
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, begin, end, new_begin, new_end in matcher.get_opcodes():
        if tag != "equal":
            hunks.append(Hunk(range(begin + 1, end + 1), range(new_begin + 1, new_end + 1)))
        places.update(
            (new_begin + offset + 1, begin + offset + 1)
            for offset in range(min(end - begin, new_end - new_begin))
        )
    return tuple(hunks), places


def executable_lines(text: bytes) -> frozenset[int]:
    """Return the numbers of the lines of Python source that have code; none if it does not compile."""
    try:
        code = compile(text, "<source>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return frozenset()
    return frozenset(line for part in _codes(code) for line in own_lines(part))


def lines_to_run(text: bytes, edited: range) -> frozenset[int]:
    """Return the lines that must run for the `edited` ones to have run.

    Of a line without code of its own, as an item of a constant, that is its statement's first with code.
    """
    with_code = executable_lines(text)
    if not with_code:
        return with_code
    lines = text.splitlines()
    empty = {number for number in edited if lines[number - 1].strip()[:1] in (b"", b"#")}
    needed = set(with_code.intersection(edited))
    spans = sorted(_statement_spans(text), key=len)
    for number in set(edited) - needed - empty:
        span = next((span for span in spans if number in span), range(0))
        needed |= set(sorted(with_code.intersection(span))[:1])
    return frozenset(needed)


def _statement_spans(text: bytes) -> Iterator[range]:
    """Yield the lines of each statement, without those of the statements in it."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            end = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            yield range(node.lineno, max(end, node.lineno) + 1)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def own_lines(code: CodeType) -> Iterator[int]:
    """Yield the lines at which a tracer sees `code` run, without those of nested functions' bodies."""
    skipped = 0 if code.co_name.startswith("<") else code.co_firstlineno  # ``def``, which the caller runs
    for _, _, line in code.co_lines():
        if line and line != skipped:
            yield line

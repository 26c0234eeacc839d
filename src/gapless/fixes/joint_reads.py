"""Numbers that one statement, or a few in a row, read one after the other are read together."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gapless.fixes.editing.editable import Refused
from gapless.fixes.editing.numbers_read import NumberRead, read_at
from gapless.fixes.editing.places import Draft, FixPlace, is_whole, qualified_name, torch_name
from gapless.fixes.editing.variables import block_of
from gapless.model.fix import Edit
from gapless.uses.source_files import called_name, names_in, root_name
from gapless.uses.unseen import in_class

_UNCONDITIONAL = (
    ast.BinOp, ast.UnaryOp, ast.Call, ast.keyword, ast.JoinedStr, ast.FormattedValue, ast.Tuple, ast.List,
    ast.Dict, ast.Compare, ast.Attribute, ast.Subscript,
)  # fmt: skip
"""Expressions that evaluate all of their parts."""
_SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return)


class _Reading(NamedTuple):
    """A read that can be moved to the beginning of its statement."""

    place: FixPlace
    read: NumberRead
    statement: ast.stmt


def join_reads(places: Sequence[FixPlace]) -> dict[int, Draft]:
    """Return the draft of each of `places` that is read together with others, by the place's position."""
    groups: defaultdict[tuple[str, str, tuple[int, int]], list[tuple[int, _Reading]]] = defaultdict(list)
    for number, place in enumerate(places):
        try:
            reading = _movable(place)
        except Refused:
            continue
        start = _first_of_row(reading)
        key = place.file.name, place.tensor.dtype, (start.lineno, start.col_offset)
        groups[key].append((number, reading))
    drafts = {}
    for group in groups.values():
        if len(group) < 2:
            continue
        try:
            draft = _join([reading for _, reading in group])
        except Refused:
            continue
        drafts.update(dict.fromkeys((number for number, _ in group), draft))
    return drafts


def _movable(place: FixPlace) -> _Reading:
    """Return the read at `place`.

    Raises:
        Refused: it is evaluated under a condition, or what it reads may do more than compute.
    """
    read, source = read_at(place), place.file.source
    for each in source.chain(source.parents[read.call]):
        if isinstance(each, _SIMPLE):
            break
        if not isinstance(each, _UNCONDITIONAL):
            raise Refused("it is not evaluated always")
    statement = source.statement(read.call)
    for node in ast.walk(read.subject):
        if isinstance(node, (ast.NamedExpr, ast.Await, ast.Yield, ast.Lambda)):
            raise Refused("what is read does more than compute")
        if isinstance(node, ast.Call):
            is_method = isinstance(node.func, ast.Attribute) and not node.func.attr.endswith("_")
            is_torch = qualified_name(place, node.func).startswith("torch.")
            if not is_torch and not (is_method and root_name(node.func) not in source.imports):
                raise Refused("what is read calls a function of the project")
    if in_class(source, statement):
        raise Refused("the class would have the numbers as attributes")
    start = read.call.lineno, read.call.col_offset
    for node in ast.walk(statement):
        if (
            isinstance(node, ast.Call)
            and called_name(node) in source.functions
            and (node.lineno, node.col_offset) < start
            and not any(each is node for each in source.chain(read.call))
        ):
            raise Refused("a function of the project runs before it in its statement")
    place.file.indent(statement)
    return _Reading(place, read, statement)


def _first_of_row(reading: _Reading) -> ast.stmt:
    """Return the first of the statements in a row, up to that of `reading`, that only assign numbers."""
    source, first = reading.place.file.source, reading.statement
    names = names_in(reading.read.subject)
    block = block_of(source, first)
    for statement in reversed(block[: block.index(first)]):
        if not _only_assigns(reading.place, statement) or names & names_in(statement, ast.Store):
            break
        first = statement
    return first


def _only_assigns(place: FixPlace, statement: ast.stmt) -> bool:
    """Whether a statement reads a number and stores what it computes of it in a variable."""
    if not isinstance(statement, (ast.Assign, ast.AugAssign)):
        return False
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    reads = [node for node in ast.walk(statement.value) if node in place.program.reads]
    calls = [node for node in ast.walk(statement.value) if isinstance(node, ast.Call)]
    own = {id(inner) for read in reads for inner in ast.walk(read)}
    return (
        bool(reads)
        and all(isinstance(each, ast.Name) for each in targets)
        and all(id(c) in own for c in calls)
    )


def _join(readings: Sequence[_Reading]) -> Draft:
    """Return the draft that reads all of `readings` before the first of their statements."""
    first = min(readings, key=lambda reading: reading.statement.lineno)
    file, place = first.place.file, first.place
    names = list(_names(readings))
    subjects = ", ".join(_on_gpu(reading) for reading in readings)
    text = f"{', '.join(names)} = {torch_name(place)}.stack([{subjects}]).tolist()"
    edits: list[Edit] = [file.insert_before(first.statement, text)]
    edits += [file.replace(reading.read.call, name) for reading, name in zip(readings, names, strict=True)]
    return Draft(f"read {len(readings)} numbers together", tuple(edits))


def _on_gpu(reading: _Reading) -> str:
    tensor = reading.read.tensor
    methods = ("" if is_whole(tensor) else ".detach()") + (".reshape(())" if tensor.shape else "")
    text = (
        reading.place.file.primary(reading.read.subject)
        if methods
        else reading.place.file.text(reading.read.subject)
    )
    if "\n" in text or "#" in text:
        raise Refused("what is read stands on several lines")
    return text + methods


def _names(readings: Sequence[_Reading]) -> Iterator[str]:
    """Yield a new variable's name for each reading."""
    source = readings[0].place.file.source
    taken = {node.id for node in ast.walk(source.tree) if isinstance(node, ast.Name)}
    for reading in readings:
        subject = reading.read.subject
        while isinstance(subject, ast.Call) and isinstance(subject.func, ast.Attribute):
            subject = subject.func.value
        stem = subject.id if isinstance(subject, ast.Name) else getattr(subject, "attr", "read")
        name = f"{stem}_value"
        number = 2
        while name in taken:
            name, number = f"{stem}_value_{number}", number + 1
        taken.add(name)
        yield name

"""`Table`: rows of numbers beside a verdict, ready for any output format."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from gapless.model.source import SourceLine

Tone = Literal["", "good", "bad", "dim", "bold", "command"]
Where = Literal["before", "after"]
Cell = str | float | SourceLine | tuple[float, ...]
"""Text as shown, a share from 0 to 1 drawn as a bar, a source line, or a curve's heights relative to its
maximum."""


class Column(msgspec.Struct, frozen=True, omit_defaults=True):
    """A column's heading. Numbers are right-aligned; ``drawn`` columns take the remaining room."""

    name: str = ""
    kind: Literal["text", "number", "drawn"] = "number"


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """One row: a cell for each column. `tone` is the row's emphasis; a ``command`` is for copying, and
    never wrapped."""

    cells: tuple[Cell, ...]
    tone: Tone = ""


def row(*cells: Cell, tone: Tone = "") -> Row:
    """Make a row of these cells."""
    return Row(cells, tone)


class Table(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Rows under a title.

    The first `shown` rows are visible until everything is unfolded (0: the whole table is hidden until then;
    -1: all rows are always visible). `rest` describes the hidden rows. `where` is before or after the
    findings. `notes` are sentences below it.
    """

    title: str
    columns: tuple[Column, ...] = ()
    rows: tuple[Row, ...] = ()
    shown: int = -1
    rest: str = "more"
    where: Where = "after"
    notes: tuple[str, ...] = ()


_KINDS: dict[str, Literal["text", "number", "drawn"]] = {"<": "text", ">": "number", "~": "drawn"}


def table(title: str, columns: str, rows: Iterable[Row], **more: object) -> Table:
    """Make a table whose first column is text; the other `columns` are separated by ``|``.

    ``<`` marks a text column, ``~`` a drawn one; the rest, and those with ``>``, are numbers.

    >>> [(column.name, column.kind) for column in table("", "<at | bytes | ~", ()).columns]
    [('', 'text'), ('at', 'text'), ('bytes', 'number'), ('', 'drawn')]
    """
    names = [part.strip() for part in columns.split("|")] if columns else []
    other_columns = (Column(name.lstrip("<>~"), _KINDS.get(name[:1], "number")) for name in names)
    return Table(title=title, columns=(Column("", "text"), *other_columns), rows=tuple(rows), **more)  # type: ignore[arg-type]

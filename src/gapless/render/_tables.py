"""Write tables as text, as wide as the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from rich.text import Text

from gapless.model import SourceLine, Table
from gapless.model.table import Cell, Column, Row
from gapless.render._canvas import Canvas
from gapless.render._style import highest

_GAP, _MIN_NAME_COLUMNS, _MIN_DRAWN_COLUMNS, _MIN_TEXT_COLUMNS = 2, 12, 8, 24
"""Columns between cells, and the widths below which cells are not cut."""
_MAX_TITLE_COLUMNS = 34
"""A longer title gets a line of its own: as a column's name it would widen the column."""
_TONES = {"": "", "good": "green", "bad": "red", "dim": "dim", "bold": "bold", "command": ""}
_LEVELS, _PLAIN_LEVELS = " ▁▂▃▄▅▆▇█", " ._-=+*%#"


def tables(canvas: Canvas, every: Iterable[Table], where: str) -> bool:
    """Write the tables placed `where` (before or after the findings); return whether rows were hidden."""
    folded = False
    for table in every:
        if table.where == where:
            folded |= _table(canvas, table)
    return folded


def _table(canvas: Canvas, table: Table) -> bool:
    """Write `table`; return whether rows were hidden."""
    unfold = canvas.style.unfold
    shown = table.rows if unfold or table.shown < 0 else table.rows[: table.shown]
    if not shown and not (table.notes and table.shown):
        return bool(table.rows)
    canvas.blank()
    if not table.rows:
        for note in table.notes:
            canvas.wrap(Text(f"{note}."))
        return False
    if all(column.kind == "text" for column in table.columns) and len(table.columns) == 2:
        _prose(canvas, table, shown)
    else:
        _grid(canvas, table, shown)
    rest = len(table.rows) - len(shown)
    if rest:
        canvas.clip(Text(f"  … and {rest} {table.rest} (--all)", style="dim"))
    for note in table.notes:
        canvas.hang(Text("  "), Text(note))
    return bool(rest)


def _prose(canvas: Canvas, table: Table, rows: Sequence[Row]) -> None:
    """Write two columns of text: names, and sentences of any length beside them."""
    if table.title:
        canvas.wrap(Text(table.title, style="bold"))
    width = min(max(len(_plain(canvas, row.cells[0])) for row in rows), canvas.style.width // 3)
    for row in rows:
        lead = Text(f"  {_plain(canvas, row.cells[0]):<{width}}  ", style="dim")
        said = Text(_plain(canvas, row.cells[1]), style=_TONES[row.tone])
        if row.tone == "command":
            canvas.line(Text.assemble(lead, said))
        else:
            canvas.hang(lead, said)


def _grid(canvas: Canvas, table: Table, rows: Sequence[Row]) -> None:
    """Write columns below their headings; those without room follow in blocks that repeat the names."""
    named = [column.name for column in table.columns[1:]]
    title = table.title
    if len(title) > _MAX_TITLE_COLUMNS:
        canvas.wrap(Text(title, style="bold"))
        title = ""
    widths = _widths(canvas, table.columns, rows, title)
    for kept in _blocks(widths, canvas.style.width):
        columns = [table.columns[0], *(table.columns[n] for n in kept)]
        taken = [widths[0], *(widths[n] for n in kept)]
        _row(canvas, columns, [title, *(named[n - 1] for n in kept)], taken, head=True)
        for row in rows:
            cells = [row.cells[0], *(row.cells[n] if n < len(row.cells) else "" for n in kept)]
            _row(canvas, columns, cells, taken, tone=row.tone)
        title = ""


def _blocks(widths: Sequence[int], room: int) -> list[list[int]]:
    """Group the positions of the columns, without the first, into blocks that fit into `room`.

    >>> _blocks([10, 8, 8, 8], 30)
    [[1, 2], [3]]
    """
    blocks: list[list[int]] = [[]]
    taken = widths[0]
    for position, width in enumerate(widths[1:], 1):
        if blocks[-1] and taken + _GAP + width > room:
            blocks.append([])
            taken = widths[0]
        blocks[-1].append(position)
        taken += _GAP + width
    return blocks


def _widths(canvas: Canvas, columns: Sequence[Column], rows: Sequence[Row], title: str) -> list[int]:
    """Return each column's width: what its cells need, text columns cut first, the rest for drawn columns."""
    named = [title, *(column.name for column in columns[1:])]
    needs = []
    for position, column in enumerate(columns):
        cells = [row.cells[position] for row in rows if position < len(row.cells)]
        texts = [_plain(canvas, cell) for cell in cells] if column.kind != "drawn" else []
        inset = 2 if not position else 0
        needs.append(max([len(named[position]), *(len(text) + inset for text in texts)], default=0))
    room = canvas.style.width - _GAP * (len(columns) - 1)
    drawn = [n for n, column in enumerate(columns) if column.kind == "drawn"]
    for n in drawn:
        needs[n] = max(_MIN_DRAWN_COLUMNS, room - sum(w for k, w in enumerate(needs) if k not in drawn))
    over = sum(needs) - room
    words = [n for n, column in enumerate(columns) if column.kind == "text"]
    for n, least in (
        *((n, _MIN_TEXT_COLUMNS if n else _MIN_NAME_COLUMNS) for n in words),
        *((n, _MIN_NAME_COLUMNS) for n in words),
    ):
        if over > 0:  # first the name, which then stands above its numbers
            cut = min(over, max(needs[n] - least, 0))
            needs[n] -= cut
            over -= cut
    return needs


def _row(
    canvas: Canvas,
    columns: Sequence[Column],
    cells: Sequence[Cell],
    widths: Sequence[int],
    tone: str = "",
    head: bool = False,
) -> None:
    """Write a row; a name too long for its column gets a line above its numbers."""
    style = "bold" if head else _TONES[tone]
    first = _plain(canvas, cells[0])
    inset = "" if head else "  "
    line = Text()
    if len(inset + first) > widths[0]:
        canvas.hang(Text(inset), Text(first, style=style))
        line.append(" " * widths[0])
    else:
        line.append(Text(f"{inset}{first}".ljust(widths[0]), style=style))
    cells_of = zip(columns[1:], cells[1:], widths[1:], strict=False)
    parts = [_cell(canvas, column, cell, width, "dim" if head else style) for column, cell, width in cells_of]
    lines = [line, *(Text(" " * widths[0]) for _ in range(max(map(len, parts), default=1) - 1))]
    for part, width in zip(parts, widths[1:], strict=False):
        for number, each in enumerate(lines):
            each.append(" " * _GAP)
            each.append(part[number] if number < len(part) else Text(" " * width))
    for each in lines:
        each.rstrip()
        if each.plain.strip():
            canvas.clip(each)


def _cell(canvas: Canvas, column: Column, cell: Cell, width: int, style: str) -> list[Text]:
    """Return the lines of a cell, each as wide as its column."""
    if column.kind == "drawn" and not isinstance(cell, str | SourceLine):
        if isinstance(cell, tuple):
            return [Text(sparkline(cell, width, canvas.style.unicode), style=style or "green")]
        return [Text(canvas.style.bar(cell, width), style=style or "yellow")]
    text = _line(canvas, cell, width) if isinstance(cell, SourceLine) else _plain(canvas, cell)
    lines = textwrap.wrap(text, width) if len(text) > width else [text]
    return [
        Text(line.rjust(width) if column.kind == "number" else line.ljust(width), style=style)
        for line in lines
    ]


def _line(canvas: Canvas, line: SourceLine, width: int) -> str:
    """Shorten a source line to `width`: drop its function, then folders; of a whole file keep the end."""
    text = _plain(canvas, line)
    if len(text) <= width:
        return text
    if not line.line:  # files of one kind begin alike
        cut = canvas.style.ascii("…")
        return f"{cut}{text[len(text) - width + len(cut) :]}"
    return canvas.style.place(line.file, str(line.line), width)


def _plain(canvas: Canvas, cell: Cell) -> str:
    if isinstance(cell, SourceLine):
        function = f" {cell.function}" if cell.function and cell.function != "<module>" else ""
        line = f":{cell.line}" if cell.line else ""  # 0: the whole file
        return canvas.style.ascii(f"{canvas.style.path(cell.file)}{line}{function}")
    return canvas.style.ascii(str(cell)) if isinstance(cell, str) else ""


def sparkline(heights: Sequence[float], room: int, unicode: bool = True) -> str:
    """Draw `heights` (0 to 1) in `room` characters: the maximum of each group of neighbours."""
    levels = _LEVELS if unicode else _PLAIN_LEVELS
    return "".join(levels[min(round(height * 8), 8)] for height in highest(heights, room))

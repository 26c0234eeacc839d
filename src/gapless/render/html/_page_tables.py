"""Prepare tables for the page's template."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from gapless.model import SourceLine, Table
from gapless.model.table import Cell, Column, Row
from gapless.render._style import highest
from gapless.render.html._clean import Clean

_CURVE_WIDTH, _CURVE_HEIGHT = 120, 22
"""Size of a curve in pixels."""
Links = Mapping[tuple[str, int], str]
"""The id on the page for a file and a line of it (0: the whole file)."""


def views(tables: Sequence[Table], clean: Clean, links: Links, prefix: str = "") -> list[dict[str, Any]]:
    """Return the template's dictionary of each table, in order."""
    taken: list[str] = []
    table_views = []
    for table in tables:
        name = re.sub(r"[^a-z0-9]+", "-", clean(table.title).lower()).strip("-")[:40] or "numbers"
        taken.append(name)
        twins = taken.count(name)
        table_views.append(
            _view(table, clean, links, f"{prefix}numbers-{name}{f'~{twins}' if twins > 1 else ''}")
        )
    return table_views


def _view(table: Table, clean: Clean, links: Links, name: str) -> dict[str, Any]:
    shown = len(table.rows) if table.shown < 0 else table.shown
    return {
        "id": name,
        "title": table.title,
        "head": [(column.name, column.kind) for column in table.columns[1:]],
        "rows": [_row(row, table.columns, clean, links) for row in table.rows],
        "shown": shown,
        "rest": f"{len(table.rows) - shown} {table.rest}" if 0 < shown < len(table.rows) else "",
        "folded": not shown and bool(table.rows),
        "before": table.where == "before",
        "notes": table.notes,
    }


def _row(row: Row, columns: Sequence[Column], clean: Clean, links: Links) -> dict[str, Any]:
    cells = [_cell(cell, column, clean, links) for cell, column in zip(row.cells, columns, strict=False)]
    return {"tone": row.tone, "cells": cells + [{"kind": "text", "text": ""}] * (len(columns) - len(cells))}


def _cell(cell: Cell, column: Column, clean: Clean, links: Links) -> dict[str, Any]:
    if isinstance(cell, SourceLine):
        named = cell.function and cell.function != "<module>"
        return {
            "kind": "place",
            "text": clean.path(cell.file) + (f":{cell.line}" if cell.line else ""),
            "function": cell.function if named else "",
            "link": links.get((cell.file, cell.line), ""),
        }
    if isinstance(cell, tuple):
        return {
            "kind": "curve",
            "points": Markup(_points(cell)),
            "box": f"0 0 {_CURVE_WIDTH} {_CURVE_HEIGHT}",
        }
    if isinstance(cell, str):
        return {"kind": "number" if column.kind == "number" else "text", "text": cell}
    return {"kind": "bar", "width": f"{100 * min(max(cell, 0.0), 1.0):.2f}"}


def _points(heights: Sequence[float]) -> str:
    """Return the corners of the area below a curve, one value per pixel at most."""
    tops = highest(heights, _CURVE_WIDTH)
    across = _CURVE_WIDTH / max(len(tops) - 1, 1)
    corners = [
        f"{at * across:.1f},{_CURVE_HEIGHT * (1 - min(max(top, 0.0), 1.0)):.1f}"
        for at, top in enumerate(tops)
    ]
    return " ".join([f"0,{_CURVE_HEIGHT}", *corners, f"{_CURVE_WIDTH},{_CURVE_HEIGHT}"])

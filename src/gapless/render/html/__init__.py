"""Render the report as an HTML page: one file that opens from disk and loads nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from gapless.model import Report
from gapless.render._style import Style
from gapless.render.html._page import page

__all__ = ["SUMMARIZED", "render", "together"]

SUMMARIZED = True
"""Several reports begin with a summary of all."""


def render(report: Report, style: Style) -> str:
    """Render `report` as HTML."""
    return page([report], style)


def together(reports: Sequence[Report], style: Style) -> str:
    """Render one page of all `reports`, with a section for each."""
    return page(reports, style)

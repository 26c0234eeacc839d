"""The report as a page: one file that opens from disk, with everything in it and nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from gapless.model import Report
from gapless.render._style import Style
from gapless.render.html._page import comparison, diagnosis, memory, page, pages

__all__ = ["comparison", "diagnosis", "memory", "render", "together"]


def render(report: Report, style: Style) -> str:
    """`report` as HTML."""
    return page(report, style)


def together(reports: Sequence[Report], style: Style) -> str:
    """One page of all `reports`."""
    return page(reports[0], style) if len(reports) == 1 else pages(reports, style)

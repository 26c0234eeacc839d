"""The report as a page: one file that opens from disk, with everything in it and nothing from elsewhere."""

from __future__ import annotations

from gapless.model import Report
from gapless.render._style import Style
from gapless.render.html._page import page


def render(report: Report, style: Style) -> str:
    """`report` as HTML."""
    return page(report, style)

"""The report as a page: one file that opens from disk, with everything in it and nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from gapless.model import Report
from gapless.render._style import Style
from gapless.render.html._page import page

__all__ = ["SUMMARIZED", "render", "together"]

SUMMARIZED = True
"""Several reports begin with a summary of all."""


def render(report: Report, style: Style) -> str:
    """`report` as HTML."""
    return page([report], style)


def together(reports: Sequence[Report], style: Style) -> str:
    """One page of all `reports`, each in a part of its own."""
    return page(reports, style)

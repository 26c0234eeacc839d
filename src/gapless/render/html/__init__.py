"""The report as a page: one file that opens from disk, with everything in it and nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from gapless.errors import UsageError
from gapless.model import Report
from gapless.render._style import Style
from gapless.render.html._page import comparison, page

__all__ = ["comparison", "render", "together"]


def render(report: Report, style: Style) -> str:
    """`report` as HTML."""
    return page(report, style)


def together(reports: Sequence[Report], style: Style) -> str:
    """The page of the one report there is.

    Raises:
        UsageError: there are several, and a page is of one run.
    """
    if len(reports) != 1:
        raise UsageError(f"a page is of one run, and these files are of {len(reports)}: name those of one")
    return render(reports[0], style)

"""One file per output format. A module here that has a `render` function is a format by its name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from functools import cache

from gapless.errors import UsageError
from gapless.model import Report
from gapless.render._style import Style

Render = Callable[[Report, Style], str]
"""A report as text, ending with a line break."""

ALONE = ("csv", "html", "junit", "markdown", "sarif")
"""Formats that are whole documents: nothing else may stand in the file that they go to."""

__all__ = ["ALONE", "Render", "Style", "formats", "renderer", "together"]


@cache
def formats() -> tuple[str, ...]:
    """Names of the formats, in alphabetical order."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")))


def renderer(name: str) -> Render:
    """The renderer of the format `name`.

    Raises:
        UsageError: there is none of that name.
    """
    if name not in formats():
        raise UsageError(f"no format {name!r}: there are {', '.join(formats())}")
    render: Render = importlib.import_module(f"{__name__}.{name}").render
    return render


def together(name: str, reports: Sequence[Report], style: Style) -> str:
    """Several reports in the format `name`: one after the other, or one document where the format says so.

    A module says so by a function `together(reports, style) -> str`, and by ``SUMMARIZED = True`` that it
    shows the summary that precedes several runs; other formats are for programs, which have no use for it.

    Raises:
        UsageError: there is no such format.
    """
    render = renderer(name)
    module = importlib.import_module(f"{__name__}.{name}")
    if not getattr(module, "SUMMARIZED", False):
        reports = [one for one in reports if one.kind != "runs"]
    if hasattr(module, "together"):
        text: str = module.together(reports, style)
        return text
    return ("\n" if name in ("text", "markdown") else "").join(render(one, style) for one in reports)

"""One module per output format, named after it; every command offers all formats.

A format has ``render(report, style) -> str``, and may define more: ``together(reports, style) -> str`` makes
one document of several reports; ``SUMMARIZED = True`` shows the summary that precedes several runs;
``BETWEEN`` separates reports in a row; ``BESIDE = True`` allows the report after a script's own output. Any
other format is a whole document: nothing else may be in its file.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType

from gapless.errors import UsageError
from gapless.model import Report
from gapless.render._style import Style

Render = Callable[[Report, Style], str]
"""A report as text, ending with a line break."""

__all__ = ["Render", "Style", "alone", "formats", "renderer", "together"]


@cache
def formats() -> tuple[str, ...]:
    """Return the names of the formats, in alphabetical order."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")))


def renderer(name: str) -> Render:
    """Return the renderer of the format `name`.

    Raises:
        UsageError: there is no such format.
    """
    render: Render = _module(name).render
    return render


def alone(name: str) -> bool:
    """Whether the format `name` is a whole document.

    Raises:
        UsageError: there is no such format.
    """
    return not getattr(_module(name), "BESIDE", False)


def _module(name: str) -> ModuleType:
    if name not in formats():
        raise UsageError(f"no format {name!r}: there are {', '.join(formats())}")
    return importlib.import_module(f"{__name__}.{name}")


def together(name: str, reports: Sequence[Report], style: Style) -> str:
    """Render several reports in the format `name`: in a row, or as one document if the format can.

    Raises:
        UsageError: there is no such format.
    """
    module = _module(name)
    if not getattr(module, "SUMMARIZED", False):
        reports = [report for report in reports if report.kind != "runs"]
    if hasattr(module, "together"):
        text: str = module.together(reports, style)
        return text
    return str(getattr(module, "BETWEEN", "")).join(module.render(report, style) for report in reports)

"""One file per output format. A module here is a format by its name; every command offers it.

It has ``render(report, style) -> str``, and may say more of itself: ``together(reports, style) -> str`` makes
one document of several reports; ``SUMMARIZED = True`` shows the summary that precedes several runs, for which
programs have no use; ``BETWEEN`` is what parts reports that come one after the other; ``BESIDE = True`` lets
it stand behind what a script prints. Any other is a whole document: nothing else may stand in its file.
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
    """Names of the formats, in alphabetical order."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")))


def renderer(name: str) -> Render:
    """The renderer of the format `name`.

    Raises:
        UsageError: there is none of that name.
    """
    render: Render = _module(name).render
    return render


def alone(name: str) -> bool:
    """Whether the format `name` is a whole document.

    Raises:
        UsageError: there is none of that name.
    """
    return not getattr(_module(name), "BESIDE", False)


def _module(name: str) -> ModuleType:
    if name not in formats():
        raise UsageError(f"no format {name!r}: there are {', '.join(formats())}")
    return importlib.import_module(f"{__name__}.{name}")


def together(name: str, reports: Sequence[Report], style: Style) -> str:
    """Several reports in the format `name`: one after the other, or one document where the format says so.

    Raises:
        UsageError: there is no such format.
    """
    module = _module(name)
    if not getattr(module, "SUMMARIZED", False):
        reports = [one for one in reports if one.kind != "runs"]
    if hasattr(module, "together"):
        text: str = module.together(reports, style)
        return text
    return str(getattr(module, "BETWEEN", "")).join(module.render(one, style) for one in reports)

"""One file per output format. A module here that has a `render` function is a format by its name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache

from gapless.errors import UsageError
from gapless.model import Report
from gapless.render._style import Style

Render = Callable[[Report, Style], str]
"""A report as text, ending with a line break."""

__all__ = ["Render", "Style", "formats", "renderer"]


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

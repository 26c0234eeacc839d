"""The rewrites: each module here says which rules it serves, and writes the change at a place of such a rule.

A module has `CODES`, the codes of rules (or their beginnings), and ``write(place) -> Draft``, which raises
`Refused` with the reason if the place is not what it can change. `ORDER` says which is asked first where
several serve a rule (50 if a module does not say). They are found on their own.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from gapless.fixes.editing.places import Draft, FixPlace

_ORDER = 50
"""Between those that must come first and those that take what is left."""


class Rewrite(NamedTuple):
    """A module's rewrite, by its name."""

    order: int
    name: str
    codes: tuple[str, ...]
    write: Callable[[FixPlace], Draft]


@cache
def rewrites() -> tuple[Rewrite, ...]:
    """Return all rewrites, in the order in which they are asked."""
    modules = [
        (module.name, importlib.import_module(f"{__name__}.{module.name}"))
        for module in pkgutil.iter_modules(__path__)
        if not module.name.startswith("_")
    ]
    return tuple(
        sorted(
            Rewrite(getattr(module, "ORDER", _ORDER), name, module.CODES, module.write)
            for name, module in modules
        )
    )


def rewrites_of(code: str) -> list[Rewrite]:
    """Return the rewrites that serve the rule `code`."""
    return [rewrite for rewrite in rewrites() if code.startswith(rewrite.codes)]

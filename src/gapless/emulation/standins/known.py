"""The waits of libraries' operators, beside the table of waits for torch's own.

A package's declaration lists them in ``OPERATORS`` by qualified name; others are unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gapless.emulation.standins import finder
from gapless.emulation.waits.call import Call
from gapless.emulation.waits.table import WaitCondition
from gapless.model import Mechanism


class LibraryWait(NamedTuple):
    """One way in which an operator waits: `times` returns how often in a call."""

    mechanism: Mechanism
    reason: str
    source: str
    times: Callable[[Call], bool | int]


def rows_for(name: str) -> tuple[tuple[WaitCondition, Callable[[Call], bool | int]], ...] | None:
    """Return rows of the table of waits for the operator ``library::name``; None if it is unknown."""
    library = name.partition("::")[0]
    if library not in finder.package_names():
        return None
    operators = getattr(finder.import_declaration(library), "OPERATORS", {})
    if name not in operators:
        return None
    return tuple(
        (WaitCondition("op", name, "known", 1, wait.mechanism, wait.reason, wait.source), wait.times)
        for wait in operators[name]
    )

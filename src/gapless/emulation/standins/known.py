"""How often operators of libraries make the host wait: the table of waits has torch's own.

A package's file has them in ``OPERATORS``, by qualified name; one with no entry there is not known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gapless.emulation.standins import finder
from gapless.emulation.waits.call import Call
from gapless.emulation.waits.table import Row
from gapless.model import Mechanism


class Known(NamedTuple):
    """One way in which an operator waits: `times` says how often it does in a call."""

    mechanism: Mechanism
    reason: str
    source: str
    times: Callable[[Call], bool | int]


def rows_for(name: str) -> tuple[tuple[Row, Callable[[Call], bool | int]], ...] | None:
    """Rows as of the table of waits for the operator ``library::name``; None where nothing is known of it."""
    library = name.partition("::")[0]
    if library not in finder.names():
        return None
    operators = getattr(finder.file_of(library), "OPERATORS", {})
    if name not in operators:
        return None
    return tuple(
        (Row("op", name, "known", 1, one.mechanism, one.reason, one.source), one.times)
        for one in operators[name]
    )

"""Asynchronous code as people write it, wrong and right, in pairs.

A pattern named ``…_wrong_801`` has races of that rule, and of no rule that its name does not say; any other
has none. They run on one emulated device unless ``RANKS`` or ``DEVICES`` names them.
"""

from emulation.races.patterns import (
    backward,
    collectives,
    cpu,
    field,
    host,
    practice,
    reports,
    storages,
    streams,
    threads,
)
from emulation.races.patterns.scaffold import DEVICES, PATTERNS, RANKS

__all__ = [
    "DEVICES",
    "PATTERNS",
    "RANKS",
    "backward",
    "collectives",
    "cpu",
    "field",
    "host",
    "practice",
    "reports",
    "storages",
    "streams",
    "threads",
]

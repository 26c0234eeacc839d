"""`Planned`: how many steps a script's whole run has, according to its loops."""

from __future__ import annotations

import msgspec


class Planned(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The number of steps that a run will make (0: unknown), in `passes` of the loop around them (0:
    unknown). `most`: the loops can end earlier, so these are limits.

    >>> Planned(steps=2560, passes=20).steps
    2560
    """

    steps: int = 0
    passes: int = 0
    most: bool = False

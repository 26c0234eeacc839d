"""`Planned`: how many steps a script's whole run has, according to its loops."""

from __future__ import annotations

import msgspec


class Planned(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The steps that a run is to make: `steps` of them (0: not known), in `passes` of the loop around them
    (0: not known). With `most` the loops can be left earlier, so that they are a limit.

    >>> Planned(steps=2560, passes=20).steps
    2560
    """

    steps: int = 0
    passes: int = 0
    most: bool = False

"""`Ranks`: the profiles of one run side by side, and the rank that the others wait for."""

from __future__ import annotations

import msgspec

from gapless.model.event import Site
from gapless.model.profile import Profile


class Reason(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something of which the slow rank has more than its peers: `more` nanoseconds in each step."""

    text: str
    more: float
    site: Site | None = None


class Straggler(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The slow rank; times in nanoseconds per step.

    `late` is how much longer its peers' kernels run in the collectives they share with it, in the median over
    them. `lost` is the part of it in which they do nothing else, `share` that part of a step.
    It is the last in `last` of `shared` collectives, which make up `blame` of the time that ranks wait in
    these, and the slowest in `slowest` of `steps` steps. `position` is that of its profile.
    """

    position: int
    rank: int
    late: float
    lost: float
    share: float
    blame: float
    last: int
    shared: int
    slowest: int
    steps: int
    peers: int
    reasons: tuple[Reason, ...] = ()


class Ranks(msgspec.Struct, frozen=True, omit_defaults=True):
    """The profiles of two or more ranks of one run, and the one of them that the others wait for, if any."""

    profiles: tuple[Profile, ...]
    straggler: Straggler | None = None

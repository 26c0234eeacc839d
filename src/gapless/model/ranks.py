"""`Ranks`: the profiles of one run's ranks, and the rank that the others wait for."""

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


class Late(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A rank that others wait for: `share` of all their waiting is for it, the `last` to come that often."""

    position: int
    rank: int
    share: float
    last: int


class Latecomers(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Who is waited for in `shared` collectives of `steps` steps, the worst first.

    `lost` nanoseconds of a step a rank waits in the mean with nothing else to do, `share` of the step.
    """

    late: tuple[Late, ...]
    lost: float
    share: float
    shared: int
    steps: int


class Shared(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One kind of collective, `count` of them in a step, in nanoseconds per step.

    `waiting` is what a rank waits for the last one, in the mean over the ranks; `transfer` is what it takes
    from when all have come.
    """

    name: str
    group: str
    count: float
    waiting: float
    transfer: float


class Ranks(msgspec.Struct, frozen=True, omit_defaults=True):
    """The profiles of two or more ranks of one run, the one that the others wait for, if any, all that they
    wait for, and what their collectives are made of."""

    profiles: tuple[Profile, ...]
    straggler: Straggler | None = None
    latecomers: Latecomers | None = None
    shared: tuple[Shared, ...] = ()

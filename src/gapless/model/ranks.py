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

    - `late`: how much longer its peers' kernels run in the shared collectives, in the median over them.
    - `lost`: the part of `late` in which they do nothing else; `share`: that part of a step.
    - `last`: it arrives last in so many of the `shared` collectives, which cause `blame` of the ranks'
      waiting there.
    - `slowest`: it is slowest in so many of `steps` steps.
    - `position`: of its profile.
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
    """A rank that others wait for: it causes `share` of all waiting, and arrives last `last` times."""

    position: int
    rank: int
    share: float
    last: int


class Latecomers(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The ranks that others wait for in `shared` collectives of `steps` steps, the worst first.

    `lost` is the mean time per step that a rank waits with nothing else to do, in nanoseconds; `share` that
    of the step.
    """

    late: tuple[Late, ...]
    lost: float
    share: float
    shared: int
    steps: int


class Shared(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One kind of collective, `count` of them in a step, in nanoseconds per step.

    `waiting` is the mean wait of a rank for the last one; `transfer` the time after all have arrived.
    """

    name: str
    group: str
    count: float
    waiting: float
    transfer: float


class Ranks(msgspec.Struct, frozen=True, omit_defaults=True):
    """The profiles of two or more ranks of one run, the rank that the others wait for (if any), all such
    ranks, and the times of their collectives."""

    profiles: tuple[Profile, ...]
    straggler: Straggler | None = None
    latecomers: Latecomers | None = None
    shared: tuple[Shared, ...] = ()

"""`paces`: a few machines that the emulated one might be, as far as is known.

Every time is uncertain: by how much, `Times.doubt` says for an operator and `Times.host_doubt` for the host,
as the standard deviation of ``ln(true / estimated)``, and `LATENCY` for latencies. One draw is one such
machine. What a draw says of the host holds for all of it, and so does what it says of latencies. Of an
operator's deviation a part is common to all operators (the clock that this GPU sustains), a part to those of
its family (how good such kernels are there), and the rest is its own: over many operators that rest averages
out, and the other two do not. What no measured model has had to prove (`Doubt.unproven`) is wrong for all
such operators alike.

The draws are quantiles, not chances: the same programme has the same interval each time.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gapless.model.estimate import Range
from gapless.model.programme import Entry
from gapless.replay.change import Pace

COUNT = 64
"""Machines that are drawn: quantiles of sixteen times as many are within a tenth of theirs."""
COMMON, FAMILY = 0.2, 0.2
"""Shares of the variance of an operator's time that all operators share, and those of its family. With them
about four in five whole models lie in their interval: `benchmarks/sheets/intervals.md`."""
LATENCY = 0.35
"""How uncertain latencies are, from a launch to its work and from work to the end of a wait for it: standard
deviations of the logarithms between the machines of public profiles are 0.41 and 0.36
(`benchmarks/sheets/estimate.md`)."""
LOW, HIGH = 0.1, 0.9
"""An interval is between these quantiles: four in five lie in it."""


class Doubt(NamedTuple):
    """How uncertain an operator's time is: its family, and standard deviations of ``ln(true / estimated)``:
    its kernel's, and what comes to that for all operators alike that no measured model has proved."""

    family: str
    own: float
    unproven: float = 0.0


Floats = NDArray[np.float64]
Ranks = NDArray[np.int64]
_TRIED = 16
"""Permutations of which the best is taken."""
_GOLDEN = (5**0.5 - 1) / 2


def paces(
    asked: Sequence[Entry | None],
    doubt: Callable[[Entry], Doubt],
    host: float,
    count: int = COUNT,
) -> list[Pace]:
    """`count` machines. `asked` says for each work of the device what asks for it, `doubt` of what family
    that is and how uncertain; `host` is how uncertain the host is."""
    entries: dict[int, Entry] = {id(entry): entry for entry in asked if entry is not None}
    place = {key: at for at, key in enumerate(entries)}
    nobody = len(place)
    rows = np.array([nobody if entry is None else place[id(entry)] for entry in asked], np.int64)
    told = [doubt(entry) for entry in entries.values()]
    factors = np.ones((count, nobody + 1))
    factors[:, :nobody] = _factors(told, count)
    hosts = np.exp(host * _normal(_host(count)))
    late = np.exp(LATENCY * normal("latency", count))
    return [Pace(float(hosts[n]), factors[n][rows], float(late[n])) for n in range(count)]


APART = 0.5
"""The median of `shares`."""


def shares(count: int = COUNT) -> Floats:
    """A number between 0 and 1 for each draw, which goes with no other."""
    return (_apart("shares", [_host(count), _common(count)]) + 0.5) / count


def normal(name: str, count: int = COUNT) -> Floats:
    """A normal deviate for each draw, which goes with no other but those of the same name."""
    return _normal(_apart(name, [_host(count), _common(count)]))


def interval(likely: float, drawn: Sequence[float] | Floats) -> Range:
    """The likely value, and what four in five of the drawn ones lie in; the likely one is never outside."""
    least, most = np.quantile(drawn, [LOW, HIGH], method="hazen")
    return Range(round(min(least, likely)), round(likely), round(max(most, likely)))


def _factors(told: Sequence[Doubt], count: int) -> Floats:
    """What the times of each of these are multiplied by in each draw: draws by operators."""
    if not told:
        return np.ones((count, 0))
    families = sorted({one.family for one in told})
    of = [families.index(one.family) for one in told]
    spread = np.array([one.own for one in told])
    unproven = np.array([one.unproven for one in told])
    ranks = [_host(count), _common(count)]
    for family in families:
        ranks.append(_apart(family, ranks))
    shared = np.stack([_normal(one) for one in ranks[2:]], axis=1)[:, of]
    own = _normal(np.argsort(np.random.RandomState(0).random_sample((count, len(told))), axis=0))
    common = _normal(_common(count))[:, None]
    rest = (1 - COMMON - FAMILY) ** 0.5
    deviates: Floats = COMMON**0.5 * common + FAMILY**0.5 * shared + rest * own
    alike = _normal(_apart("unproven", ranks))[:, None]
    factors: Floats = np.exp(spread * deviates + unproven * alike)
    return factors


def _host(count: int) -> Ranks:
    return np.arange(count)


def _common(count: int) -> Ranks:
    """With the host's: a lattice that fills the square evenly."""
    return np.argsort(np.argsort(np.arange(1, count + 1) * _GOLDEN % 1))


def _apart(name: str, others: Sequence[Ranks]) -> Ranks:
    """A permutation that goes with the name, and as little as can be with `others`."""
    chance = np.random.RandomState(zlib.crc32(name.encode()))
    found = [chance.permutation(len(others[0])) for _ in range(_TRIED)]
    return min(found, key=lambda one: float(np.abs(np.corrcoef([one, *others])[0, 1:]).max()))


def _normal(ranks: Ranks) -> Floats:
    """Normal deviates: those of `ranks`, of as many as a column has, at the middle of equal shares."""
    count = len(ranks)
    table = np.array([NormalDist().inv_cdf((rank + 0.5) / count) for rank in range(count)])
    found: Floats = table[ranks]
    return found

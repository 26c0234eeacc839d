"""Draw machines that the emulated one might be, within what is known about it.

Every time is uncertain: `Times.doubt` says by how much for an operator, `Times.host_doubt` for the host, as
the standard deviation of ``ln(true / estimated)``, and `LATENCY_SPREAD` for latencies. A draw is one possible
machine. Its host factor and its latency factor hold throughout. An operator's deviation is partly common to
all operators (the clock that this GPU sustains), partly to its family (how good such kernels are there), and
the rest is its own: over many operators that rest averages out, the other two do not. The error of operators
that no measured model has proved (`TimeUncertainty.unproven`) is the same for all of them.

The draws are quantiles, not random: a programme has the same interval each time.
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
from gapless.replay.change import ReplayPace

DRAWS = 64
"""Number of machines drawn: their quantiles are within a tenth of those of sixteen times as many."""
COMMON_VARIANCE, FAMILY_VARIANCE = 0.2, 0.2
"""Shares of the variance of an operator's time that are common to all operators, and to its family. With
these about four in five whole models lie in their interval: `benchmarks/sheets/intervals.md`."""
LATENCY_SPREAD = 0.35
"""Uncertainty of latencies, from a launch to its work and from work to the end of a wait for it: standard
deviations of the logarithms between the machines of public profiles are 0.41 and 0.36
(`benchmarks/sheets/estimate.md`)."""
LOW_QUANTILE, HIGH_QUANTILE = 0.1, 0.9
"""An interval lies between these quantiles, so that four in five true values lie in it."""


class TimeUncertainty(NamedTuple):
    """The uncertainty of an operator's time: its family, and standard deviations of ``ln(true / estimated)``:
    its kernel's, and one for all operators alike that no measured model has proved."""

    family: str
    own: float
    unproven: float = 0.0


Floats = NDArray[np.float64]
Ranks = NDArray[np.int64]
_PERMUTATIONS_TRIED = 16
"""Permutations of which the least correlated is taken."""
_GOLDEN = (5**0.5 - 1) / 2
"""The golden ratio's fraction, whose multiples fill the interval from 0 to 1 most evenly."""


def draw_machines(
    entries_of_work: Sequence[Entry | None],
    doubt: Callable[[Entry], TimeUncertainty],
    host: float,
    count: int = DRAWS,
) -> list[ReplayPace]:
    """Draw `count` machines. `entries_of_work` holds the entry that launches each device work, `doubt`
    returns its family and uncertainty, `host` is the uncertainty of the host."""
    entries: dict[int, Entry] = {id(entry): entry for entry in entries_of_work if entry is not None}
    place = {key: at for at, key in enumerate(entries)}
    nobody = len(place)
    rows = np.array([nobody if entry is None else place[id(entry)] for entry in entries_of_work], np.int64)
    doubts = [doubt(entry) for entry in entries.values()]
    factors = np.ones((count, nobody + 1))
    factors[:, :nobody] = _factors(doubts, count)
    hosts = np.exp(host * _normal_deviates(_host_ranks(count)))
    late = np.exp(LATENCY_SPREAD * draw_normal("latency", count))
    return [ReplayPace(float(hosts[n]), factors[n][rows], float(late[n])) for n in range(count)]


MEDIAN_SHARE = 0.5
"""The median of `draw_shares`."""


def draw_shares(count: int = DRAWS) -> Floats:
    """Return a number between 0 and 1 for each draw, uncorrelated with all others."""
    return (_choose_permutation("shares", [_host_ranks(count), _common_ranks(count)]) + 0.5) / count


def draw_normal(name: str, count: int = DRAWS) -> Floats:
    """Return a normal deviate for each draw, uncorrelated with all but those of the same name."""
    return _normal_deviates(_choose_permutation(name, [_host_ranks(count), _common_ranks(count)]))


def interval(
    likely: float, drawn: Sequence[float] | Floats, most_drawn: Sequence[float] | Floats | None = None
) -> Range:
    """Return the likely value and the interval of four in five draws, widened to include the likely value.

    With `most_drawn`, `drawn` holds the least of each draw, and that the most.
    """
    least = _quantile(drawn, LOW_QUANTILE)
    most = _quantile(drawn if most_drawn is None else most_drawn, HIGH_QUANTILE)
    return Range(round(min(least, likely)), round(likely), round(max(most, likely)))


def _quantile(drawn: Sequence[float] | Floats, share: float) -> float:
    """Return the value below which this share of the draws is; each of them stands for an equal share."""
    ordered = np.sort(drawn)
    middles = (np.arange(len(ordered)) + 0.5) / len(ordered)
    return float(np.interp(share, middles, ordered))


def _factors(doubts: Sequence[TimeUncertainty], count: int) -> Floats:
    """Return the factors on the times of these operators: draws by operators."""
    if not doubts:
        return np.ones((count, 0))
    families = sorted({doubt.family for doubt in doubts})
    of = [families.index(doubt.family) for doubt in doubts]
    spread = np.array([doubt.own for doubt in doubts])
    unproven = np.array([doubt.unproven for doubt in doubts])
    ranks = [_host_ranks(count), _common_ranks(count)]
    for family in families:
        ranks.append(_choose_permutation(family, ranks))
    shared = np.stack([_normal_deviates(rank) for rank in ranks[2:]], axis=1)[:, of]
    own = _normal_deviates(np.argsort(np.random.RandomState(0).random_sample((count, len(doubts))), axis=0))
    common = _normal_deviates(_common_ranks(count))[:, None]
    rest = (1 - COMMON_VARIANCE - FAMILY_VARIANCE) ** 0.5
    deviates: Floats = COMMON_VARIANCE**0.5 * common + FAMILY_VARIANCE**0.5 * shared + rest * own
    alike = _normal_deviates(_choose_permutation("unproven", ranks))[:, None]
    factors: Floats = np.exp(spread * deviates + unproven * alike)
    return factors


def _host_ranks(count: int) -> Ranks:
    return np.arange(count)


def _common_ranks(count: int) -> Ranks:
    """Ranks that form an evenly filled lattice with the host's."""
    return np.argsort(np.argsort(np.arange(1, count + 1) * _GOLDEN % 1))


def _choose_permutation(name: str, earlier: Sequence[Ranks]) -> Ranks:
    """Return a permutation that depends on the name and correlates least with `earlier` ones."""
    chance = np.random.RandomState(zlib.crc32(name.encode()))
    candidates = [chance.permutation(len(earlier[0])) for _ in range(_PERMUTATIONS_TRIED)]
    return min(
        candidates, key=lambda candidate: float(np.abs(np.corrcoef([candidate, *earlier])[0, 1:]).max())
    )


def _normal_deviates(ranks: Ranks) -> Floats:
    """Turn `ranks` of draws into normal deviates at the middle of equal shares."""
    count = len(ranks)
    table = np.array([NormalDist().inv_cdf((rank + 0.5) / count) for rank in range(count)])
    deviates: Floats = table[ranks]
    return deviates

"""Simulate profiles of ranks that train together.

Each rank enters a collective when its own work is done; all leave it when the last one has entered and the
data has been exchanged.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from gapless.model import Profile
from gapless.model.profile import Collectives, Split, Steps

EPOCH = 1_700_000_000_000_000_000
MS = 1_000_000

Extra = Callable[[int, int], int]
"""What a rank does longer: (step, collective in it) to nanoseconds."""


def simulated(
    ranks: int = 4,
    steps: int = 5,
    each: int = 4,
    *,
    slow: Mapping[int, Extra] | None = None,
    work: int = 10 * MS,
    noise: int = MS // 2,
    transfer: int = MS,
    clocks: Mapping[int, int] | None = None,
    drift: Mapping[int, float] | None = None,
    late_files: Mapping[int, int] | None = None,
    names: Sequence[str] = ("all_reduce",),
    group: str = "0",
    sizes: bool = True,
    recorded: bool = True,
    world: int = 0,
    exposed: bool = True,
    seed: int = 0,
    folder: str = "/runs",
    began: int = EPOCH,
) -> list[Profile]:
    """The profiles of all ranks, by rank.

    `clocks` and `drift` shift and stretch the times of a rank, `late_files` leaves out its first collectives.
    The sizes are those of four buckets; the names take turns.
    """

    def needs(rank: int, step: int, number: int) -> int:
        extra = (slow or {}).get(rank)
        return work + chance.randrange(noise + 1) + (extra(step, number) if extra else 0)

    chance = random.Random(seed)
    arrived, left = _met(
        ranks, [(step, number) for step in range(steps) for number in range(each)], needs, transfer
    )
    profiles = []
    for rank in range(ranks):
        skipped = (late_files or {}).get(rank, 0)
        begin = 0 if not skipped else left[skipped - 1] + 1
        rate = 1 + (drift or {}).get(rank, 0.0)

        def local(time: int, begin: int = begin, rate: float = rate) -> int:
            return round((time - begin) * rate)

        rows = range(skipped, len(left))
        times = (arrived[rank], left, local, sizes, each)
        bounds = [left[(step + 1) * each - 1] for step in range(steps)]
        first = skipped // each
        starts = [begin, *bounds[first:-1]] if skipped % each or not first else bounds[first - 1 : -1]
        spent = sum(left[row] - arrived[rank][row] for row in rows)
        total = bounds[-1] - starts[0]
        profiles.append(
            Profile(
                path=f"{folder}/rank{rank}.json",
                origin=began + begin + (clocks or {}).get(rank, 0),
                span=local(bounds[-1]),
                rank=rank if recorded else -1,
                world_size=(world or ranks) if recorded else 0,
                steps=Steps(
                    source="ProfilerStep",
                    names=tuple(f"ProfilerStep#{step}" for step in range(first, steps)),
                    start=tuple(map(local, starts)),
                    end=tuple(map(local, bounds[first:])),
                ),
                split=Split(kernel=total - spent, communication=spent if exposed else 0),
                idle=spent if exposed else 0,
                collectives=tuple(
                    _series(name, group, [row for row in rows if names[row % len(names)] == name], times)
                    for name in names
                ),
            )
        )
    return profiles


def _met(
    ranks: int, collectives: Sequence[tuple[int, int]], needs: Callable[[int, int, int], int], transfer: int
) -> tuple[list[list[int]], list[int]]:
    """When each rank comes to each of the `collectives`, for each rank, and when all leave it."""
    arrived: list[list[int]] = [[] for _ in range(ranks)]
    left: list[int] = []
    for step, number in collectives:
        begin = left[-1] if left else 0
        for rank in range(ranks):
            arrived[rank].append(begin + needs(rank, step, number))
        left.append(max(row[-1] for row in arrived) + transfer)
    return arrived, left


def _series(
    name: str,
    group: str,
    rows: list[int],
    times: tuple[list[int], list[int], Callable[[int], int], bool, int],
) -> Collectives:
    arrived, left, local, sizes, each = times
    start = tuple(local(arrived[row]) for row in rows)
    return Collectives(
        name=name,
        group=group,
        start=start,
        length=tuple(local(left[row]) - begin for row, begin in zip(rows, start, strict=True)),
        elements=tuple((row % each + 1) * 1_000_000 if sizes else -1 for row in rows),
    )

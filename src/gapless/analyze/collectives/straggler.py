"""The rank that its peers wait for, what that costs them, and in what it differs from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import median

from gapless.analyze.collectives.meetings import Meeting, Meetings, numbers
from gapless.model import Cost, Profile, Reason, Site, Straggler
from gapless.model.wording import duration, percent

MATTERS = 0.03
"""The part of a step that peers have to lose before a rank is called slow; less is noise between GPUs."""

ONE_STEP = 0.1
"""The same where a single step was recorded: nobody can say whether it comes again."""

MOSTLY = 0.5
"""The part of the waiting in which the slow rank has to be the last."""

TELLING = 0.2
"""A difference that explains less of what is lost than this is not a reason."""

SLOWER = 1.03
"""From how much longer kernels take throughout the device itself is slower."""

TOGETHER = 0.1
"""The part of the time between the first and the last to come by which two count as one."""

_KERNELS = 3
_REASONS = 3
_WHY: dict[str, str] = {
    "wait": "while the CPU waits for the GPU",
    "input": "until the next batch arrives",
    "transfer": "while the CPU copies",
    "launch": "because the CPU does not launch faster",
    "host": "while the CPU does other work",
    "allocator": "while the allocator gets memory from the driver",
    "graph": "in a long driver call",
    "profiler": "because of the profiler",
    "unknown": "for a reason that was not recorded",
}


def late(count: int, found: Meetings) -> list[float]:
    """How much later than the first each of `count` ranks comes to the collectives of a step, nanoseconds.

    That is the mean over the collectives it met others in, times those of a step; -1 where there are none.
    """
    sums, steps = [0.0] * count, [set[str]() for _ in range(count)]
    for meeting in in_steps(found):
        longest = max(meeting.lengths.values())
        for position, length in meeting.lengths.items():
            sums[position] += longest - length
            steps[position].add(meeting.step)
    return [total / len(seen) if seen else -1.0 for total, seen in zip(sums, steps, strict=True)]


def in_steps(found: Meetings) -> list[Meeting]:
    """The meetings within steps.

    A last step of which less than half is there (summaries keep the first collectives only) is left out.
    """
    counts: dict[tuple[int, str], int] = defaultdict(int)
    for meeting in found.found:
        if meeting.step:
            counts[meeting.reference, meeting.step] += 1
    short = set()
    for reference in {reference for reference, _ in counts}:
        mine = [key for key in counts if key[0] == reference]
        *rest, last = mine
        if rest and counts[last] < median([counts[key] for key in rest]) / 2:
            short.add(last)
    return [one for one in found.found if one.step and (one.reference, one.step) not in short]


def straggler(profiles: Sequence[Profile], found: Meetings) -> Straggler | None:
    """The rank that the others wait for mostly, by a margin that matters; None where there is none."""
    shared = in_steps(found)
    if not shared:
        return None
    ranks = numbers(profiles)
    by_step: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for meeting in shared:
        low, high = min(meeting.lengths.values()), max(meeting.lengths.values())
        for position, length in meeting.lengths.items():
            # Late to the one, waiting in the other: who is delayed by a slow peer elsewhere comes out even.
            by_step[meeting.step][position] += (high - length) - (length - low)
    total: dict[int, int] = defaultdict(int)
    for scores in by_step.values():
        for position, score in scores.items():
            total[position] += score
    slow = max(total, key=lambda at: (total[at], -ranks[at]))
    slowest = sum(1 for scores in by_step.values() if scores.get(slow, 0) == max(scores.values()) > 0)
    mine = [meeting for meeting in shared if slow in meeting.lengths]
    steps = len({meeting.step for meeting in mine})
    if _blame(slow, mine) < MOSTLY or 2 * slowest <= steps:
        return None
    return _weighed(profiles, slow, ranks[slow], mine, slowest, steps)


def _blame(slow: int, mine: Sequence[Meeting]) -> float:
    """The part of the waiting in these collectives in which `slow` is the last."""
    waited = sum(max(one.lengths.values()) - min(one.lengths.values()) for one in mine)
    for_it = sum(max(one.lengths.values()) - one.lengths[slow] for one in mine if is_last(slow, one))
    return for_it / waited if waited else 0.0


def is_last(slow: int, meeting: Meeting) -> bool:
    """Whether nobody came later by much: two that come from a collective of their own come together."""
    low, high = min(meeting.lengths.values()), max(meeting.lengths.values())
    return high > low and meeting.lengths[slow] - low <= TOGETHER * (high - low)


def _weighed(
    profiles: Sequence[Profile], slow: int, rank: int, mine: Sequence[Meeting], slowest: int, steps: int
) -> Straggler | None:
    """The slow rank with what it costs, if that is enough to speak of."""
    peers = sorted({at for meeting in mine for at in meeting.lengths} - {slow})
    margins = (
        median([length for at, length in one.lengths.items() if at != slow]) - one.lengths[slow]
        for one in mine
    )
    delay = sum(margins) / steps
    # A kernel that waits behind computing ones costs nothing: what counts is that nothing else runs.
    alone = median([exposed(profiles[at]) for at in peers]) - exposed(profiles[slow])
    lost = min(delay, alone)
    step = median([profiles[at].steps.mean for at in (slow, *peers)])
    share = min(1.0, lost / step) if step > 0 else 0.0
    if share < (MATTERS if steps > 1 else ONE_STEP):
        return None
    return Straggler(
        position=slow,
        rank=rank,
        late=delay,
        lost=lost,
        share=share,
        blame=_blame(slow, mine),
        last=sum(is_last(slow, one) for one in mine),
        shared=len(mine),
        slowest=slowest,
        steps=steps,
        peers=len(peers),
        reasons=tuple(reasons(profiles[slow], [profiles[at] for at in peers], lost)),
    )


def exposed(profile: Profile) -> float:
    """How long a step only communicates, nanoseconds."""
    return profile.split.communication / max(profile.steps.count, 1)


def reasons(slow: Profile, peers: Sequence[Profile], lost: float) -> list[Reason]:
    """In what `slow` exceeds the median of its peers by a good part of `lost` per step, the most first."""
    least = TELLING * lost
    clock = _slower_device(slow, peers)
    found = [*_idle(slow, peers), *([] if clock else _lines(slow, peers))]
    if clock:
        found.append(clock)
    told = [reason for reason in found if reason.more >= least]
    if not told:
        told = [reason for reason in _phases(slow, peers) if reason.more >= least][:1]
    return sorted(told, key=lambda reason: -reason.more)[:_REASONS]


Key = tuple[str, ...]
Amounts = dict[Key, float]


def _more(
    slow: Profile, peers: Sequence[Profile], amounts: Callable[[Profile], Amounts]
) -> list[tuple[Key, float]]:
    """What `slow` has more of than the median of its peers, per step."""
    mine = amounts(slow)
    theirs = [amounts(peer) for peer in peers]
    return [(key, value - median([one.get(key, 0.0) for one in theirs])) for key, value in mine.items()]


def _place(site: Site, otherwise: str = "") -> str:
    line = site.line
    return line.where if line is not None else otherwise or site.operator or site.call


def _key(cost: Cost) -> Key:
    return cost.cause, _place(cost.site, cost.place)


def _per_step(profile: Profile, entries: Iterable[tuple[Key, int]]) -> Amounts:
    found: Amounts = defaultdict(float)
    for key, value in entries:
        found[key] += value / max(profile.steps.count, 1)
    return found


def _idle(slow: Profile, peers: Sequence[Profile]) -> list[Reason]:
    """Places where the slow rank's device is idle for longer, waiting for its peers left out."""
    sites = {_key(cost): cost.site for cost in reversed(slow.costs)}

    def amounts(profile: Profile) -> Amounts:
        costs = (cost for cost in profile.costs if cost.cause != "communication")
        return _per_step(profile, ((_key(cost), cost.idle) for cost in costs))

    found = []
    for key, more in _more(slow, peers, amounts):
        cause, place = key
        at = f" at {place}" if place else ""
        why = _WHY.get(cause, "for an unknown reason")
        found.append(
            Reason(f"idle {duration(more)} longer in each step{at}, {why}", more, sites[cause, place])
        )
    return found


def _lines(slow: Profile, peers: Sequence[Profile]) -> list[Reason]:
    """Places that launch more work for the device than on the other ranks."""
    sites: dict[Key, Site] = {(_place(line.site),): line.site for line in slow.lines}

    def amounts(profile: Profile) -> Amounts:
        return _per_step(profile, (((_place(line.site),), line.total) for line in profile.lines))

    return [
        Reason(f"{duration(more)} more GPU work in each step from {key[0]}", more, sites[key])
        for key, more in _more(slow, peers, amounts)
        if key[0]
    ]


def _phases(slow: Profile, peers: Sequence[Profile]) -> list[Reason]:
    """Phases that take longer, on the host or on the device."""
    found = []
    for place, named in (("device", "GPU"), ("host", "CPU")):

        def amounts(profile: Profile, place: str = place) -> Amounts:
            return _per_step(profile, (((one.name,), getattr(one, place)) for one in profile.phases))

        for (name,), more in _more(slow, peers, amounts):
            found.append(Reason(f"{duration(more)} longer in each step on the {named}, in {name}", more))
    return sorted(found, key=lambda reason: -reason.more)


def _slower_device(slow: Profile, peers: Sequence[Profile]) -> Reason | None:
    """Whether the same kernels, as many of them, take longer throughout."""
    mine, theirs = _kernels(slow), [_kernels(peer) for peer in peers]
    ratios, more = [], 0.0
    for name, (calls, length) in mine.items():
        others = [one[name] for one in theirs if name in one]
        if 2 * len(others) <= len(theirs):
            continue
        usual = median([each for _, each in others])
        if usual > 0 and abs(median([count for count, _ in others]) - calls) < 0.5:
            ratios.append(length / usual)
            more += calls * (length - usual)
    if len(ratios) < _KERNELS or sorted(ratios)[len(ratios) // 4] < SLOWER:
        return None
    longer = percent(median(ratios) - 1)
    text = f"the same number of the same kernels takes {longer} longer: a slower GPU or larger inputs"
    return Reason(text, more)


def _kernels(profile: Profile) -> dict[str, tuple[float, float]]:
    """For each computing kernel how often it runs in a step, and how long each time."""
    count = max(profile.steps.count, 1)
    return {
        one.name: (one.calls / count, one.total / one.calls)
        for one in profile.kernels
        if one.calls > 0 and not one.communication
    }

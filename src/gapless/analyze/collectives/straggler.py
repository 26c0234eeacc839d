"""Find the rank that its peers wait for, what that costs, and how it differs from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import median

from gapless.analyze.collectives.meetings import Meeting, Meetings, number_ranks
from gapless.model import Cost, Profile, Reason, Site, Straggler
from gapless.model.wording import duration, percent

MIN_SHARE_LOST = 0.03
"""The share of a step that peers must lose before a rank is called slow; less is noise between GPUs."""

MIN_SHARE_LOST_IN_ONE_STEP = 0.1
"""`MIN_SHARE_LOST` where a single step was recorded and it may have been an exception."""

MIN_BLAME = 0.5
"""The share of the waiting in which the slow rank must be the last."""

MIN_SHARE_EXPLAINED = 0.2
"""A difference that explains a smaller share of the loss is not given as a reason."""

MIN_SLOWDOWN = 1.03
"""Ratio of kernel times from which the device itself is called slower; GPUs of one model differ by less."""

MAX_SHARE_TOGETHER = 0.1
"""Ranks whose arrivals differ by less than this share of first-to-last count as arriving together."""

_MIN_KERNELS = 3
"""Different kernels that must be slower: one or two may be slow for their inputs."""
_MAX_REASONS = 3
"""Reasons that are listed: the largest ones; more would hide them."""
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


def mean_delays(count: int, meetings: Meetings) -> list[float]:
    """Return how many nanoseconds per step each of `count` ranks arrives after the first.

    That is the mean over its collectives, times those in a step; -1 for ranks that meet nobody.
    """
    sums, steps = [0.0] * count, [set[str]() for _ in range(count)]
    for meeting in meetings_in_steps(meetings):
        longest = max(meeting.lengths.values())
        for position, length in meeting.lengths.items():
            sums[position] += longest - length
            steps[position].add(meeting.step)
    return [total / len(names) if names else -1.0 for total, names in zip(sums, steps, strict=True)]


def meetings_in_steps(meetings: Meetings) -> list[Meeting]:
    """Return the meetings within steps.

    A last step with less than half of the usual meetings (summaries keep only the first) is left out.
    """
    counts: dict[tuple[int, str], int] = defaultdict(int)
    for meeting in meetings.matched:
        if meeting.step:
            counts[meeting.reference, meeting.step] += 1
    incomplete = set()
    for reference in {reference for reference, _ in counts}:
        mine = [key for key in counts if key[0] == reference]
        *rest, last = mine
        if rest and counts[last] < median([counts[key] for key in rest]) / 2:
            incomplete.add(last)
    return [
        meeting
        for meeting in meetings.matched
        if meeting.step and (meeting.reference, meeting.step) not in incomplete
    ]


def find_straggler(profiles: Sequence[Profile], meetings: Meetings) -> Straggler | None:
    """Return the rank that causes most of the waiting, if the loss matters, else None."""
    shared = meetings_in_steps(meetings)
    if not shared:
        return None
    ranks = number_ranks(profiles)
    by_step: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for meeting in shared:
        low, high = min(meeting.lengths.values()), max(meeting.lengths.values())
        for position, length in meeting.lengths.items():
            # A rank delayed by a slow peer elsewhere is late here and waits there, so its score evens out.
            by_step[meeting.step][position] += (high - length) - (length - low)
    total: dict[int, int] = defaultdict(int)
    for scores in by_step.values():
        for position, score in scores.items():
            total[position] += score
    slow = max(total, key=lambda at: (total[at], -ranks[at]))
    slowest = sum(1 for scores in by_step.values() if scores.get(slow, 0) == max(scores.values()) > 0)
    mine = [meeting for meeting in shared if slow in meeting.lengths]
    steps = len({meeting.step for meeting in mine})
    if _blame_share(slow, mine) < MIN_BLAME or 2 * slowest <= steps:
        return None
    return _price_straggler(profiles, slow, ranks[slow], mine, slowest, steps)


def _blame_share(slow: int, mine: Sequence[Meeting]) -> float:
    """The share of the waiting in these collectives for which `slow` arrives last."""
    waited = sum(max(meeting.lengths.values()) - min(meeting.lengths.values()) for meeting in mine)
    for_it = sum(
        max(meeting.lengths.values()) - meeting.lengths[slow] for meeting in mine if is_last(slow, meeting)
    )
    return for_it / waited if waited else 0.0


def is_last(slow: int, meeting: Meeting) -> bool:
    """Whether no rank arrived much later: ranks delayed by one collective of their own arrive together."""
    low, high = min(meeting.lengths.values()), max(meeting.lengths.values())
    return high > low and meeting.lengths[slow] - low <= MAX_SHARE_TOGETHER * (high - low)


def _price_straggler(
    profiles: Sequence[Profile], slow: int, rank: int, mine: Sequence[Meeting], slowest: int, steps: int
) -> Straggler | None:
    """Return the slow rank with what it costs, None if that is too little."""
    peers = sorted({at for meeting in mine for at in meeting.lengths} - {slow})
    margins = (
        median([length for at, length in meeting.lengths.items() if at != slow]) - meeting.lengths[slow]
        for meeting in mine
    )
    delay = sum(margins) / steps
    # A kernel that waits while others compute costs nothing: only time in which nothing else runs counts.
    alone = median([exposed_communication(profiles[at]) for at in peers]) - exposed_communication(
        profiles[slow]
    )
    lost = min(delay, alone)
    step = median([profiles[at].steps.mean for at in (slow, *peers)])
    share = min(1.0, lost / step) if step > 0 else 0.0
    if share < (MIN_SHARE_LOST if steps > 1 else MIN_SHARE_LOST_IN_ONE_STEP):
        return None
    return Straggler(
        position=slow,
        rank=rank,
        late=delay,
        lost=lost,
        share=share,
        blame=_blame_share(slow, mine),
        last=sum(is_last(slow, meeting) for meeting in mine),
        shared=len(mine),
        slowest=slowest,
        steps=steps,
        peers=len(peers),
        reasons=tuple(find_reasons(profiles[slow], [profiles[at] for at in peers], lost)),
    )


def exposed_communication(profile: Profile) -> float:
    """Nanoseconds per step in which the device only communicates."""
    return profile.split.communication / max(profile.steps.count, 1)


def find_reasons(slow: Profile, peers: Sequence[Profile], lost: float) -> list[Reason]:
    """Return where `slow` exceeds the median of its peers by a good part of `lost` per step."""
    least = MIN_SHARE_EXPLAINED * lost
    clock = _slower_device(slow, peers)
    candidates = [*_idle_reasons(slow, peers), *([] if clock else _line_reasons(slow, peers))]
    if clock:
        candidates.append(clock)
    telling = [reason for reason in candidates if reason.more >= least]
    if not telling:
        telling = [reason for reason in _phase_reasons(slow, peers) if reason.more >= least][:1]
    return sorted(telling, key=lambda reason: -reason.more)[:_MAX_REASONS]


AmountKey = tuple[str, ...]
Amounts = dict[AmountKey, float]


def _excess(
    slow: Profile, peers: Sequence[Profile], amounts: Callable[[Profile], Amounts]
) -> list[tuple[AmountKey, float]]:
    """Return what `slow` has more of than the median of its peers, per step."""
    mine = amounts(slow)
    theirs = [amounts(peer) for peer in peers]
    return [
        (key, value - median([peer_amounts.get(key, 0.0) for peer_amounts in theirs]))
        for key, value in mine.items()
    ]


def _place_text(site: Site, otherwise: str = "") -> str:
    line = site.line
    return line.where if line is not None else otherwise or site.operator or site.call


def _cost_key(cost: Cost) -> AmountKey:
    return cost.cause, _place_text(cost.site, cost.place)


def _per_step(profile: Profile, entries: Iterable[tuple[AmountKey, int]]) -> Amounts:
    amounts: Amounts = defaultdict(float)
    for key, value in entries:
        amounts[key] += value / max(profile.steps.count, 1)
    return amounts


def _idle_reasons(slow: Profile, peers: Sequence[Profile]) -> list[Reason]:
    """Return a reason for each place where `slow` idles longer, except for waiting for its peers."""
    sites = {_cost_key(cost): cost.site for cost in reversed(slow.costs)}

    def amounts(profile: Profile) -> Amounts:
        costs = (cost for cost in profile.costs if cost.cause != "communication")
        return _per_step(profile, ((_cost_key(cost), cost.idle) for cost in costs))

    reasons = []
    for key, more in _excess(slow, peers, amounts):
        cause, place = key
        at = f" at {place}" if place else ""
        why = _WHY.get(cause, "for an unknown reason")
        reasons.append(
            Reason(f"idle {duration(more)} longer in each step{at}, {why}", more, sites[cause, place])
        )
    return reasons


def _line_reasons(slow: Profile, peers: Sequence[Profile]) -> list[Reason]:
    """Return a reason for each source line that launches more GPU work on `slow` than on its peers."""
    sites: dict[AmountKey, Site] = {(_place_text(line.site),): line.site for line in slow.lines}

    def amounts(profile: Profile) -> Amounts:
        return _per_step(profile, (((_place_text(line.site),), line.total) for line in profile.lines))

    return [
        Reason(f"{duration(more)} more GPU work in each step from {key[0]}", more, sites[key])
        for key, more in _excess(slow, peers, amounts)
        if key[0]
    ]


def _phase_reasons(slow: Profile, peers: Sequence[Profile]) -> list[Reason]:
    """Return a reason for each phase that takes longer on the host or on the device, longest first."""
    reasons = []
    for place, processor in (("device", "GPU"), ("host", "CPU")):

        def amounts(profile: Profile, place: str = place) -> Amounts:
            return _per_step(profile, (((phase.name,), getattr(phase, place)) for phase in profile.phases))

        for (name,), more in _excess(slow, peers, amounts):
            reasons.append(
                Reason(f"{duration(more)} longer in each step on the {processor}, in {name}", more)
            )
    return sorted(reasons, key=lambda reason: -reason.more)


def _slower_device(slow: Profile, peers: Sequence[Profile]) -> Reason | None:
    """Return the reason that equally many of the same kernels take longer throughout, None if they do not."""
    mine, theirs = _kernel_times(slow), [_kernel_times(peer) for peer in peers]
    ratios, more = [], 0.0
    for name, (calls, length) in mine.items():
        peer_times = [kernels[name] for kernels in theirs if name in kernels]
        if 2 * len(peer_times) <= len(theirs):
            continue
        usual = median([length_ for _, length_ in peer_times])
        if usual > 0 and abs(median([count for count, _ in peer_times]) - calls) < 0.5:
            ratios.append(length / usual)
            more += calls * (length - usual)
    if len(ratios) < _MIN_KERNELS or sorted(ratios)[len(ratios) // 4] < MIN_SLOWDOWN:
        return None
    longer = percent(median(ratios) - 1)
    text = f"the same number of the same kernels takes {longer} longer: a slower GPU or larger inputs"
    return Reason(text, more)


def _kernel_times(profile: Profile) -> dict[str, tuple[float, float]]:
    """For each computing kernel its runs per step and mean nanoseconds."""
    count = max(profile.steps.count, 1)
    return {
        kernel.name: (kernel.calls / count, kernel.total / kernel.calls)
        for kernel in profile.kernels
        if kernel.calls > 0 and not kernel.communication
    }

"""Find which ranks are waited for in collectives; split collectives into waiting and transfer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import mean, median

from gapless.analyze.collectives.meetings import Meeting, Meetings, number_ranks
from gapless.analyze.collectives.straggler import exposed_communication, is_last, meetings_in_steps
from gapless.model import Profile
from gapless.model.ranks import Late, Latecomers, Shared

MIN_SHARE_NAMED = 0.1
"""The share of the waiting from which a rank is named; smaller shares are noise."""
MIN_SHARE_TOGETHER = 0.5
"""The share that the named ranks must cause together, so that naming them explains most of it."""


def latecomers(profiles: Sequence[Profile], meetings: Meetings) -> Latecomers | None:
    """Return the ranks that the others wait for, each with its share of the waiting; None if nobody waits.

    The waiting in a collective is that of all ranks that arrive before the last. Ranks that arrive last
    together share it equally.
    """
    shared = meetings_in_steps(meetings)
    waited, last = defaultdict[int, float](float), defaultdict[int, int](int)
    for meeting in shared:
        low = min(meeting.lengths.values())
        latest = [at for at in meeting.lengths if is_last(at, meeting)]
        for at in latest:
            waited[at] += sum(length - low for length in meeting.lengths.values()) / len(latest)
            last[at] += 1
    total = sum(waited.values())
    if not total:
        return None
    ranks = number_ranks(profiles)
    late = [
        Late(position=at, rank=ranks[at], share=waited[at] / total, last=last[at])
        for at in sorted(waited, key=lambda at: (-waited[at], ranks[at]))
        if waited[at] >= max(MIN_SHARE_NAMED, 2 / len(profiles)) * total
    ]
    steps = len({meeting.step for meeting in shared})
    # Nothing is lost where a waiting kernel overlaps computation.
    lost = min(sum(map(_waiting, shared)) / steps, median(map(exposed_communication, profiles)))
    step = median(profile.steps.mean for profile in profiles)
    return Latecomers(
        late=tuple(late),
        lost=lost,
        share=min(lost / step, 1.0) if step else 0.0,
        shared=len(shared),
        steps=steps,
    )


def split_collectives(meetings: Meetings) -> tuple[Shared, ...]:
    """Split each kind of collective into waiting for the last rank and transfer, the longest first."""
    kinds = defaultdict[tuple[str, str], list[Meeting]](list)
    for meeting in meetings_in_steps(meetings):
        kinds[meeting.name, meeting.group].append(meeting)
    shares = []
    for (name, group), those_meetings in kinds.items():
        steps = len({(meeting.reference, meeting.step) for meeting in those_meetings})
        shares.append(
            Shared(
                name=name,
                group=group,
                count=len(those_meetings) / steps,
                waiting=sum(map(_waiting, those_meetings)) / steps,
                transfer=sum(min(meeting.lengths.values()) for meeting in those_meetings) / steps,
            )
        )
    return tuple(
        sorted(shares, key=lambda shared: (-shared.waiting - shared.transfer, shared.name, shared.group))
    )


def _waiting(meeting: Meeting) -> float:
    """Nanoseconds that a rank waits for the last one, on average."""
    return mean(meeting.lengths.values()) - min(meeting.lengths.values())

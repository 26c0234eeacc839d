"""Who is waited for in collectives, and how much of each is waiting and how much is transfer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import mean, median

from gapless.analyze.collectives.meetings import Meeting, Meetings, numbers
from gapless.analyze.collectives.straggler import exposed, in_steps, is_last
from gapless.model import Profile
from gapless.model.ranks import Late, Latecomers, Shared

LEAST = 0.1
"""The part of the waiting from which a rank is named."""
TOGETHER = 0.5
"""What those who are named have to have of it together."""


def latecomers(profiles: Sequence[Profile], found: Meetings) -> Latecomers | None:
    """The ranks that the others wait for, each with its part of the waiting; None where nobody waits.

    The waiting in a collective is that of all who come before the last. Where several come together at the
    end it is divided among them.
    """
    shared = in_steps(found)
    waited, last = defaultdict[int, float](float), defaultdict[int, int](int)
    for meeting in shared:
        low = min(meeting.lengths.values())
        those = [at for at in meeting.lengths if is_last(at, meeting)]
        for at in those:
            waited[at] += sum(length - low for length in meeting.lengths.values()) / len(those)
            last[at] += 1
    total = sum(waited.values())
    if not total:
        return None
    ranks = numbers(profiles)
    late = [
        Late(position=at, rank=ranks[at], share=waited[at] / total, last=last[at])
        for at in sorted(waited, key=lambda at: (-waited[at], ranks[at]))
        if waited[at] >= max(LEAST, 2 / len(profiles)) * total
    ]
    steps = len({meeting.step for meeting in shared})
    # Where a kernel waits behind computing ones nothing is lost.
    lost = min(sum(map(_waiting, shared)) / steps, median(map(exposed, profiles)))
    step = median(profile.steps.mean for profile in profiles)
    return Latecomers(
        late=tuple(late),
        lost=lost,
        share=min(lost / step, 1.0) if step else 0.0,
        shared=len(shared),
        steps=steps,
    )


def split(found: Meetings) -> tuple[Shared, ...]:
    """Each kind of collective, divided into waiting for the last rank and transfer; the longest first."""
    kinds = defaultdict[tuple[str, str], list[Meeting]](list)
    for meeting in in_steps(found):
        kinds[meeting.name, meeting.group].append(meeting)
    made = []
    for (name, group), some in kinds.items():
        steps = len({(one.reference, one.step) for one in some})
        made.append(
            Shared(
                name=name,
                group=group,
                count=len(some) / steps,
                waiting=sum(map(_waiting, some)) / steps,
                transfer=sum(min(one.lengths.values()) for one in some) / steps,
            )
        )
    return tuple(sorted(made, key=lambda one: (-one.waiting - one.transfer, one.name, one.group)))


def _waiting(meeting: Meeting) -> float:
    """How long a rank waits for the last one, in the mean."""
    return mean(meeting.lengths.values()) - min(meeting.lengths.values())

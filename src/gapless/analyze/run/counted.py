"""Which events count, and whether for training or for evaluation."""

from __future__ import annotations

from collections import Counter
from statistics import median_low

import msgspec

from gapless.analyze.run.steps import Steps
from gapless.model import Event, Session

_SiteStep = tuple[int, int]
"""A site and a step."""


def select_events(session: Session, steps: Steps) -> tuple[Event, ...]:
    """The events of `session` that say something of the script, each in the phase it belongs to.

    Left out is what a script does once it has been stopped: it would not have done it there. Counted as
    training is what a capture takes for evaluation only because nothing tells yet that it is over: the
    next batch, for one, is copied before the next forward pass.
    """
    events = session.events
    if session.ending.how == "enough-steps" and steps.seen:
        last = steps.ends[-1]
        events = tuple(event for event in events if event.tick <= last or event.time < session.cut)
    missing = _missing_in_training(events, steps)
    if not missing:
        return events
    counted: list[Event] = []
    for event in events:
        place = (event.site, steps.of(event.tick))
        moved = min(missing[place], event.waits) if event.phase == "eval" else 0
        if not moved:
            counted.append(event)
            continue
        missing[place] -= moved
        counted.append(msgspec.structs.replace(event, phase="train", waits=moved))
        if event.waits > moved:
            counted.append(msgspec.structs.replace(event, waits=event.waits - moved, bytes=0))
    return tuple(counted)


def _missing_in_training(events: tuple[Event, ...], steps: Steps) -> Counter[_SiteStep]:
    """How many waits each site lacks in a step, against what it has in most steps."""
    training: Counter[_SiteStep] = Counter()
    evaluating: set[_SiteStep] = set()
    for event in events:
        place = (event.site, steps.of(event.tick))
        if event.phase == "train":
            training[place] += event.waits
        elif place[1] < steps.seen:
            evaluating.add(place)
    missing: Counter[_SiteStep] = Counter()
    for site, step in evaluating:
        usual = median_low([training[site, other] for other in steps.steady])
        if usual > training[site, step]:
            missing[site, step] = usual - training[site, step]
    return missing

"""Select the events that count, and whether they belong to training or evaluation."""

from __future__ import annotations

from collections import Counter
from statistics import median_low

import msgspec

from gapless.analyze.run.steps import RunSteps
from gapless.model import Event, Session

_SiteStep = tuple[int, int]
"""A site number and a step."""


def select_events(session: Session, steps: RunSteps) -> tuple[Event, ...]:
    """Return the events that tell about the script, each in the phase it belongs to.

    What a stopped script does afterwards is left out: it would not have done it there. Events counted as
    evaluation only because its end was not visible yet move to training, such as the copy of the next batch
    before the next forward pass.
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


def _missing_in_training(events: tuple[Event, ...], steps: RunSteps) -> Counter[_SiteStep]:
    """Count the waits each site lacks in a step, compared with the median step."""
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

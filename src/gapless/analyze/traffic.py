"""What a rank sends and receives per step, from what the programme holds of its collectives."""

from __future__ import annotations

from collections import defaultdict

from gapless.analyze.estimate.communication import moved
from gapless.analyze.estimate.steps import recorded
from gapless.analyze.steps import Steps
from gapless.model import Session
from gapless.model.programme import Entry
from gapless.model.traffic import Traffic


def traffic(session: Session, steps: Steps) -> tuple[Traffic, ...]:
    """The collectives of a steady step, what moves most first; none where no step was recorded whole."""
    programme = session.programme
    if programme is None or not any(entry.kind == "collective" for entry in programme.entries):
        return ()
    whole = recorded(programme, steps) if steps.seen else []
    totals: defaultdict[Traffic, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for step in whole:
        for entry in step:
            if entry.kind == "collective":
                total, (sent, received) = totals[_key(entry)], moved(entry)
                total[0] += 1
                total[1] += sent
                total[2] += received
    found = [_mean(key, total, len(whole)) for key, total in totals.items()]
    return tuple(sorted(found, key=lambda one: -(one.sent + one.received)))


def _key(entry: Entry) -> Traffic:
    return Traffic(
        kind=entry.name,
        group=entry.group,
        ranks=entry.ranks,
        backward=entry.backward,
        host=entry.detail == "host",
        line=entry.line,
    )


def _mean(key: Traffic, total: list[float], steps: int) -> Traffic:
    times, sent, received = (value / steps for value in total)
    return Traffic(
        **{name: getattr(key, name) for name in ("kind", "group", "ranks", "backward", "host", "line")},
        times=times,
        sent=round(sent),
        received=round(received),
    )

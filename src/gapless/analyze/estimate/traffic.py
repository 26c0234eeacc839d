"""What a rank sends and receives per step, from what the programme holds of its collectives, and what NCCL
takes of its GPU for them."""

from __future__ import annotations

from collections import defaultdict

from gapless.analyze.run.steps import Steps
from gapless.model import Session
from gapless.model.memory_report import Buffers
from gapless.model.programme import Entry
from gapless.model.traffic import Traffic

_LEAST, _MOST, _ALL_TO_ALL = 544 << 20, 1_600_000_000, 3_300_000_000
"""Bytes that a communicator was seen to take, at the least (NVIDIA/nccl#964) and at the most (#864),
and what eight H100s took more at their first all-to-all (#1685)."""


def buffers(session: Session) -> Buffers | None:
    """What NCCL may take for the groups whose collectives the recorded steps have; None where there are none.

    Who sends to whom is one group: NCCL makes one communicator or more of a pipeline's pairs.
    """
    kinds: defaultdict[str, set[str]] = defaultdict(set)
    for entry in session.programme.entries if session.programme is not None else ():
        if entry.kind == "collective" and entry.detail != "host" and entry.ranks > 1:
            kinds["" if entry.name in ("send", "recv") else entry.group].add(entry.name)
    if not kinds:
        return None
    pairwise = sum("all_to_all" in names for names in kinds.values())
    most = len(kinds) * _MOST + pairwise * _ALL_TO_ALL
    return Buffers(groups=len(kinds), least=len(kinds) * _LEAST, most=most)


def traffic(session: Session, steps: Steps) -> tuple[Traffic, ...]:
    """The collectives of a steady step, what moves most first; none where no step was recorded whole."""
    programme = session.programme
    if programme is None or not any(entry.kind == "collective" for entry in programme.entries):
        return ()
    from gapless.analyze.estimate.collective_times import moved  # which comes with the replay
    from gapless.analyze.estimate.programme_steps import recorded

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

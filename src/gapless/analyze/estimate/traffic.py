"""Sum what a rank sends and receives per step from a programme's collectives, and what NCCL allocates on its
GPU for them."""

from __future__ import annotations

from collections import defaultdict

from gapless.analyze.run.steps import RunSteps
from gapless.model import Session
from gapless.model.memory_report import Buffers
from gapless.model.programme import Entry
from gapless.model.traffic import Traffic

_MIN_COMMUNICATOR_BYTES, _MAX_COMMUNICATOR_BYTES, _ALL_TO_ALL_BYTES = 544 << 20, 1_600_000_000, 3_300_000_000
"""Bytes that a communicator took in reports, at least (NVIDIA/nccl#964) and at most (#864), and the extra of
eight H100s at their first all-to-all (#1685)."""


def communication_buffers(session: Session) -> Buffers | None:
    """Estimate NCCL's buffers for the groups of the recorded collectives; None without collectives.

    Sends and receives count as one group: NCCL makes one communicator or more for a pipeline's pairs.
    """
    kinds: defaultdict[str, set[str]] = defaultdict(set)
    for entry in session.programme.entries if session.programme is not None else ():
        if entry.kind == "collective" and entry.detail != "host" and entry.ranks > 1:
            kinds["" if entry.name in ("send", "recv") else entry.group].add(entry.name)
    if not kinds:
        return None
    pairwise = sum("all_to_all" in names for names in kinds.values())
    most = len(kinds) * _MAX_COMMUNICATOR_BYTES + pairwise * _ALL_TO_ALL_BYTES
    return Buffers(groups=len(kinds), least=len(kinds) * _MIN_COMMUNICATOR_BYTES, most=most)


def step_traffic(session: Session, steps: RunSteps) -> tuple[Traffic, ...]:
    """Return the collectives of a steady step, largest traffic first; empty if no step is complete."""
    programme = session.programme
    if programme is None or not any(entry.kind == "collective" for entry in programme.entries):
        return ()
    from gapless.analyze.estimate.collective_times import ring_bytes  # which comes with the replay
    from gapless.analyze.estimate.programme_steps import recorded_steps

    whole = recorded_steps(programme, steps) if steps.seen else []
    totals: defaultdict[Traffic, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for step in whole:
        for entry in step:
            if entry.kind == "collective":
                total, (sent, received) = totals[_key(entry)], ring_bytes(entry)
                total[0] += 1
                total[1] += sent
                total[2] += received
    rows = [_mean(key, total, len(whole)) for key, total in totals.items()]
    return tuple(sorted(rows, key=lambda row: -(row.sent + row.received)))


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

"""Estimate a step in which a part is replaced by a replay of a captured graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from gapless.analyze.estimate.draws import draw_machines, interval
from gapless.analyze.estimate.machine import run_and_model
from gapless.analyze.estimate.programme_steps import Step, choose_steps
from gapless.analyze.estimate.timing import Times
from gapless.model.estimate import Range
from gapless.model.programme import Entry, Programme
from gapless.replay.change import ReplayChange
from gapless.replay.model import ReplayRefusal


class ReplaySavings(NamedTuple):
    """The length of a step, and the time saved by replaying each part, or everything, as a graph."""

    step: Range
    each: tuple[Range, ...]
    whole: Range


class _StepLengths(NamedTuple):
    """The length of a step in nanoseconds on the likely machine, and on each drawn one."""

    likely: float
    drawn: list[float]


def replay_savings(
    programme: Programme, step: Step, parts: Sequence[Sequence[int]], times: Times
) -> ReplaySavings | None:
    """Return the savings of a replay of each of `parts` (positions in `step`); None if no step can be run."""
    now = _step_lengths(programme, step, times)
    if now is None:
        return None
    each_spans = [_step_lengths(programme, capture_part(step, part), times) for part in parts]
    everything = [at for at, entry in enumerate(step) if entry.kind == "operator" and not entry.graph]
    whole = _step_lengths(programme, capture_part(step, everything), times)
    return ReplaySavings(
        interval(now.likely, now.drawn),
        tuple(_savings_between(now, spans) for spans in each_spans if spans is not None),
        _savings_between(now, whole) if whole is not None else Range(),
    )


def capture_part(step: Step, part: Sequence[int]) -> Step:
    """Return `step` with the entries at these positions in one graph, launched at the last of them."""
    if not part:
        return step
    inside = set(part)
    members = [msgspec.structs.replace(step[at], graph=True) for at in part]
    launch = Entry(kind="graph", name="cudaGraphLaunch", tensors=len(members))
    entries: list[Entry] = []
    for at, entry in enumerate(step):
        if at == part[-1]:
            entries += launch, *members
        elif at not in inside:
            entries.append(entry)
    return tuple(entries)


def _step_lengths(programme: Programme, step: Step, times: Times) -> _StepLengths | None:
    """Run `step` on the likely machine and on each drawn one; None if it cannot be run."""
    order = choose_steps([step])
    timed = [[times.add_times(entry) for entry in step_] for step_ in order]
    answer = run_and_model(timed, programme.gpu, times.host)
    if isinstance(answer, ReplayRefusal):
        return None
    ran, model = answer
    entries_of_work = [
        ran.recorded_entries[correlation] for correlation in ran.timeline.work.correlation.tolist()
    ]
    no_rows, count = model.marked(()), len(order)
    drawn = [
        model.spans(ReplayChange(pace=pace))([no_rows])[0] / count
        for pace in draw_machines(entries_of_work, times.doubt, times.host_doubt)
    ]
    return _StepLengths(model.span() / count, drawn)


def _savings_between(now: _StepLengths, then: _StepLengths) -> Range:
    """Return the time that `then` saves over `now`, each drawn machine compared with itself."""
    drawn = [max(before - after, 0.0) for before, after in zip(now.drawn, then.drawn, strict=True)]
    return interval(max(now.likely - then.likely, 0.0), drawn)

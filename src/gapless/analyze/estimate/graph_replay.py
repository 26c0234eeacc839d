"""What a step takes where a part of it is one replay of a captured graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from gapless.analyze.estimate.draws import interval, paces
from gapless.analyze.estimate.machine import modelled
from gapless.analyze.estimate.programme_steps import Step, chosen
from gapless.analyze.estimate.timing import Times
from gapless.model.estimate import Range
from gapless.model.programme import Entry, Programme
from gapless.replay.change import Change
from gapless.replay.model import Refusal


class Saving(NamedTuple):
    """A step as it is, and what is saved of it by a replay of each part, and of all of it."""

    step: Range
    each: tuple[Range, ...]
    whole: Range


class _Spans(NamedTuple):
    likely: float
    drawn: list[float]


def savings(programme: Programme, step: Step, parts: Sequence[Sequence[int]], times: Times) -> Saving | None:
    """The saving of a replay of each of `parts` (positions in `step`); None where no step can be imagined."""
    now = _spans(programme, step, times)
    if now is None:
        return None
    each = [_spans(programme, captured(step, part), times) for part in parts]
    everything = [at for at, one in enumerate(step) if one.kind == "operator" and not one.graph]
    whole = _spans(programme, captured(step, everything), times)
    return Saving(
        interval(now.likely, now.drawn),
        tuple(_less(now, one) for one in each if one is not None),
        _less(now, whole) if whole is not None else Range(),
    )


def captured(step: Step, part: Sequence[int]) -> Step:
    """`step` with the entries at these positions in one graph, which is launched where the last of them
    is."""
    if not part:
        return step
    inside = set(part)
    held = [msgspec.structs.replace(step[at], graph=True) for at in part]
    launch = Entry(kind="graph", name="cudaGraphLaunch", tensors=len(held))
    found: list[Entry] = []
    for at, entry in enumerate(step):
        if at == part[-1]:
            found += launch, *held
        elif at not in inside:
            found.append(entry)
    return tuple(found)


def _spans(programme: Programme, step: Step, times: Times) -> _Spans | None:
    """What a step takes in the likely machine, and in each of those that are drawn."""
    order = chosen([step])
    timed = [[times.timed(entry) for entry in one] for one in order]
    answer = modelled(timed, programme.gpu, times.host)
    if isinstance(answer, Refusal):
        return None
    ran, model = answer
    asked = [ran.asked[one] for one in ran.timeline.work.correlation.tolist()]
    none, count = model.marked(()), len(order)
    drawn = [
        model.spans(Change(pace=pace))([none])[0] / count
        for pace in paces(asked, times.doubt, times.host_doubt)
    ]
    return _Spans(model.span() / count, drawn)


def _less(now: _Spans, then: _Spans) -> Range:
    """What is saved, machine by machine."""
    drawn = [max(one - other, 0.0) for one, other in zip(now.drawn, then.drawn, strict=True)]
    return interval(max(now.likely - then.likely, 0.0), drawn)

"""How much of a step could be captured in a CUDA graph, and what keeps the rest out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, takewhile

import msgspec

from gapless.analyze.estimate.graph_replay import Saving, savings
from gapless.analyze.estimate.programme_steps import Step, recorded
from gapless.analyze.estimate.timing import Times, times_of
from gapless.analyze.run.steps import Steps
from gapless.model import Session, SourceLine
from gapless.model.estimate import Range
from gapless.model.programme import Entry
from gapless.model.readiness import Obstacle, Readiness, Stretch
from gapless.rules import match_rule

MOST = 8
"""Stretches that are told of."""
_INPUT = (
    "copy it into a tensor that keeps its address: `static.copy_(batch, non_blocking=True)` before the replay"
)
_SOMETIMES = (
    "run these steps without the graph, or capture a separate graph for them; use `drop_last=True` if "
    "a batch is short"
)
_CHANGING = (
    "give the graph fixed shapes and the same operators in each step: pad, drop the last batch, or capture "
    "one graph per shape"
)


def readiness(session: Session, steps: Steps) -> Readiness | None:
    """What a graph could hold of the steps of `session`; None where that was not asked for."""
    programme = session.programme
    if programme is None or not programme.lines:
        return None
    if not steps.seen:
        return Readiness(refused="the run took no training step")
    whole = recorded(programme, steps)
    if not whole:
        return Readiness(refused="no complete steady step was recorded")
    times = times_of(programme)
    usual = _usual(whole)
    step = min(reversed(usual), key=lambda one: sum(map(_cuts, one)))
    if _replays(step):
        whole = _replaying(whole) or whole
        usual = _usual(whole)
    changing = _changing(step, usual)
    parts = list(_stretches(step, changing))
    launches = [sum(_launches(step[at], times) for at in part) for part in parts]
    ranked = sorted(zip(launches, parts, strict=True), key=lambda one: (-one[0], one[1]))[:MOST]
    saving = savings(programme, step, [part for _, part in ranked[:1]], times)
    return Readiness(
        launches=sum(_launches(one, times) for one in step),
        held=sum(_launches(one, times) for one in step if one.graph),
        stretches=tuple(
            Stretch(
                first=_line(step, part),
                last=_line(step, part[::-1]),
                launches=count,
                saved=_saved(saving, at),
            )
            for at, (count, part) in enumerate(ranked)
        ),
        obstacles=_all(_differing(step, whole, len(usual)), _obstacles(session, step, whole)),
        steps=len(whole),
        step=saving.step if saving is not None else None,
        whole=saving.whole if saving is not None else None,
    )


def _saved(saving: Saving | None, at: int) -> Range | None:
    return saving.each[at] if saving is not None and at < len(saving.each) else None


def _replays(step: Step) -> bool:
    return any(entry.graph for entry in step)


def _replaying(steps: Sequence[Step]) -> list[Step]:
    """Those that replay a graph: eager ones warm up for it, or are without it on purpose, and the first one
    behind them begins with the capture."""
    return [one for before, one in pairwise(steps) if _replays(before) and _replays(one)]


def _cuts(entry: Entry) -> bool:
    """Whether no graph goes beyond `entry`."""
    arrives = entry.kind == "copy" and entry.mechanism == "h2d" and not entry.graph
    return entry.kind in ("wait", "obstacle") or arrives


def _launches(entry: Entry, times: Times) -> int:
    """Kernels of `entry`, and the copy that it is; what arrives from the CPU is none of the graph's."""
    if entry.kind == "copy":
        return 0 if _cuts(entry) else 1
    return times.timed(entry).kernels if entry.kind == "operator" else 0


def _line(step: Step, positions: Sequence[int]) -> SourceLine | None:
    return next((step[at].line for at in positions if step[at].line is not None), None)


def _stretches(step: Step, changing: range) -> Iterator[list[int]]:
    """The positions of operators between what cuts; a step of an optimizer that is none to capture is out."""
    part: list[int] = []
    barred = False
    for at, entry in enumerate(step):
        barred = entry.optimizer and (barred or entry.kind == "obstacle")
        if barred or _cuts(entry) or at in changing or entry.kind == "graph" or entry.graph:
            if part:
                yield part
            part = []
        elif entry.kind in ("operator", "copy"):
            part.append(at)
    if part:
        yield part


def _all(differing: Iterable[Obstacle], cuts: Iterable[Obstacle]) -> tuple[Obstacle, ...]:
    """Both; but a sync for a size at the line from which shapes differ is what makes them differ."""
    found = tuple(cuts)
    known = {one.line for one in found if one.code}
    return (*(one for one in differing if one.line not in known), *found)


def _usual(whole: Sequence[Step]) -> Sequence[Step]:
    """The steps of the commonest form, where more than half have it; else all of them."""
    forms = [tuple(_form(entry) for entry in step if entry.kind == "operator") for step in whole]
    ((most, count),) = Counter(forms).most_common(1)
    if 2 * count <= len(whole):
        return whole
    return [step for step, form in zip(whole, forms, strict=True) if form == most]


def _differing(step: Step, whole: Sequence[Step], usual: int) -> Iterator[Obstacle]:
    """Where steps differ from one another: in all of them, or in those few that are not as `usual`."""
    at = next(iter(_changing(step, whole)), None)
    if at is None:
        return
    few = len(whole) - usual
    yield Obstacle(
        line=step[at].line,
        reason="operators or shapes change from step to step" if not few else "different operators or shapes",
        change=_SOMETIMES if few else _CHANGING,
        steps=few or len(whole),
    )


def _changing(step: Step, whole: Sequence[Step]) -> range:
    """The positions of `step` at which other steps do something else, or on other shapes."""
    own = [at for at, entry in enumerate(step) if entry.kind == "operator"]
    form = [_form(step[at]) for at in own]
    before = after = len(form)
    for other in whole:
        others = [_form(entry) for entry in other if entry.kind == "operator"]
        if others == form:
            continue
        before = min(before, _common(form, others))
        after = min(after, _common(form[::-1], others[::-1]))
    first, last = before, len(form) - after
    if before == len(form) and after == len(form):
        return range(0)
    last = max(last, first + 1)
    return range(own[min(first, len(own) - 1)], own[min(last, len(own)) - 1] + 1) if own else range(0)


def _form(entry: Entry) -> tuple[object, ...]:
    return entry.name, entry.dtype, entry.inputs, entry.outputs, entry.tensors, entry.backward


def _common(one: Sequence[object], other: Sequence[object]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _obstacles(session: Session, step: Step, whole: Sequence[Step]) -> Iterator[Obstacle]:
    """What cuts, each line and reason once, in the order of the step; then what only other steps have."""
    cuts = [[_obstacle(session, entry) for entry in one if _cuts(entry)] for one in (step, *whole)]
    found = {(one.line, one.reason): one for told in cuts[::-1] for one in told[::-1]}
    ordered = dict.fromkeys((one.line, one.reason) for told in cuts for one in told)
    for key in ordered:
        times = sum(any((one.line, one.reason) == key for one in told) for told in cuts[1:])
        yield msgspec.structs.replace(found[key], steps=times)


def _obstacle(session: Session, entry: Entry) -> Obstacle:
    if entry.kind == "copy":
        return Obstacle(line=entry.line, reason="a batch arrives from the CPU", change=_INPUT, input=True)
    if entry.kind == "obstacle":
        return Obstacle(line=entry.line, reason=entry.name, change=entry.detail)
    site = session.sites[entry.site]
    rule = match_rule(site)
    what = site.call or site.operator.rpartition("::")[2]
    arrives = site.mechanism == "h2d"
    return Obstacle(
        line=site.line or entry.line,
        reason=f"{what} copies from the CPU, which syncs" if arrives else f"the CPU waits: {what}",
        change=f"{rule.change_at(site)}; {_INPUT}" if arrives else rule.change_at(site),
        code=rule.code,
        input=arrives,
    )

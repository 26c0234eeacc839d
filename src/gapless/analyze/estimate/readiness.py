"""Find how much of a step a CUDA graph could capture, and what prevents the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, takewhile

import msgspec

from gapless.analyze.estimate.graph_replay import ReplaySavings, replay_savings
from gapless.analyze.estimate.programme_steps import Step, recorded_steps
from gapless.analyze.estimate.timing import Times, times_of
from gapless.analyze.run.steps import RunSteps
from gapless.model import Session, SourceLine
from gapless.model.estimate import Range
from gapless.model.programme import Entry
from gapless.model.readiness import Obstacle, Readiness, Stretch
from gapless.rules import match_rule

MAX_STRETCHES = 8
"""Stretches that are reported, those with the most launches."""
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


def assess_readiness(session: Session, steps: RunSteps) -> Readiness | None:
    """Assess what a graph could capture of the steps of `session`; None if that was not requested."""
    programme = session.programme
    if programme is None or not programme.lines:
        return None
    if not steps.seen:
        return Readiness(refused="the run took no training step")
    whole = recorded_steps(programme, steps)
    if not whole:
        return Readiness(refused="no complete steady step was recorded")
    times = times_of(programme)
    common = _common_form_steps(whole)
    step = min(reversed(common), key=lambda step_: sum(map(_ends_graph, step_)))
    if _replays(step):
        whole = _replaying_steps(whole) or whole
        common = _common_form_steps(whole)
    changing = _changing_positions(step, common)
    parts = list(_stretches(step, changing))
    launches = [sum(_count_kernels(step[at], times) for at in part) for part in parts]
    ranked = sorted(zip(launches, parts, strict=True), key=lambda stretch: (-stretch[0], stretch[1]))[
        :MAX_STRETCHES
    ]
    saving = replay_savings(programme, step, [part for _, part in ranked[:1]], times)
    return Readiness(
        launches=sum(_count_kernels(entry, times) for entry in step),
        held=sum(_count_kernels(entry, times) for entry in step if entry.graph),
        stretches=tuple(
            Stretch(
                first=_line(step, part),
                last=_line(step, part[::-1]),
                launches=count,
                saved=_saving_at(saving, at),
            )
            for at, (count, part) in enumerate(ranked)
        ),
        obstacles=_merge_obstacles(
            _difference_obstacles(step, whole, len(common)), _list_obstacles(session, step, whole)
        ),
        steps=len(whole),
        step=saving.step if saving is not None else None,
        whole=saving.whole if saving is not None else None,
    )


def _saving_at(saving: ReplaySavings | None, at: int) -> Range | None:
    return saving.each[at] if saving is not None and at < len(saving.each) else None


def _replays(step: Step) -> bool:
    return any(entry.graph for entry in step)


def _replaying_steps(steps: Sequence[Step]) -> list[Step]:
    """Return steps that replay a graph as their predecessor does: eager ones warm up for it or avoid it on
    purpose, and the first one after them begins with the capture."""
    return [step for before, step in pairwise(steps) if _replays(before) and _replays(step)]


def _ends_graph(entry: Entry) -> bool:
    """Whether a graph cannot continue past `entry`."""
    arrives = entry.kind == "copy" and entry.mechanism == "h2d" and not entry.graph
    return entry.kind in ("wait", "obstacle") or arrives


def _count_kernels(entry: Entry, times: Times) -> int:
    """Count the kernels or copies of `entry` in a graph; copies from the CPU stay outside of it."""
    if entry.kind == "copy":
        return 0 if _ends_graph(entry) else 1
    return times.add_times(entry).kernels if entry.kind == "operator" else 0


def _line(step: Step, positions: Sequence[int]) -> SourceLine | None:
    return next((step[at].line for at in positions if step[at].line is not None), None)


def _stretches(step: Step, changing: range) -> Iterator[list[int]]:
    """Yield the positions of operators between obstacles, without optimizer steps that cannot be captured."""
    part: list[int] = []
    barred = False
    for at, entry in enumerate(step):
        barred = entry.optimizer and (barred or entry.kind == "obstacle")
        if barred or _ends_graph(entry) or at in changing or entry.kind == "graph" or entry.graph:
            if part:
                yield part
            part = []
        elif entry.kind in ("operator", "copy"):
            part.append(at)
    if part:
        yield part


def _merge_obstacles(differing: Iterable[Obstacle], cuts: Iterable[Obstacle]) -> tuple[Obstacle, ...]:
    """Merge both, leaving out differing shapes at a line whose sync for a size explains them."""
    obstacles = tuple(cuts)
    lines = {obstacle.line for obstacle in obstacles if obstacle.code}
    return (*(obstacle for obstacle in differing if obstacle.line not in lines), *obstacles)


def _common_form_steps(whole: Sequence[Step]) -> Sequence[Step]:
    """Return the steps of the commonest form, if more than half have it, else all."""
    forms = [tuple(_form(entry) for entry in step if entry.kind == "operator") for step in whole]
    ((commonest, count),) = Counter(forms).most_common(1)
    if 2 * count <= len(whole):
        return whole
    return [step for step, form in zip(whole, forms, strict=True) if form == commonest]


def _difference_obstacles(step: Step, whole: Sequence[Step], usual: int) -> Iterator[Obstacle]:
    """Yield where steps differ: in all of them, or in the few that are not of the common form."""
    at = next(iter(_changing_positions(step, whole)), None)
    if at is None:
        return
    few = len(whole) - usual
    yield Obstacle(
        line=step[at].line,
        reason="operators or shapes change from step to step" if not few else "different operators or shapes",
        change=_SOMETIMES if few else _CHANGING,
        steps=few or len(whole),
    )


def _changing_positions(step: Step, whole: Sequence[Step]) -> range:
    """Return the positions of `step` at which other steps run something else, or on other shapes."""
    own = [at for at, entry in enumerate(step) if entry.kind == "operator"]
    form = [_form(step[at]) for at in own]
    before = after = len(form)
    for other in whole:
        other_form = [_form(entry) for entry in other if entry.kind == "operator"]
        if other_form == form:
            continue
        before = min(before, _common_prefix(form, other_form))
        after = min(after, _common_prefix(form[::-1], other_form[::-1]))
    first, last = before, len(form) - after
    if before == len(form) and after == len(form):
        return range(0)
    last = max(last, first + 1)
    return range(own[min(first, len(own) - 1)], own[min(last, len(own)) - 1] + 1) if own else range(0)


def _form(entry: Entry) -> tuple[object, ...]:
    return entry.name, entry.dtype, entry.inputs, entry.outputs, entry.tensors, entry.backward


def _common_prefix(first: Sequence[object], other: Sequence[object]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, other, strict=False)))


def _list_obstacles(session: Session, step: Step, whole: Sequence[Step]) -> Iterator[Obstacle]:
    """Yield obstacles, each line and reason once, in the step's order; then those of other steps only."""
    cuts = [[_obstacle(session, entry) for entry in step_ if _ends_graph(entry)] for step_ in (step, *whole)]
    by_key = {
        (obstacle.line, obstacle.reason): obstacle for obstacles in cuts[::-1] for obstacle in obstacles[::-1]
    }
    ordered = dict.fromkeys((obstacle.line, obstacle.reason) for obstacles in cuts for obstacle in obstacles)
    for key in ordered:
        times = sum(
            any((obstacle.line, obstacle.reason) == key for obstacle in obstacles) for obstacles in cuts[1:]
        )
        yield msgspec.structs.replace(by_key[key], steps=times)


def _obstacle(session: Session, entry: Entry) -> Obstacle:
    if entry.kind == "copy":
        return Obstacle(line=entry.line, reason="a batch arrives from the CPU", change=_INPUT, input=True)
    if entry.kind == "obstacle":
        return Obstacle(line=entry.line, reason=entry.name, change=entry.detail)
    site = session.sites[entry.site]
    rule = match_rule(site)
    operation = site.call or site.operator.rpartition("::")[2]
    arrives = site.mechanism == "h2d"
    return Obstacle(
        line=site.line or entry.line,
        reason=f"{operation} copies from the CPU, which syncs" if arrives else f"the CPU waits: {operation}",
        change=f"{rule.change_at(site)}; {_INPUT}" if arrives else rule.change_at(site),
        code=rule.code,
        input=arrives,
    )

"""Steps: which marks of a session end one, and which step a tick belongs to."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import msgspec

from gapless.analyze.run.loop import ReadSource
from gapless.analyze.run.turns import are_in_turn
from gapless.files.input import source_text
from gapless.model import Event, StepMark
from gapless.model.source import user_line
from gapless.model.tally import ADVANCING, PLACE_SEPARATOR, StepTally, StrandTally, step_ends

__all__ = ["WARM_UP", "RunSteps", "StepTally", "find_steps"]

WARM_UP = 2
"""Steps that do not count for frequencies: caches fill, and optimizers create their state."""

_MAX_OTHERS_NAMED = 3
"""Optimizers named that step along with the one that ends a step."""
_MAX_IN_TURN_NAMED = 4
"""Optimizers named that end steps in turn."""


@dataclass(frozen=True)
class TrainingStrand:
    """A thread or asyncio task that trains beside others.

    `ticks` are the session's ticks of its marks; `begin` is where its ticks start in `RunSteps`, where
    strands come one after the other.
    """

    ticks: tuple[int, ...]
    begin: int


@dataclass(frozen=True)
class RunSteps:
    """The steps of a run; `ends` holds for each the number of tick-advancing marks before its last one.

    `mixed` are steps that contain more than a step, such as a rollout. If several threads train side by side,
    the steps of one thread follow those of another: `firsts` are the first steps of each thread, and
    `assign_ticks` moves the session's events accordingly.
    """

    ends: tuple[int, ...] = ()
    source: str = ""
    marks: tuple[StepMark, ...] = ()
    mixed: frozenset[int] = frozenset()
    firsts: tuple[int, ...] = (0,)
    strands: dict[int, TrainingStrand] = field(default_factory=dict)

    @property
    def seen(self) -> int:
        """Number of steps."""
        return len(self.ends)

    @property
    def parts(self) -> list[range]:
        """The steps of each thread."""
        return [range(first, end) for first, end in pairwise((*self.firsts, self.seen))]

    @property
    def steady(self) -> Sequence[int]:
        """The steps that count for frequencies: all but the first ones, and at least one."""
        if len(self.firsts) == 1:
            return _steady_steps(range(self.seen))
        return [step for part in self.parts for step in _steady_steps(part)]

    def steady_with(self, counts: Mapping[int, int]) -> Sequence[int]:
        """Return the steady steps of the threads that have any of `counts`, by step; of all if none has."""
        if len(self.firsts) == 1:
            return self.steady
        parts = [part for part in self.parts if any(counts.get(step) for step in part)]
        return [step for part in parts for step in _steady_steps(part)] or self.steady

    def of(self, tick: int) -> int:
        """Return the step (from 0) that contains `tick`; `seen` for what comes after the last step."""
        return bisect_left(self.ends, tick)

    def assign_ticks(self, events: Sequence[Event], parents: Sequence[int]) -> tuple[Event, ...]:
        """Return `events` with ticks counted within their thread, in order of time.

        Events of a thread without steps belong to the thread that started it, finally to the first.
        """
        if not self.strands:
            return tuple(events)
        last = max(strand.begin + len(strand.ticks) for strand in self.strands.values())
        return tuple(
            msgspec.structs.replace(
                event, tick=_tick_in_order(event.tick, self._strand(event, parents), last)
            )
            for event in events
        )

    def loop_of(self, event: Event, parents: Sequence[int]) -> int:
        """Return which of the training loops side by side `event` belongs to, from 0; -1 if there is one."""
        if not self.strands:
            return -1
        begins = sorted({strand.begin for strand in self.strands.values()})
        return begins.index(self._strand(event, parents).begin)

    def _strand(self, event: Event, parents: Sequence[int]) -> TrainingStrand:
        """Return the strand of `event`: its own thread's, or that of the thread that started it."""
        number = event.strand
        while number not in self.strands and 0 < number < len(parents):
            number = parents[number]
        return self.strands.get(number) or next(iter(self.strands.values()))


def _steady_steps(part: range) -> range:
    """Return `part` without its warm-up steps, but at least one step."""
    return part[min(WARM_UP, max(len(part) - 1, 0)) :]


def _tick_in_order(tick: int, strand: TrainingStrand, last: int) -> int:
    """Return `tick` of the session as a tick of `strand`; `last` if its strand is over."""
    own = bisect_left(strand.ticks, tick)
    return strand.begin + own if own < len(strand.ticks) else last


def find_steps(marks: Iterable[StepMark], read: ReadSource = source_text) -> RunSteps:
    """Return the steps that `marks`, in order of time, define. `read` returns the text of source files."""
    marks = tuple(marks)
    tally = StepTally(partial(are_in_turn, read=read))
    for mark in marks:
        tally.add(mark)
    advancing = [mark for mark in marks if mark.kind in ADVANCING]
    parts = list(step_ends(advancing, tally))
    chosen = tuple(advancing[position] for _, positions in parts for position in positions)
    source = _source(tally, chosen[-1]) if chosen else ""
    if len(parts) < 2:
        return RunSteps(tuple(position for _, positions in parts for position in positions), source, chosen)
    return _side_by_side(advancing, tally, parts, RunSteps(source=source, marks=chosen))


def _side_by_side(
    advancing: Sequence[StepMark],
    tally: StepTally,
    parts: list[tuple[frozenset[int], list[int]]],
    steps: RunSteps,
) -> RunSteps:
    """Return `steps` with those of several threads, one thread after the other."""
    ends: list[int] = []
    firsts: list[int] = []
    strands: dict[int, TrainingStrand] = {}
    begin = 0
    for numbers, positions in parts:
        ticks = [at for at, mark in enumerate(advancing) if tally.strand_of(mark.strand) in numbers]
        firsts.append(len(ends))
        ends += [begin + bisect_left(ticks, position) for position in positions]
        own = {mark.strand for mark in advancing if tally.strand_of(mark.strand) in numbers}
        strands.update(dict.fromkeys(sorted(own), TrainingStrand(tuple(ticks), begin)))
        begin += len(ticks)
    return replace(steps, ends=tuple(ends), firsts=tuple(firsts), strands=strands)


def _source(tally: StepTally, last: StepMark) -> str:
    """Say what ends a step, for example ``Adam.step`` or ``gapless.step()``."""
    kind = tally.kind
    if kind == "user":
        return "gapless.step()"
    if kind == "profiler":
        return "profiler.step()"
    if kind == "gradients":
        return "a backward pass (no optimizer)"
    if kind == "forward":
        return f"a call of {last.name or 'a module'}"
    if kind == "wait":
        line = user_line(last.stack)
        return f"the sync at {line.short}" if line is not None else "a sync"
    return " and ".join(dict.fromkeys(_optimizers(tally, strand) for _, strand in tally.strands(kind)))


def _optimizers(tally: StepTally, strand: StrandTally) -> str:
    """Say which optimizers end the steps of a strand, and how often others step in each."""
    defining = strand.defining("optimizer")
    optimizers = [name for name, stepper in strand.steppers.items() if stepper.kind == "optimizer"]
    places = {name.partition(PLACE_SEPARATOR)[0] for name in optimizers}
    if len(places) == 1 < len(optimizers) and len(defining) == 1:
        kind = places.pop().split("#")[0]
        return f"{kind} (at {len(optimizers)} lines of the loop)"
    names = [name for name in optimizers if name in defining]
    rest = [name for name in optimizers if name not in defining]
    label = _labels(optimizers)
    source = " or ".join(label[name] for name in names)
    if len(names) > _MAX_IN_TURN_NAMED:
        kinds = dict.fromkeys(name.split("#")[0] for name in names)
        source = f"one of {len(names)} optimizers ({', '.join(kinds)})"
    elif len(names) == 1:
        source += _members(tally, names[0])
    if not rest:
        return source
    steps = sum(strand.steppers[name].count for name in names)
    turns = {name: max(1, round(strand.steppers[name].count / steps)) for name in rest}
    if len(rest) > _MAX_OTHERS_NAMED:
        return f"{source} (with {sum(turns.values())} of {len(rest)} other optimizers to each)"
    turns_text = " and ".join(f"{turn} of {label[name]}" for name, turn in turns.items())
    return f"{source} (with {turns_text} to each)"


def _members(tally: StepTally, lead: str) -> str:
    """Name the optimizers that step together with `lead`."""
    members = [name for name, first in tally.leads.items() if first == lead]
    kinds = {name.split("#")[0] for name in members} - {lead.split("#")[0]}
    if len(members) == 1 and kinds:
        return f" and {kinds.pop()}"
    return f" and those of {len(members)} other optimizers" if members else ""


def _labels(names: Sequence[str]) -> dict[str, str]:
    """Map ``Adam.step#0`` to ``Adam.step``, or to ``the 1st Adam.step`` if there are several."""
    kinds: dict[str, list[str]] = {}
    for name in sorted(names):
        kinds.setdefault(name.split("#")[0], []).append(name)
    labels = {}
    for kind, members in kinds.items():
        for position, name in enumerate(members, 1):
            ordinal = {1: "1st", 2: "2nd", 3: "3rd"}.get(position, f"{position}th")
            labels[name] = kind if len(members) == 1 else f"the {ordinal} {kind}"
    return labels

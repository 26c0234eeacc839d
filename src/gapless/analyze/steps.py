"""Steps: which of a session's marks end one, and to which step a tick belongs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gapless.model import Mark, user_line

WARM_UP = 2
"""Steps that do not count for frequencies: caches fill and optimizers make their state in them."""

_RAREST = 10
"""An optimizer that steps more than this many times less often than another does not define the iteration."""

_NAMED = 3
"""Up to so many other optimizers are named that step with the one that ends a step."""

_ADVANCING = ("optimizer", "profiler", "user", "gradients")
_IN_TURN = ("optimizer", "gradients")
"""Kinds of marks of which several may make one step together."""


@dataclass
class _Stepper:
    """The marks of one optimizer, or of one line's backward passes: how many, and where the first and the
    last stand among all of their `kind`."""

    kind: str
    first: int
    last: int
    count: int = 1


@dataclass
class StepTally:
    """Counts steps while marks arrive, so that a running capture and its analysis agree on what a step is."""

    seen: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_ADVANCING, 0))
    steppers: dict[str, _Stepper] = field(default_factory=dict)

    def add(self, mark: Mark) -> None:
        """Take note of `mark`; one that advances no tick is ignored."""
        if mark.kind not in self.seen:
            return
        if mark.kind in _IN_TURN:
            position, name = self.seen[mark.kind], _name(mark)
            stepper = self.steppers.get(name)
            if stepper is None:
                self.steppers[name] = _Stepper(mark.kind, position, position)
            else:
                stepper.last = position
                stepper.count += 1
        self.seen[mark.kind] += 1

    @property
    def kind(self) -> str:
        """The kind of mark that ends steps: the user's word first, then the profiler's, then optimizers', and
        where there are none that of backward passes."""
        if self.seen["user"]:
            return "user"
        # A profiler that was stepped for a part of the run only, or once an epoch, does not tell steps.
        if 2 * self.seen["profiler"] >= max(1, self._steps_in_turn()):
            return "profiler"
        return self._in_turn

    @property
    def count(self) -> int:
        """Steps ended so far."""
        kind = self.kind
        return self._steps_in_turn() if kind in _IN_TURN else self.seen[kind]

    @property
    def _in_turn(self) -> str:
        return "gradients" if self.seen["gradients"] and not self.seen["optimizer"] else "optimizer"

    def _steps_in_turn(self) -> int:
        return sum(self.steppers[name].count for name in self.defining())

    def defining(self) -> frozenset[str]:
        """The optimizers whose steps end an iteration.

        Optimizers that take turns make one iteration together; it ends with the one that steps least often,
        or with the last in turn where they step equally often. Optimizers used one after the other, as in
        pre-training and fine-tuning, each end their own iterations.
        """
        chosen: set[str] = set()
        group: list[str] = []
        group_end = -1
        kind = self._in_turn
        steppers = {name: stepper for name, stepper in self.steppers.items() if stepper.kind == kind}
        for name, stepper in sorted(steppers.items(), key=lambda item: item[1].first):
            if group and stepper.first > group_end:
                chosen.add(self._last_in_turn(group))
                group = []
            group.append(name)
            group_end = max(group_end, stepper.last)
        if group:
            chosen.add(self._last_in_turn(group))
        return frozenset(chosen)

    def _last_in_turn(self, group: Sequence[str]) -> str:
        most = max(self.steppers[name].count for name in group)
        often = [name for name in group if self.steppers[name].count * _RAREST >= most]
        return min(often, key=lambda name: (self.steppers[name].count, -self.steppers[name].first))


@dataclass(frozen=True)
class Steps:
    """The steps of a run; `ends` holds, for each, the number of tick-advancing marks before its last one.

    `mixed` are the steps in which there is more than a step, such as a rollout.
    """

    ends: tuple[int, ...] = ()
    source: str = ""
    marks: tuple[Mark, ...] = ()
    mixed: frozenset[int] = frozenset()

    @property
    def seen(self) -> int:
        return len(self.ends)

    @property
    def steady(self) -> range:
        """The steps that count for frequencies: all but the first ones, and always at least one."""
        return range(min(WARM_UP, max(self.seen - 1, 0)), self.seen)

    def of(self, tick: int) -> int:
        """The step (from 0) that `tick` falls into; `seen` for what comes after the last step."""
        return bisect_left(self.ends, tick)


def find_steps(marks: Iterable[Mark]) -> Steps:
    """The steps told by `marks`, which are in order of time."""
    advancing = [mark for mark in marks if mark.kind in _ADVANCING]
    tally = StepTally()
    for mark in advancing:
        tally.add(mark)
    kind, names = tally.kind, tally.defining()
    chosen = [
        (position, mark)
        for position, mark in enumerate(advancing)
        if mark.kind == kind and (kind not in _IN_TURN or _name(mark) in names)
    ]
    return Steps(
        ends=tuple(position for position, _ in chosen),
        source=_source(tally) if chosen else "",
        marks=tuple(mark for _, mark in chosen),
    )


def _name(mark: Mark) -> str:
    """What tells marks of a kind apart: the optimizer, or the user's line that made the gradients."""
    if mark.name:
        return mark.name
    line = user_line(mark.stack)
    return line.where if line is not None else mark.kind


def _source(tally: StepTally) -> str:
    if tally.kind == "user":
        return "gapless.step()"
    if tally.kind == "profiler":
        return "profiler.step()"
    if tally.kind == "gradients":
        return "a backward pass (no optimizer)"
    defining = tally.defining()
    optimizers = [name for name, stepper in tally.steppers.items() if stepper.kind == "optimizer"]
    names = [name for name in optimizers if name in defining]
    others = [name for name in optimizers if name not in defining]
    label = _labels(optimizers)
    source = " or ".join(label[name] for name in names)
    if not others:
        return source
    steps = sum(tally.steppers[name].count for name in names)
    turns = {name: max(1, round(tally.steppers[name].count / steps)) for name in others}
    if len(others) > _NAMED:
        return f"{source} (with {sum(turns.values())} of {len(others)} other optimizers to each)"
    told = " and ".join(f"{turn} of {label[name]}" for name, turn in turns.items())
    return f"{source} (with {told} to each)"


def _labels(names: Sequence[str]) -> dict[str, str]:
    """``Adam.step#0`` as ``Adam.step``, or as ``the 1st Adam.step`` where there are several."""
    kinds: dict[str, list[str]] = {}
    for name in sorted(names):
        kinds.setdefault(name.split("#")[0], []).append(name)
    labels = {}
    for kind, members in kinds.items():
        for position, name in enumerate(members, 1):
            ordinal = {1: "1st", 2: "2nd", 3: "3rd"}.get(position, f"{position}th")
            labels[name] = kind if len(members) == 1 else f"the {ordinal} {kind}"
    return labels

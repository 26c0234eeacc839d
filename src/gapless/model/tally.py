"""`StepTally`: which marks end a training step, told while they arrive.

The capture, what it records of memory, and the analysis all count with this class, so that they agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from gapless.model.event import Mark
from gapless.model.source import Stack, user_line

UNTRAINED = ("forward", "wait")
"""Kinds of marks that end iterations where nothing is trained."""
ADVANCING = ("optimizer", "profiler", "user", "gradients", *UNTRAINED)
"""Kinds of marks that advance the tick."""
IN_TURN = ("optimizer", "gradients", *UNTRAINED)
"""Kinds of marks of which several may make one step together."""

_RAREST = 10
"""An optimizer that steps more than this many times less often than another does not define the iteration;
nor does a thread that steps so much less often than another say how many steps were seen."""

_FEWEST_WAITS = 4
"""Times that a wait recurs where it is in a loop of iterations."""
_RAREST_CALL = 2
"""Likewise for calls of modules: the innermost loop that runs a model makes the iterations."""
_MOST_PLACES = 32
"""Places at which one optimizer steps that are told apart."""

PLACE = "@"
"""Between an optimizer's name and the number of the place where it takes turns with itself."""

InTurn = Callable[[Stack, Stack], bool]

_SILENT = 20
"""Marks of other threads, for each of those, after which a thread that marks nothing is taken to be over."""

_FEWEST_IN_A_ROW = 2
"""Steps of a thread that ended before another began, from which on they are taken to train one after the
other: side by side, each soon has its turn."""


@dataclass
class Stepper:
    """The marks of the optimizers that step together, or of one line's backward passes: how many, and where
    the first and the last stand among all of their `kind`."""

    kind: str
    first: int
    last: int
    count: int = 1

    def join(self, other: Stepper) -> None:
        """Take over the marks of `other`."""
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)
        self.count += other.count


@dataclass
class StrandTally:
    """The steppers of one thread or asyncio task, by name, and its marks by kind."""

    steppers: dict[str, Stepper] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ADVANCING, 0))
    first: int = -1
    last: int = -1

    def led(self, leads: dict[str, str]) -> StrandTally:
        """The same with steppers that step together as one, by the first of them."""
        made = StrandTally(seen=dict(self.seen), first=self.first, last=self.last)
        for name, one in self.steppers.items():
            lead = _led(name, leads)
            stepper = Stepper(one.kind, one.first, one.last, one.count)
            if lead in made.steppers:
                made.steppers[lead].join(stepper)
            else:
                made.steppers[lead] = stepper
        return made

    def join(self, other: StrandTally) -> None:
        """Take over what `other` has counted."""
        self.first = other.first if self.first < 0 else self.first
        for name, stepper in other.steppers.items():
            if name in self.steppers:
                self.steppers[name].join(stepper)
            else:
                self.steppers[name] = stepper
        for kind, number in other.seen.items():
            self.seen[kind] += number
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)

    def defining(self, kind: str) -> frozenset[str]:
        """The steppers of `kind` whose marks end an iteration.

        Those that take turns make one iteration together; it ends with the one that steps least often, or
        with the last in turn where they step equally often. Those used one after the other, as in
        pre-training and fine-tuning, each end their own iterations.
        """
        chosen: set[str] = set()
        group: list[str] = []
        group_end = -1
        steppers = {name: stepper for name, stepper in self.steppers.items() if stepper.kind == kind}
        for name, stepper in sorted(steppers.items(), key=lambda item: item[1].first):
            if group and stepper.first > group_end:
                chosen.add(self._last_in_turn(group))
                group = []
            group.append(name)
            group_end = max(group_end, stepper.last)
        if group:
            chosen.add(self._last_in_turn(group))
        if kind in UNTRAINED:  # a call before the loop, or for each pass of it, is none of its iterations
            most = max((steppers[name].count for name in chosen), default=0)
            chosen = {name for name in chosen if steppers[name].count * _RAREST >= most}
        if kind == "wait" and chosen:  # one loop alone: others only prepare it
            most, _, name = max((steppers[name].count, steppers[name].first, name) for name in chosen)
            chosen = {name} if most >= _FEWEST_WAITS else set()
        return frozenset(chosen)

    def _last_in_turn(self, group: Sequence[str]) -> str:
        most = max(self.steppers[name].count for name in group)
        rarest = _RAREST_CALL if self.steppers[group[0]].kind == "forward" else _RAREST
        often = [name for name in group if self.steppers[name].count * rarest >= most]
        return min(often, key=lambda name: (self.steppers[name].count, -self.steppers[name].first))

    def steps_in_turn(self, kind: str) -> int:
        """Iterations that marks of `kind` have ended."""
        return sum(self.steppers[name].count for name in self.defining(kind))


class StepTally:
    """Counts steps while marks arrive.

    Optimizers that step with the gradients of one backward pass are one `Stepper`: an iteration is what makes
    gradients and uses them, however many optimizers do. What trains side by side, threads and asyncio tasks,
    has steps of its own each (`strands`), unless it steps the same optimizer. `in_turn` says of two stacks
    whether each pass of one loop comes to both: an optimizer that steps at both takes turns with itself.
    """

    def __init__(self, in_turn: InTurn = lambda one, other: False) -> None:
        self.seen: dict[str, int] = dict.fromkeys(ADVANCING, 0)
        self._in_each_pass = in_turn
        self._places: dict[str, dict[Stack, int]] = {}
        self._strands: dict[int, StrandTally] = {}
        self._joined: dict[int, int] = {}
        self._home: dict[str, int] = {}
        self._before: dict[int, str] = {}
        self._steps: Counter[str] = Counter()
        self._together: Counter[tuple[str, str]] = Counter()
        self._leads: dict[str, str] | None = None

    def add(self, mark: Mark) -> None:
        """Take note of `mark`; one that advances no tick, and is no optimizer's, is ignored."""
        if mark.kind == "along":
            self._along(mark)
            return
        if mark.kind not in self.seen:
            return
        name = self._at_place(mark)
        strand = self._strand(mark)
        position = self.seen[mark.kind]
        stepper = strand.steppers.get(name)
        if stepper is None:
            strand.steppers[name] = Stepper(mark.kind, position, position)
        else:
            stepper.last = position
            stepper.count += 1
        if mark.kind == "optimizer":
            self._before[mark.strand] = mark.name
            self._steps[mark.name] += 1
            self._leads = None
        self.seen[mark.kind] += 1
        strand.seen[mark.kind] += 1
        place = sum(self.seen.values())
        strand.first = place if strand.first < 0 else strand.first
        strand.last = place

    def _along(self, mark: Mark) -> None:
        lead = self._before.get(mark.strand)
        if lead is not None:
            self._strand(mark)
            self._steps[mark.name] += 1
            self._together[lead, mark.name] += 1
            self._leads = None

    def name(self, mark: Mark) -> str:
        """What tells marks of a kind apart: the optimizers, by the first of those that step together, or the
        user's line that made the gradients."""
        return _led(self._at_place(mark), self.leads)

    @property
    def leads(self) -> dict[str, str]:
        """Of each optimizer that steps with others the first of those.

        They do where they are together in half of the steps of the one that steps less often: all optimizers
        may step once before the training begins, to make their state.
        """
        if self._leads is None:
            leads: dict[str, str] = {}
            for (lead, other), times in self._together.items():
                if 2 * times >= min(self._steps[lead], self._steps[other]):
                    one, two = _first_of(leads, lead), _first_of(leads, other)
                    if one != two:
                        leads[two] = one
            self._leads = {name: _first_of(leads, name) for name in leads}
        return self._leads

    def _at_place(self, mark: Mark) -> str:
        """The name of `mark`, with the number of the place where an optimizer takes turns with itself."""
        if mark.kind != "optimizer" or not mark.stack:
            return _name(mark)
        places = self._places.setdefault(mark.name, {})
        number = places.get(mark.stack)
        if number is None:
            number = 0
            if len(places) < _MOST_PLACES:
                turns = {at for stack, at in places.items() if self._in_each_pass(stack, mark.stack)}
                number = next(at for at in range(len(turns) + 1) if at not in turns)
                places[mark.stack] = number
        return f"{mark.name}{PLACE}{number}" if number else mark.name

    def strand_of(self, number: int) -> int:
        """The strand whose steps are those of strand `number`."""
        while number in self._joined:
            number = self._joined[number]
        return number

    def _strand(self, mark: Mark) -> StrandTally:
        """The tally of the strand that `mark` was made in; strands that step the same optimizer are one."""
        number = self.strand_of(mark.strand)
        if mark.kind in ("optimizer", "along"):
            home = self.strand_of(self._home.setdefault(mark.name, number))
            if home != number:
                self._joined[number] = home
                joined = self._strands.pop(number, None)
                if joined is not None:
                    self._strands[home].join(joined)
                number = home
        return self._strands.setdefault(number, StrandTally())

    # -- what ends steps -----------------------------------------------------------------------------

    @property
    def kind(self) -> str:
        """The kind of mark that ends steps: the user's word first, then the profiler's, then optimizers', and
        where there are none that of backward passes."""
        if self.seen["user"]:
            return "user"
        # A profiler that was stepped for a part of the run only, or once an epoch, does not tell steps.
        if 2 * self.seen["profiler"] >= max(1, self._steps_of_all()):
            return "profiler"
        return self._in_turn

    @property
    def _in_turn(self) -> str:
        return next((kind for kind in IN_TURN if self.seen[kind]), "optimizer")

    def _steps_of_all(self) -> int:
        return sum(strand.steps_in_turn(self._in_turn) for _, strand in self.strands(self._in_turn))

    def strands(self, kind: str = "") -> list[tuple[frozenset[int], StrandTally]]:
        """The strands that each have steps of their own, with their numbers; one where there is no telling.

        >>> tally = StepTally()
        >>> [numbers for numbers, _ in tally.strands()]
        []
        """
        kind = kind or self.kind
        leads = self.leads
        stepping = {
            number: strand.led(leads) for number, strand in self._strands.items() if strand.seen[kind]
        }
        if len(stepping) == 1:
            return [(frozenset({number}), strand) for number, strand in stepping.items()]
        if not stepping or _one_after_the_other(list(stepping.values()), kind):
            whole = StrandTally()
            for strand in sorted(stepping.values(), key=lambda one: one.first):
                whole.join(strand)
            return [(frozenset(stepping), whole)] if stepping else []
        return [(frozenset({number}), strand) for number, strand in stepping.items()]

    @property
    def count(self) -> int:
        """Steps ended so far; where several threads train, those of the one that has made fewest."""
        kind = self.kind
        counts = [(_steps(strand, kind), strand.last) for _, strand in self.strands(kind)]
        most, now = max((each for each, _ in counts), default=0), sum(self.seen.values())
        patience = _SILENT * len(counts)
        at_work = [each for each, last in counts if each * _RAREST >= most and now - last <= patience]
        return min(at_work, default=most)


def _steps(strand: StrandTally, kind: str) -> int:
    return strand.steps_in_turn(kind) if kind in IN_TURN else strand.seen[kind]


def _name(mark: Mark) -> str:
    if mark.name and mark.kind != "forward":
        return mark.name
    line = user_line(mark.stack)
    return line.where if line is not None else mark.kind


def _led(name: str, leads: dict[str, str]) -> str:
    own, mark, number = name.partition(PLACE)
    return f"{leads.get(own, own)}{mark}{number}"


def _first_of(leads: dict[str, str], name: str) -> str:
    while name in leads:
        name = leads[name]
    return name


def _one_after_the_other(strands: Iterable[StrandTally], kind: str) -> bool:
    """Whether each strand begins when the one before has ended."""
    ordered = sorted(strands, key=lambda one: one.first)
    return all(
        before.last < after.first and before.seen[kind] >= _FEWEST_IN_A_ROW
        for before, after in pairwise(ordered)
    )


def step_ends(marks: Sequence[Mark], tally: StepTally) -> Iterator[tuple[frozenset[int], list[int]]]:
    """For each strand that has steps of its own, the positions in `marks` of those that end them.

    `tally` has counted all of `marks`.
    """
    kind = tally.kind
    for numbers, strand in tally.strands(kind):
        names = strand.defining(kind) if kind in IN_TURN else frozenset()
        yield (
            numbers,
            [
                position
                for position, mark in enumerate(marks)
                if mark.kind == kind
                and tally.strand_of(mark.strand) in numbers
                and (kind not in IN_TURN or tally.name(mark) in names)
            ],
        )

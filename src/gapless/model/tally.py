"""`StepTally`: find which marks end a training step, while they arrive.

The capture, the memory recording and the analysis all count with this class, so that they agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from gapless.model.event import StepMark
from gapless.model.source import Stack, user_line

UNTRAINED = ("forward", "wait")
"""Kinds of marks that end iterations if nothing is trained."""
ADVANCING = ("optimizer", "profiler", "user", "gradients", *UNTRAINED)
"""Kinds of marks that advance the tick."""
IN_TURN = ("optimizer", "gradients", *UNTRAINED)
"""Kinds of marks of which several may form one step together."""

_MAX_STEP_RATIO = 10
"""An optimizer that steps more than this many times less often than another does not define the iteration;
nor does a thread that steps so much less often than another say how many steps were seen."""

_MIN_WAITS = 4
"""Recurrences of a wait that show a loop of iterations."""
_MAX_CALL_RATIO = 2
"""The same ratio for calls of modules: the innermost loop that runs a model makes the iterations."""
_MAX_PLACES = 32
"""Places at which one optimizer steps that are distinguished."""

PLACE_SEPARATOR = "@"
"""Separates an optimizer's name from the number of the place where it takes turns with itself."""

InTurn = Callable[[Stack, Stack], bool]

_MAX_SILENT_MARKS = 20
"""Marks of each other thread after which a silent thread counts as ended."""

_MIN_STEPS_IN_A_ROW = 2
"""Steps of a thread that ended before another began, from which on they are taken to train one after the
other: side by side, each soon has its turn."""


@dataclass
class Stepper:
    """The marks of the optimizers that step together, or of one line's backward passes: their number, and
    the positions of the first and the last among all marks of their `kind`."""

    kind: str
    first: int
    last: int
    count: int = 1

    def join(self, other: Stepper) -> None:
        """Add the marks of `other`."""
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)
        self.count += other.count


@dataclass
class StrandTally:
    """The steppers of one thread or asyncio task, by name, and its marks by kind."""

    steppers: dict[str, Stepper] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ADVANCING, 0))
    first: int = -1
    last: int = -1

    def merge_leads(self, leads: dict[str, str]) -> StrandTally:
        """Return a copy in which optimizers that step together are one stepper, named for the first."""
        merged = StrandTally(seen=dict(self.seen), first=self.first, last=self.last)
        for name, stepper_before in self.steppers.items():
            lead = _lead_name(name, leads)
            stepper = Stepper(
                stepper_before.kind, stepper_before.first, stepper_before.last, stepper_before.count
            )
            if lead in merged.steppers:
                merged.steppers[lead].join(stepper)
            else:
                merged.steppers[lead] = stepper
        return merged

    def join(self, other: StrandTally) -> None:
        """Add the counts of `other`."""
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
        """Return the steppers of `kind` whose marks end an iteration.

        Those that take turns form one iteration together; it ends with the one that steps least often, or
        with the last in turn if they step equally often. Those used one after the other, as in pre-training
        and fine-tuning, each end their own iterations.
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
            chosen = {name for name in chosen if steppers[name].count * _MAX_STEP_RATIO >= most}
        if kind == "wait" and chosen:  # one loop alone: others only prepare it
            most, _, name = max((steppers[name].count, steppers[name].first, name) for name in chosen)
            chosen = {name} if most >= _MIN_WAITS else set()
        return frozenset(chosen)

    def _last_in_turn(self, group: Sequence[str]) -> str:
        most = max(self.steppers[name].count for name in group)
        rarest = _MAX_CALL_RATIO if self.steppers[group[0]].kind == "forward" else _MAX_STEP_RATIO
        often = [name for name in group if self.steppers[name].count * rarest >= most]
        return min(often, key=lambda name: (self.steppers[name].count, -self.steppers[name].first))

    def steps_in_turn(self, kind: str) -> int:
        """Return the number of iterations that marks of `kind` have ended."""
        return sum(self.steppers[name].count for name in self.defining(kind))


class StepTally:
    """Counts steps while marks arrive.

    Optimizers that step with the gradients of one backward pass are one `Stepper`: an iteration computes
    gradients and uses them, with however many optimizers. Threads and asyncio tasks that train side by side
    have their own steps (`strands`), unless they step the same optimizer. `in_turn` says whether each pass of
    one loop reaches both of two stacks: an optimizer that steps at both takes turns with itself.
    """

    def __init__(self, in_turn: InTurn = lambda first, second: False) -> None:
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

    def add(self, mark: StepMark) -> None:
        """Count `mark`; marks that advance no tick and belong to no optimizer are ignored."""
        if mark.kind == "along":
            self._count_joint_step(mark)
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

    def _count_joint_step(self, mark: StepMark) -> None:
        """Count a step that an optimizer makes with gradients that another of its strand has just used."""
        lead = self._before.get(mark.strand)
        if lead is not None:
            self._strand(mark)
            self._steps[mark.name] += 1
            self._together[lead, mark.name] += 1
            self._leads = None

    def name(self, mark: StepMark) -> str:
        """Return what distinguishes marks of a kind: the optimizer (of several that step together, the
        first), or the user's line that made the gradients.
        """
        return _lead_name(self._at_place(mark), self.leads)

    @property
    def leads(self) -> dict[str, str]:
        """For each optimizer that steps with others, the first of them.

        They step together if they do so in half of the steps of the rarer one: all optimizers may step once
        before training, to create their state.
        """
        if self._leads is None:
            leads: dict[str, str] = {}
            for (lead, other), times in self._together.items():
                if 2 * times >= min(self._steps[lead], self._steps[other]):
                    lead_root, other_root = _first_of(leads, lead), _first_of(leads, other)
                    if lead_root != other_root:
                        leads[other_root] = lead_root
            self._leads = {name: _first_of(leads, name) for name in leads}
        return self._leads

    def _at_place(self, mark: StepMark) -> str:
        """Return the name of `mark`, with the number of the place where an optimizer takes turns with
        itself."""
        if mark.kind != "optimizer" or not mark.stack:
            return _name(mark)
        places = self._places.setdefault(mark.name, {})
        number = places.get(mark.stack)
        if number is None:
            number = 0
            if len(places) < _MAX_PLACES:
                turns = {at for stack, at in places.items() if self._in_each_pass(stack, mark.stack)}
                number = next(at for at in range(len(turns) + 1) if at not in turns)
                places[mark.stack] = number
        return f"{mark.name}{PLACE_SEPARATOR}{number}" if number else mark.name

    def strand_of(self, number: int) -> int:
        """Return the strand that the steps of strand `number` belong to."""
        while number in self._joined:
            number = self._joined[number]
        return number

    def _strand(self, mark: StepMark) -> StrandTally:
        """Return the tally of the strand of `mark`; strands that step the same optimizer are merged."""
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
        """The kind of mark that ends steps: the user's first, then the profiler's, then optimizers', then
        backward passes'."""
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
        """Return the strands that have their own steps, with their numbers; a single one if they cannot be
        told apart.

        >>> tally = StepTally()
        >>> [numbers for numbers, _ in tally.strands()]
        []
        """
        kind = kind or self.kind
        leads = self.leads
        stepping = {
            number: strand.merge_leads(leads) for number, strand in self._strands.items() if strand.seen[kind]
        }
        if len(stepping) == 1:
            return [(frozenset({number}), strand) for number, strand in stepping.items()]
        if not stepping or _are_consecutive(list(stepping.values()), kind):
            whole = StrandTally()
            for strand in sorted(stepping.values(), key=lambda strand_tally: strand_tally.first):
                whole.join(strand)
            return [(frozenset(stepping), whole)] if stepping else []
        return [(frozenset({number}), strand) for number, strand in stepping.items()]

    @property
    def count(self) -> int:
        """The number of steps ended so far; if several threads train, of the one that has made fewest."""
        kind = self.kind
        counts = [(_steps(strand, kind), strand.last) for _, strand in self.strands(kind)]
        most, now = max((each for each, _ in counts), default=0), sum(self.seen.values())
        patience = _MAX_SILENT_MARKS * len(counts)
        at_work = [each for each, last in counts if each * _MAX_STEP_RATIO >= most and now - last <= patience]
        return min(at_work, default=most)


def _steps(strand: StrandTally, kind: str) -> int:
    return strand.steps_in_turn(kind) if kind in IN_TURN else strand.seen[kind]


def _name(mark: StepMark) -> str:
    if mark.name and mark.kind != "forward":
        return mark.name
    line = user_line(mark.stack)
    return line.where if line is not None else mark.kind


def _lead_name(name: str, leads: dict[str, str]) -> str:
    own, mark, number = name.partition(PLACE_SEPARATOR)
    return f"{leads.get(own, own)}{mark}{number}"


def _first_of(leads: dict[str, str], name: str) -> str:
    while name in leads:
        name = leads[name]
    return name


def _are_consecutive(strands: Iterable[StrandTally], kind: str) -> bool:
    """Whether each strand begins after the previous one has ended."""
    ordered = sorted(strands, key=lambda strand: strand.first)
    return all(
        before.last < after.first and before.seen[kind] >= _MIN_STEPS_IN_A_ROW
        for before, after in pairwise(ordered)
    )


def step_ends(marks: Sequence[StepMark], tally: StepTally) -> Iterator[tuple[frozenset[int], list[int]]]:
    """Yield each strand that has its own steps, with the positions in `marks` that end them.

    `tally` must have counted all of `marks`.
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

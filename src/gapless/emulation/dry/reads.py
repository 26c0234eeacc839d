"""What the CPU is told when it reads a value that is not there, and that it was told so.

The answer is what the record expects: it is the same each time one value is read, and losses move. A loop
that goes on because of such answers is broken: after equal ones at one place it is told the opposite once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import torch

from gapless.emulation.core.core import Core
from gapless.emulation.dry.guesses.guess import Guess
from gapless.emulation.dry.loops import passes, repeats
from gapless.emulation.support import stacks
from gapless.emulation.support.local import local
from gapless.model.assumption import Assumption
from gapless.model.source import Stack

_PATIENCE = 8
"""Equal answers within a step after which a loop that may go on because of them is told the opposite."""
_LONG = 400
"""Answers in a loop of any number of steps after which it is."""
_MOST_PLACES = 4_000
_UNASKED = object()


class _Place:
    """What was told at one stack."""

    __slots__ = (
        "broken", "equal", "first", "given", "high", "kind", "last", "loops", "low", "made_by", "of",
        "of_high", "of_low", "passes", "stack", "tick", "ticks", "times",
    )  # fmt: skip

    def __init__(self, stack: stacks.RawStack, kind: str, made_by: str) -> None:
        self.stack, self.kind, self.made_by = stack, kind, made_by
        self.times = self.equal = self.broken = self.ticks = 0
        self.tick = -1
        self.first: Any = None
        self.last: Any = None
        self.low = self.high = self.of = self.of_low = self.of_high = 0
        self.given: float | None = None
        self.loops: bool | None = None
        self.passes: Any = _UNASKED


class Reads:
    """Answers reads, and remembers what it has answered; `given` is what the user said, by ``file:line``."""

    def __init__(self, core: Core, given: dict[str, float]) -> None:
        self.core = core
        self.told: dict[int, tuple[Guess, int, Any]] = {}
        self._given = given
        self._places: dict[Any, _Place] = {}
        self.used: set[str] = set()

    # -- asked -----------------------------------------------------------------------------------------

    def answer(self, tensor: torch.Tensor, guess: Guess, real: Any = None) -> Any:
        """The number that a read of `tensor` gives; `real` is one that is there, but was made up."""
        kind = _kind_of(tensor.dtype)
        if guess.exact:
            return kind(guess.mean)
        key = tensor.untyped_storage()._cdata
        told = self.told.get(key)
        if told is not None and told[0] is guess and told[1] == tensor.storage_offset():
            return told[2]
        value = self.said(guess, kind, real)
        self.told[key] = guess, int(tensor.storage_offset()), value
        return value

    def said(self, guess: Guess, kind: type, real: Any = None) -> Any:
        """The answer at this place to a question about a value like `guess`."""
        place = self._place(kind.__name__, guess.made_by)
        if place is None:
            return kind(guess.mean) if real is None else real
        if place.given is not None:
            value = kind(place.given)
        else:
            certain = kind is bool and guess.compares and guess.mean in (0, 1)  # an assertion holds
            value = _expected(guess, kind, place.times) if real is None or certain else real
            value = self._checked(place, value) if kind is bool else value
            value = self._unlooped(place, guess, kind, value)
        _count(place, value, self.core.recorder.tick)
        return value

    def size(self, guess: Guess | None, count: int, of: int) -> int:
        """How many elements there are, of so many at most, where `count` is to be expected."""
        place = self._place("size", guess.made_by if guess is not None else "")
        if place is None:
            return count
        if place.given is not None:
            count = round(place.given * of) if 0 < place.given < 1 else min(of, round(place.given))
        if not place.times:
            place.of = place.of_low = place.of_high = of
            place.low = place.high = count
        place.low, place.high = min(place.low, count), max(place.high, count)
        place.of_low, place.of_high = min(place.of_low, of), max(place.of_high, of)
        _count(place, count, self.core.recorder.tick)
        return count

    def said_here(self, guess: Guess) -> bool:
        """Whether the user has said how many elements there are at this place."""
        place = self._place("size", guess.made_by)
        return place is not None and place.given is not None

    def values(self, guess: Guess, count: int) -> None:
        """So many values have been made up for what was copied to the host."""
        place = self._place("values", guess.made_by)
        if place is not None:
            _count(place, count, self.core.recorder.tick)

    # -- places ----------------------------------------------------------------------------------------

    def _place(self, kind: str, made_by: str) -> _Place | None:
        if not self.core.enabled:
            return None
        stack = stacks.capture(2) + local.above
        place = self._places.get((kind, stack))
        if place is None:
            if len(self._places) >= _MOST_PLACES:
                return None
            place = self._places[kind, stack] = _Place(stack, kind, made_by)
            if self._given:
                place.given = self._said_by_user(stack)
        return place

    def _said_by_user(self, stack: stacks.RawStack) -> float | None:
        for line in stacks.resolve(stack):
            for place, value in self._given.items():
                file, _, number = place.rpartition(":")
                if str(line.line) == number and _names(line.file, file):
                    self.used.add(place)
                    return value
        return None

    def _checked(self, place: _Place, value: bool) -> bool:
        """`value`, or its opposite where the line would raise because of it."""
        if place.passes is _UNASKED:
            place.passes = passes(stacks.resolve(place.stack))
        return value if place.passes is None else bool(place.passes)

    def _unlooped(self, place: _Place, guess: Guess, kind: type, value: Any) -> Any:
        """`value`, or another one where a loop seems to go on because of it."""
        within = place.tick == self.core.recorder.tick
        alike = value == place.last or (kind is not bool and within)
        if not alike or not (within or place.times % _LONG == _LONG - 1):
            place.equal = 0
            return value
        place.equal += 1
        if place.equal < _PATIENCE and place.times % _LONG != _LONG - 1:
            return value
        if place.loops is None:
            place.loops = repeats(stacks.resolve(place.stack))
        if not place.loops:
            return value
        place.equal = 0
        place.broken += 1
        if kind is bool:
            return not value
        far = (0.0, max(-1e9, guess.low), min(1e9, guess.high))
        return kind(far[(place.broken - 1) % len(far)])

    def assumptions(self) -> tuple[Assumption, ...]:
        """Everything that was told, place by place."""
        found: dict[Any, Assumption] = {}
        for one in self._places.values():
            if not one.times:  # it was only asked what the user says of it
                continue
            stack = stacks.resolve(one.stack)
            before = found.get((one.kind, stack))  # a loop asks at its beginning and at its end
            found[one.kind, stack] = _assumption(one, stack) if before is None else _added(before, one)
        return tuple(found.values())

    def unused(self) -> Iterator[str]:
        """What the user has said of lines at which nothing was read, for a report."""
        for place in self._given:
            if place not in self.used:
                yield f"--assume {place}: no value without data was read at that line"

    def afresh(self) -> None:
        """As if nothing had been told before."""
        self._places.clear()


def _assumption(place: _Place, stack: Stack) -> Assumption:
    return Assumption(
        kind=place.kind,  # type: ignore[arg-type]
        stack=stack,
        made_by=place.made_by,
        value=float(place.first),
        last=float(place.last),
        low=place.low,
        high=place.high,
        of=place.of,
        of_low=place.of_low,
        of_high=place.of_high,
        times=place.times,
        steps=place.ticks,
        broken=place.broken,
        given=place.given is not None,
    )


def _added(before: Assumption, place: _Place) -> Assumption:
    """What was told at one line, here and at another stack."""
    return msgspec.structs.replace(
        before,
        last=float(place.last),
        low=min(before.low, place.low),
        high=max(before.high, place.high),
        of_low=min(before.of_low, place.of_low),
        of_high=max(before.of_high, place.of_high),
        times=before.times + place.times,
        steps=max(before.steps, place.ticks),
        broken=before.broken + place.broken,
    )


def _count(place: _Place, value: Any, tick: int) -> None:
    if not place.times:
        place.first = value
    place.last = value
    place.times += 1
    if place.tick != tick:
        place.tick = tick
        place.ticks += 1


def _kind_of(dtype: torch.dtype) -> type:
    if dtype is torch.bool:
        return bool
    return complex if dtype.is_complex else float if dtype.is_floating_point else int


def _expected(guess: Guess, kind: type, times: int) -> Any:
    """What is to be expected of a value that is read for this time: losses get smaller, and are not 0."""
    if kind is bool:
        return guess.mean > 0.5
    value = min(max(guess.mean, guess.low), guess.high)
    if kind is int:
        return round(value)
    if abs(value) < 1e-6 * guess.spread:
        value = min(value + 0.5 * guess.spread, guess.high)
    if guess.low >= 0 and guess.spread:
        value = max(guess.low, value * (1 - 0.25 * times / (times + 20)))
    return kind(value)


def _names(file: str, asked: str) -> bool:
    """Whether `asked`, the end of a path, means `file`."""
    return file == asked or file.replace("\\", "/").endswith("/" + asked.replace("\\", "/").lstrip("./"))

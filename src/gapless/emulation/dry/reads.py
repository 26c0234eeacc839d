"""Answers reads of missing values by the CPU, and records the answers as assumptions.

An answer is the value that the record expects: the same for each read of one value, and slowly falling for
losses. A loop that such answers keep going is ended: after equal ones at one place the opposite is answered.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import torch

from gapless.emulation.core.core import EmulationCore
from gapless.emulation.dry.guesses.guess import Guess
from gapless.emulation.dry.loops import may_repeat_loop, value_to_pass
from gapless.emulation.support import stacks
from gapless.emulation.support.local import local
from gapless.model.assumption import Assumption
from gapless.model.source import Stack

_MAX_EQUAL_ANSWERS = 8
"""Equal answers within a step after which a loop that may depend on them gets the opposite."""
_MAX_LOOP_ANSWERS = 400
"""Answers across steps after which such a loop gets the opposite."""
_MAX_PLACES = 4_000
"""Places that answers are kept for, to bound memory; reads elsewhere get the usual answer."""
_NOT_LOOKED_UP = object()


class _ReadPlace:
    """The answers at one stack."""

    __slots__ = (
        "broken", "equal", "first", "high", "kind", "last", "loops", "low", "made_by", "of",
        "of_high", "of_low", "passes", "stack", "tick", "ticks", "times", "user_value",
    )  # fmt: skip

    def __init__(self, stack: stacks.RawStack, kind: str, made_by: str) -> None:
        self.stack, self.kind, self.made_by = stack, kind, made_by
        self.times = self.equal = self.broken = self.ticks = 0
        self.tick = -1
        self.first: Any = None
        self.last: Any = None
        self.low = self.high = self.of = self.of_low = self.of_high = 0
        self.user_value: float | None = None
        self.loops: bool | None = None
        self.passes: Any = _NOT_LOOKED_UP


class Reads:
    """Answers reads and remembers the answers; `user_values` are the user's, by ``file:line``."""

    def __init__(self, core: EmulationCore, user_values: dict[str, float]) -> None:
        self.core = core
        self.answers: dict[int, tuple[Guess, int, Any]] = {}
        self._user_values = user_values
        self._places: dict[Any, _ReadPlace] = {}
        self.used_lines: set[str] = set()

    # -- answers ---------------------------------------------------------------------------------------

    def answer(self, tensor: torch.Tensor, guess: Guess, real: Any = None) -> Any:
        """Return the answer to a read of `tensor`; `real` is its made-up value, if it has one."""
        kind = _python_type(tensor.dtype)
        if guess.exact:
            return kind(guess.mean)
        key = tensor.untyped_storage()._cdata
        earlier = self.answers.get(key)
        if earlier is not None and earlier[0] is guess and earlier[1] == tensor.storage_offset():
            return earlier[2]
        value = self.answer_like(guess, kind, real)
        self.answers[key] = guess, int(tensor.storage_offset()), value
        return value

    def answer_like(self, guess: Guess, kind: type, real: Any = None) -> Any:
        """Return the answer at this place to a read of a value like `guess`."""
        place = self._place(kind.__name__, guess.made_by)
        if place is None:
            return kind(guess.mean) if real is None else real
        if place.user_value is not None:
            value = kind(place.user_value)
        else:
            certain = kind is bool and guess.compares and guess.mean in (0, 1)  # an assertion holds
            value = _expected_value(guess, kind, place.times) if real is None or certain else real
            value = self._avoid_raise(place, value) if kind is bool else value
            value = self._break_loop(place, guess, kind, value)
        _count_answer(place, value, self.core.recorder.tick)
        return value

    def size(self, guess: Guess | None, count: int, of: int) -> int:
        """Return the assumed number of elements, `of` at most and `count` expected."""
        place = self._place("size", guess.made_by if guess is not None else "")
        if place is None:
            return count
        if place.user_value is not None:
            count = (
                round(place.user_value * of) if 0 < place.user_value < 1 else min(of, round(place.user_value))
            )
        if not place.times:
            place.of = place.of_low = place.of_high = of
            place.low = place.high = count
        place.low, place.high = min(place.low, count), max(place.high, count)
        place.of_low, place.of_high = min(place.of_low, of), max(place.of_high, of)
        _count_answer(place, count, self.core.recorder.tick)
        return count

    def has_user_size(self, guess: Guess) -> bool:
        """Whether the user has set the number of elements at this place."""
        place = self._place("size", guess.made_by)
        return place is not None and place.user_value is not None

    def values(self, guess: Guess, count: int) -> None:
        """Record that `count` values were made up for a copy to the host."""
        place = self._place("values", guess.made_by)
        if place is not None:
            _count_answer(place, count, self.core.recorder.tick)

    # -- places ----------------------------------------------------------------------------------------

    def _place(self, kind: str, made_by: str) -> _ReadPlace | None:
        if not self.core.enabled:
            return None
        stack = stacks.capture(2) + local.above
        place = self._places.get((kind, stack))
        if place is None:
            if len(self._places) >= _MAX_PLACES:
                return None
            place = self._places[kind, stack] = _ReadPlace(stack, kind, made_by)
            if self._user_values:
                place.user_value = self._user_value(stack)
        return place

    def _user_value(self, stack: stacks.RawStack) -> float | None:
        for line in stacks.resolve(stack):
            for place, value in self._user_values.items():
                file, _, number = place.rpartition(":")
                if str(line.line) == number and _is_same_file(line.file, file):
                    self.used_lines.add(place)
                    return value
        return None

    def _avoid_raise(self, place: _ReadPlace, value: bool) -> bool:
        """Return `value`, or its opposite if the line would raise because of it."""
        if place.passes is _NOT_LOOKED_UP:
            place.passes = value_to_pass(stacks.resolve(place.stack))
        return value if place.passes is None else bool(place.passes)

    def _break_loop(self, place: _ReadPlace, guess: Guess, kind: type, value: Any) -> Any:
        """Return `value`, or another one if a loop seems to continue because of it."""
        within = place.tick == self.core.recorder.tick
        alike = value == place.last or (kind is not bool and within)
        if not alike or not (within or place.times % _MAX_LOOP_ANSWERS == _MAX_LOOP_ANSWERS - 1):
            place.equal = 0
            return value
        place.equal += 1
        if place.equal < _MAX_EQUAL_ANSWERS and place.times % _MAX_LOOP_ANSWERS != _MAX_LOOP_ANSWERS - 1:
            return value
        if place.loops is None:
            place.loops = may_repeat_loop(stacks.resolve(place.stack))
        if not place.loops:
            return value
        place.equal = 0
        place.broken += 1
        if kind is bool:
            return not value
        far = (0.0, max(-1e9, guess.low), min(1e9, guess.high))
        return kind(far[(place.broken - 1) % len(far)])

    def assumptions(self) -> tuple[Assumption, ...]:
        """Return all answers, one entry per kind and stack."""
        by_place: dict[Any, Assumption] = {}
        for place in self._places.values():
            if not place.times:  # only looked up for a value of the user's
                continue
            stack = stacks.resolve(place.stack)
            before = by_place.get((place.kind, stack))  # a loop reads at its beginning and at its end
            by_place[place.kind, stack] = (
                _assumption(place, stack) if before is None else _merge(before, place)
            )
        return tuple(by_place.values())

    def unused_values(self) -> Iterator[str]:
        """Yield notes on values of the user's for lines at which nothing was read."""
        for place in self._user_values:
            if place not in self.used_lines:
                yield f"--assume {place}: no value without data was read at that line"

    def reset(self) -> None:
        """Forget all answers."""
        self._places.clear()


def _assumption(place: _ReadPlace, stack: Stack) -> Assumption:
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
        given=place.user_value is not None,
    )


def _merge(before: Assumption, place: _ReadPlace) -> Assumption:
    """Return `before` with the answers of another stack at the same line added."""
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


def _count_answer(place: _ReadPlace, value: Any, tick: int) -> None:
    if not place.times:
        place.first = value
    place.last = value
    place.times += 1
    if place.tick != tick:
        place.tick = tick
        place.ticks += 1


def _python_type(dtype: torch.dtype) -> type:
    if dtype is torch.bool:
        return bool
    return complex if dtype.is_complex else float if dtype.is_floating_point else int


def _expected_value(guess: Guess, kind: type, times: int) -> Any:
    """Return the value expected at the read number `times`: losses fall slowly, and are not 0."""
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


def _is_same_file(file: str, path_end: str) -> bool:
    """Whether `file` ends with the path `path_end`."""
    return file == path_end or file.replace("\\", "/").endswith(
        "/" + path_end.replace("\\", "/").lstrip("./")
    )

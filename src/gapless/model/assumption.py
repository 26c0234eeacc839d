"""`Assumption`: what a run without values took a value to be, at one place; `Switch`: where it began."""

from __future__ import annotations

from typing import Literal

import msgspec

from gapless.model.source import SourceLine, Stack, user_line
from gapless.model.wording import number

Assumed = Literal["bool", "int", "float", "complex", "size", "values"]
"""A value that was read, how many elements something has, or values that were copied to the host."""


class Assumption(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What was assumed at the place `stack` (innermost frame first), where a run has no values.

    `made_by` says what would have made the value, `value` is the first answer and `last` the last one of
    `times`, in `steps` of the steps. For a size, `of` is how many elements there were at most when `value`
    was the answer; of all its answers, `low` and `high` are the least and the largest, `of_low` and `of_high`
    those of which they were. For values, the answer is how many were made up. `broken` times the answer was
    turned around, so that a loop ends; `given` says that the user has named the value.

    >>> Assumption(kind="bool", stack=(), value=1.0, times=3).kind
    'bool'
    """

    kind: Assumed
    stack: Stack = ()
    made_by: str = ""
    value: float = 0.0
    last: float = 0.0
    low: float = 0.0
    high: float = 0.0
    of: int = 0
    of_low: int = 0
    of_high: int = 0
    times: int = 0
    steps: int = 0
    broken: int = 0
    given: bool = False

    @property
    def line(self) -> SourceLine | None:
        """The user's line, if there is one."""
        return user_line(self.stack)


class FailedDry(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How a script failed without values, where one that was `assumed` may be why.

    `message` is what it failed with, `where` the line (``train.py:31``). The session is that of the script
    run again with values, unless `kept` says why it is not, and what to do; `smaller` is the argument for a
    smaller batch with which it ran, where it was too slow without.

    >>> FailedDry(message="IndexError: out of range", where="train.py:31").kept
    ''
    """

    message: str
    where: str = ""
    assumed: tuple[str, ...] = ()
    kept: str = ""
    smaller: str = ""


class Switch(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where a run that had values began to go on without them: at `operator`, called at the user's `line`.

    `seconds` is what it was reckoned to cost on one usual core: that operator `alone`, or all since the step
    before.

    >>> Switch(operator="aten::convolution", seconds=2.0, alone=True).line is None
    True
    """

    operator: str
    seconds: float
    alone: bool = False
    line: SourceLine | None = None


def answer(assumption: Assumption) -> str:
    """``True``, ``512 of 1,024 elements``.

    >>> answer(Assumption(kind="size", value=5, low=5, high=30, of=20, of_low=20, of_high=50))
    '5–30 of 20–50 elements'
    >>> answer(Assumption(kind="int", value=2049, last=2048))
    '2,048–2,049'
    """
    if assumption.kind == "bool":
        return str(bool(assumption.value))
    if assumption.kind == "values":
        return f"{number(assumption.value)} values copied to the CPU"
    if assumption.kind != "size":
        return _range(*sorted((assumption.value, assumption.last)))
    if assumption.low == assumption.high and assumption.of_low == assumption.of_high:
        return f"{number(assumption.value)} of {number(assumption.of)} elements"
    among = _range(assumption.of_low, assumption.of_high)
    return f"{_range(assumption.low, assumption.high)} of {among} elements"


def _range(low: float, high: float) -> str:
    least, most = number(low), number(high)
    return least if least == most else f"{least}–{most}"


def left_out(switch: Switch) -> str:
    """Why a run has no values from there on, and where.

    >>> left_out(Switch(operator="aten::convolution", seconds=2.04, alone=True))
    'no values from the first step on: aten::convolution would take about 2 s to compute here'
    """
    what = switch.operator if switch.alone else "a step"
    where = switch.line.short if switch.line is not None else "the first step"
    return f"no values from {where} on: {what} would take about {switch.seconds:.2g} s to compute here"

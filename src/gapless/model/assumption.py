"""`Assumption`: the value that a run without values assumed at one place; `Switch`: where such a run
began."""

from __future__ import annotations

from typing import Literal

import msgspec

from gapless.model.source import SourceLine, Stack, user_line
from gapless.model.wording import number

Assumed = Literal["bool", "int", "float", "complex", "size", "values"]
"""A value that was read, how many elements something has, or values that were copied to the host."""


class Assumption(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The value assumed at the place `stack` (innermost frame first) in a run without values.

    `made_by` names what would have computed the value, `value` is the first answer and `last` the last of
    `times`, in `steps` of the steps. For a size, `of` is the largest possible number of elements when `value`
    was the answer; of all its answers, `low` and `high` are the smallest and the largest, out of `of_low` and
    `of_high`. For values, the answer is how many were made up. `broken` counts answers reversed to end a
    loop; `given` says that the user gave the value.

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
    """How a script failed without values, possibly because of one that was `assumed`.

    `message` is the error, `where` its line (``train.py:31``). The session is that of a second run with
    values, unless `kept` says why there was none, and what to do; `smaller` is the argument for a smaller
    batch that this run used because it was too slow otherwise.

    >>> FailedDry(message="IndexError: out of range", where="train.py:31").kept
    ''
    """

    message: str
    where: str = ""
    assumed: tuple[str, ...] = ()
    kept: str = ""
    smaller: str = ""


class Switch(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where a run stopped computing values: at `operator`, called at the user's `line`.

    `seconds` is the estimated cost on one usual core: of that operator `alone`, or of everything since the
    previous step.

    >>> Switch(operator="aten::convolution", seconds=2.0, alone=True).line is None
    True
    """

    operator: str
    seconds: float
    alone: bool = False
    line: SourceLine | None = None


def describe_answer(assumption: Assumption) -> str:
    """Return the assumed value in words: ``True``, ``512 of 1024 elements``.

    >>> describe_answer(Assumption(kind="size", value=5, low=5, high=30, of=20, of_low=20, of_high=50))
    '5–30 of 20–50 elements'
    >>> describe_answer(Assumption(kind="int", value=2049, last=2048))
    '2048–2049'
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


def describe_switch(switch: Switch) -> str:
    """Return from where on a run has no values, and why.

    >>> describe_switch(Switch(operator="aten::convolution", seconds=2.04, alone=True))
    'no values from the first step on: aten::convolution would take about 2 s to compute here'
    """
    work = switch.operator if switch.alone else "a step"
    where = switch.line.short if switch.line is not None else "the first step"
    return f"no values from {where} on: {work} would take about {switch.seconds:.2g} s to compute here"

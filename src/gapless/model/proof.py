"""`Proof`: a comparison of two callables: same results, fewer waits, faster."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from gapless.model.estimate import Range
from gapless.model.finding import Finding

Outcome = Literal["same", "differs", "outside", "both raise", "dropped"]
"""The result of a case. ``dropped``: only the original raises, in a case that the user did not give.
``outside``: the two differ, but need not agree: the contract does not hold, or there is no room for all
rows."""

Kind = Literal["value", "dtype", "shape", "type", "structure", "device", "gradient", "error"]

Faster = Literal["before", "after", "neither"]


class Difference(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One place in which the two differ.

    `where` names it (``output["loss"]``, ``gradient of logits``, ``input labels after the call``); `call` is
    its number in a sequence of calls, from 1, or 0 for a single one. `before` and `after` show both sides at
    index `at`, where the absolute difference is `largest` (-1: not a number). `share` is the share of
    elements further apart than the tolerances `rtol` and `atol`.
    """

    where: str
    kind: Kind = "value"
    call: int = 0
    before: str = ""
    after: str = ""
    largest: float = -1.0
    at: tuple[int, ...] = ()
    share: float = 0.0
    rtol: float = 0.0
    atol: float = 0.0


class CaseResult(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One input, and whether both sides computed the same.

    `made` is the input's source: ``given`` and ``added`` by the user, ``edge`` made by Gapless. `why` is what
    was raised, if anything.
    """

    name: str
    outcome: Outcome
    made: Literal["given", "added", "edge"] = "given"
    differences: tuple[Difference, ...] = ()
    why: str = ""


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A median and the interval that holds it with a probability of 95 % (for a `Timing.ratio` 99 %)."""

    median: float
    low: float
    high: float


class Duration(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The time of one call in nanoseconds: until the device is done, on the host, and on the device.

    `host` is the time until the host is free again, `device` that between two CUDA events around the calls;
    None without a GPU.
    """

    total: Interval
    host: Interval | None = None
    device: Interval | None = None


class Timing(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Both sides measured in turn: `rounds` blocks of `calls` calls each.

    `ratio` is the time before divided by the time after, block by block: above 1, the second is faster.
    `faster` is ``neither`` unless its interval is a hundredth clear of 1. `clock` is what was timed: a GPU's
    work with its host, or a CPU.
    """

    before: Duration
    after: Duration
    ratio: Interval
    faster: Faster
    clock: Literal["GPU", "CPU"]
    calls: tuple[int, int]
    rounds: int


class CallCost(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What one side does to the device in a call, as counted on an emulated one.

    `waits` is the mean of the steady calls, `first` those of the first call. `operators` are ATen operators
    on device tensors without views and allocations; a GPU launches at least one kernel for each. `peak` is
    bytes above the memory before the call. `estimate` is the call's time on that GPU in nanoseconds; None if
    no honest one is possible.
    """

    waits: float
    first: int
    operators: int
    peak: int
    findings: tuple[Finding, ...] = ()
    estimate: Range | None = None


class SweepRow(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Both sides on the inputs for one `value` of the sweep."""

    value: float | str
    same: bool
    time: Timing


class Crossing(msgspec.Struct, frozen=True, kw_only=True):
    """The value, between `low` and `high`, above which the side `faster` overtakes the other."""

    value: float
    low: float
    high: float
    faster: Faster


class Sweep(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Times over the values of one keyword of the inputs.

    `crossings` are values at which one side overtakes the other, only between rows whose intervals leave no
    doubt.
    """

    key: str
    rows: tuple[SweepRow, ...]
    crossings: tuple[Crossing, ...] = ()


class Waits(NamedTuple):
    """Waits per steady call on both sides."""

    before: float
    after: float


class Proof(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A comparison of two callables. True if they compute the same.

    `before` and `after` are the user's names for them, `device` where equality was checked, `gpu` the
    emulated device. `gradients`: there were gradients to compare. `time` is None if nothing was measured,
    `costs` is empty if nothing could be counted; `notes` then say why. `again` is a command that repeats the
    failing case alone.
    """

    verdict: str
    same: bool
    before: str
    after: str
    cases: tuple[CaseResult, ...]
    device: str = ""
    gpu: str = ""
    seed: int = 0
    gradients: bool = False
    costs: tuple[CallCost, ...] = ()
    time: Timing | None = None
    sweep: Sweep | None = None
    notes: tuple[str, ...] = ()
    again: str = ""

    @property
    def waits(self) -> Waits | None:
        """Waits per call before and after; None if they could not be counted."""
        return Waits(self.costs[0].waits, self.costs[1].waits) if self.costs else None

    @property
    def failed(self) -> tuple[CaseResult, ...]:
        """The cases in which the two callables differ."""
        return tuple(case for case in self.cases if case.outcome == "differs")

    def __bool__(self) -> bool:
        return self.same

    def __str__(self) -> str:
        return f"{self.verdict}."

    def assert_same(self) -> None:
        """Do nothing if both callables compute the same.

        Raises:
            AssertionError: they do not; its text names each failing case.
        """
        if self.same:
            return
        rows = [
            f"  {case.name}: {difference.where}, {difference.after} instead of {difference.before}"
            for case in self.failed
            for difference in case.differences[:1]
        ]
        raise AssertionError("\n".join([f"{self.verdict}.", *rows]))

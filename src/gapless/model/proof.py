"""`Proof`: a comparison of two callables: same results, fewer waits, faster."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from gapless.model.estimate import Range
from gapless.model.finding import Finding

Outcome = Literal["same", "differs", "outside", "both raise", "dropped"]
"""What became of a case: ``dropped`` where only the original raises, in a case nobody gave, ``outside`` where
the two differ and need not do the same: the contract does not hold, or there is no room for all rows."""

Kind = Literal["value", "dtype", "shape", "type", "structure", "device", "gradient", "error"]

Faster = Literal["before", "after", "neither"]


class Difference(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One place in which the two differ.

    `where` names it in words (``output["loss"]``, ``gradient of logits``, ``input labels after the call``);
    `call` counts from 1 in a row of calls and is 0 where there is one. `before` and `after` show both sides
    at index `at`, the place of the `largest` absolute difference (-1 where there is no number for it).
    `share` is the part of the elements that are further apart than the tolerances `rtol` and `atol`.
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
    """One input, and whether both sides made the same of it.

    `made` says where the input comes from: ``given`` and ``added`` by the user, ``edge`` made by Gapless.
    `why` tells what was raised where something was.
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
    """How long one call takes, in nanoseconds: until the device is done, on the host, and on the device.

    `host` and `device` are known where there is a GPU: the time after which the host is free again, and the
    time between two CUDA events around the calls.
    """

    total: Interval
    host: Interval | None = None
    device: Interval | None = None


class Timing(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Both sides measured in turn: `rounds` blocks of `calls` calls each on either side.

    `ratio` is the time before divided by the time after, block by block: above 1, the second is faster.
    `faster` is ``neither`` where its interval is not clear of 1 by a hundredth.
    `clock` says what the time is: that of a GPU's work with its host, or of a CPU on its own.
    """

    before: Duration
    after: Duration
    ratio: Interval
    faster: Faster
    clock: Literal["GPU", "CPU"]
    calls: tuple[int, int]
    rounds: int


class Cost(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What one side does to the device in a call, as counted on an emulated one.

    `waits` is the mean of the steady calls and `first` those of the first call. `operators` are ATen
    operators on device tensors without views and allocations; a GPU launches a kernel or more for each.
    `peak` is bytes above what was there before the call. `estimate` is what a call would take on that GPU, in
    nanoseconds, among others like it; None where nothing honest can be said.
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
    """Near `value`, between `low` and `high`, the one that is `faster` above it overtakes the other."""

    value: float
    low: float
    high: float
    faster: Faster


class Sweep(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Times over the values of one keyword of the inputs.

    `crossings` are values at which one overtakes the other, told only between rows whose intervals leave no
    doubt about who is faster.
    """

    key: str
    rows: tuple[SweepRow, ...]
    crossings: tuple[Crossing, ...] = ()


class Waits(NamedTuple):
    """Waits per steady call on both sides."""

    before: float
    after: float


class Proof(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Two callables side by side. True where they compute the same.

    `before` and `after` are how the user called them, `device` is what equality was checked on and `gpu` the
    emulated device. `gradients` tells whether there were gradients to compare. `time` is None where nothing
    was measured, `costs` is empty where nothing could be counted; `notes` then say why. `again` is what
    repeats the failing case alone.
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
    costs: tuple[Cost, ...] = ()
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

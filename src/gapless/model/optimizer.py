"""`OptimizerUse`: how an optimizer's step goes through its parameters."""

from __future__ import annotations

from typing import Literal

import msgspec

from gapless.model.ranges import Range
from gapless.model.source import SourceLine

Way = Literal["fused", "foreach", "single", "own"]
"""How torch's optimizers go through a group: one kernel for the whole update of many parameters, one for each
operation on many, or one for each operation on each parameter; ``own`` is a way of another library."""

RATE_IN_A_TENSOR = "a learning rate in a tensor without `capturable=True`"
"""The reason, beside arguments of the optimizer, for which Adam does not go over lists."""


class Joined(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A step whose optimizer takes the parameters of one setting together, in `way`: the step's length, and
    how much shorter it is than now, in nanoseconds."""

    way: Way = "foreach"
    groups: int = 0
    before: int = 0
    step: Range = Range()
    saved: Range = Range()


class OptimizerUse(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Optimizers of the class `name` that were made at `line`: `instances` of them, with `groups` parameter
    groups that have gradients, together, of `settings` different settings.

    Settings are compared over the steps of the run: groups whose learning rates part later are different.
    Those of optimizers that step after different backward passes are different too: `turns` counts the sets
    of `instances` that always step after the same one. `parameters` have gradients. `refuses_fused` and
    `refuses_foreach` say in a few words why ``fused=True``
    and the way over lists cannot be had ("" where they can). `turned_off` is the argument that turned off
    the way over lists, or `RATE_IN_A_TENSOR`. `members` has for each group, in the order in which they are
    updated, which of the settings it has and how many parameters. With `in_backward` they step while
    gradients are made, which saves their memory. `joined` is what a step would be otherwise, where that was
    estimated.
    """

    name: str
    line: SourceLine | None = None
    way: Way = "own"
    instances: int = 1
    groups: int = 1
    settings: int = 1
    turns: int = 1
    parameters: int = 0
    members: tuple[tuple[int, int], ...] = ()
    turned_off: str = ""
    refuses_fused: str = ""
    refuses_foreach: str = ""
    in_backward: bool = False
    joined: Joined | None = None

    @property
    def better_way(self) -> Way:
        """The way that a step should take, including one that was turned off."""
        if self.way != "single":
            return self.way
        if not self.refuses_fused:
            return "fused"
        return "single" if self.refuses_foreach else "foreach"

    @property
    def joins(self) -> bool:
        """Whether groups or optimizers share settings."""
        return self.settings < max(self.groups, self.instances)

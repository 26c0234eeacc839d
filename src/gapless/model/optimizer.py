"""`OptimizerUse`: how an optimizer's step handles its parameters."""

from __future__ import annotations

from typing import Literal

import msgspec

from gapless.model.ranges import Range
from gapless.model.source import SourceLine

Way = Literal["fused", "foreach", "single", "own"]
"""How torch's optimizers handle a group: one kernel for the whole update of many parameters (``fused``),
one for each operation on many (``foreach``), or one for each operation on each parameter (``single``);
``own`` is another library's way."""

RATE_IN_A_TENSOR = "a learning rate in a tensor without `capturable=True`"
"""The reason, other than arguments of the optimizer, for which Adam does not use ``foreach``."""


class Joined(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A step whose optimizer handles the parameters of one setting together, in `way`: the step's length,
    and the saving, in nanoseconds."""

    way: Way = "foreach"
    groups: int = 0
    before: int = 0
    step: Range = Range()
    saved: Range = Range()


class OptimizerUse(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The optimizers of the class `name` created at `line`.

    - `instances`: their number; `groups`: parameter groups with gradients, in all; `settings`: how many
      different settings these have. Groups whose learning rates diverge later count as different, and so do
      those of optimizers in different `turns`.
    - `turns`: sets of `instances` that always step after the same backward pass and share no parameter.
    - `parameters`: those with gradients.
    - `refuses_fused`, `refuses_foreach`: why ``fused=True`` and ``foreach=True`` are impossible ("": they are
      possible).
    - `turned_off`: the argument that disabled ``foreach``, or `RATE_IN_A_TENSOR`.
    - `members`: for each group, in order of update, the number of its setting and its parameter count.
    - `in_backward`: they step while gradients are computed, which saves their memory.
    - `joined`: the step with groups joined, if estimated.
    - `maker`: the user's function that makes the groups, if that is known.
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
    maker: SourceLine | None = None

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

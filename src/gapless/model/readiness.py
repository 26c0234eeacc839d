"""`Readiness`: how much of a step a CUDA graph could hold, and what prevents it."""

from __future__ import annotations

import msgspec

from gapless.model.estimate import Range
from gapless.model.source import SourceLine


class Stretch(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Part of a step that could be captured unchanged, from line `first` to line `last`.

    `launches` are its kernels and copies per step; `saved` is what one replay in their place saves per step,
    in nanoseconds (None: not estimated).
    """

    first: SourceLine | None = None
    last: SourceLine | None = None
    launches: int = 0
    saved: Range | None = None


class Obstacle(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Something that no graph can hold: the reason, the line, in how many of the steps, and what to change.

    `code` is the rule that reports it ("": none). An `input` arrives from the CPU and stays outside of the
    graph.
    """

    line: SourceLine | None = None
    reason: str = ""
    change: str = ""
    code: str = ""
    steps: int = 0
    input: bool = False


class Readiness(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How much of a training step could be captured.

    `launches` are those of a step, `held` those that the script's own graphs launch already. `stretches` are
    ordered by length, longest first, `obstacles` as in the step; `steps` is the number of steps examined.
    `step` is a step's time, `whole` what one replay of all of it would save, waits included. `refused` says
    why there is no result.

    >>> Readiness(launches=128, held=128).eager
    0
    """

    launches: int = 0
    held: int = 0
    stretches: tuple[Stretch, ...] = ()
    obstacles: tuple[Obstacle, ...] = ()
    steps: int = 0
    step: Range | None = None
    whole: Range | None = None
    refused: str = ""

    @property
    def eager(self) -> int:
        """Launches per step outside of graphs."""
        return self.launches - self.held

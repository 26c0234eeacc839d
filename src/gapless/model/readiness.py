"""`Readiness`: how much of a step a CUDA graph could hold, and what prevents it."""

from __future__ import annotations

import msgspec

from gapless.model.estimate import Range
from gapless.model.source import SourceLine


class Stretch(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Part of a step that could be captured as it stands, from line `first` to line `last`.

    `launches` are its kernels and copies in a step; `saved` is what one replay in their place saves per step,
    in nanoseconds (None: not estimated).
    """

    first: SourceLine | None = None
    last: SourceLine | None = None
    launches: int = 0
    saved: Range | None = None


class Obstacle(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Something that no graph can hold: why, at which line, in how many of the steps, and what to change.

    `code` is the rule that names it, "" where none does. An `input` arrives from the CPU: it stays outside.
    """

    line: SourceLine | None = None
    reason: str = ""
    change: str = ""
    code: str = ""
    steps: int = 0
    input: bool = False


class Readiness(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What of a training step could be captured.

    `launches` are those of a step, `held` those that graphs of the script's own launch already. `stretches`
    are the longest first, `obstacles` in the order of the step; `steps` were looked at. `step` is what a step
    takes, and `whole` what one replay of all of it would save, with what waits behind it. `refused` says why
    there is nothing to tell.

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

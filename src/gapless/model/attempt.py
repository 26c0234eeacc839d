"""`Attempt`: the script run again with something changed, to see whether it fits; `Search`: many of them."""

from __future__ import annotations

import msgspec

from gapless.model.estimate import Range, Throughput


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One run of the script, or what is reckoned instead of one.

    `what` is what was changed (``batch_size=64``), `value` the argument's. It `fits` where every device's
    requests are met: `needs` is then what is reserved at most, else the least with which the replay comes
    through; `has` what a process may have, `allocated` the peak of what is in use; bytes, of the device that
    has least left. `lasts` is after how many more steps memory that grows is full (-1: it does not grow, or
    the run came to its own end). `step` is a step's length (nanoseconds), `seconds` what the run took here.
    Where it is not `tried`, it is reckoned from what was recorded, and `note` says how. `failed` says why it
    tells nothing. `command` repeats it.
    """

    what: str
    value: int = -1
    fits: bool = False
    needs: int = -1
    has: int = -1
    allocated: int = -1
    lasts: int = -1
    step: Range = Range()
    throughput: Throughput | None = None
    seconds: float = 0.0
    tried: bool = True
    failed: str = ""
    note: str = ""
    command: str = ""

    @property
    def helps(self) -> bool:
        """Whether it fits, and goes on fitting."""
        return self.fits and self.lasts < 0

    @property
    def left(self) -> int:
        """Bytes that are left beside it; negative where some are missing."""
        return self.has - self.needs


class Search(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The largest value of a script's argument that fits.

    `argument` was tried from `least` to `most`, every `by`. `found` is the largest value that fits (-1: not
    even `least` does); every larger one that was tried does not. `holes` are smaller values that do not fit.
    `attempts` are in the order of their values, `words` how the argument is given to the script.
    """

    argument: str
    least: int
    most: int
    by: int = 1
    found: int = -1
    holes: tuple[int, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    words: str = ""

    @property
    def best(self) -> Attempt | None:
        """The attempt with the value that was found."""
        return next((one for one in self.attempts if one.value == self.found), None)

"""`Attempt`: the script run again with something changed, to see whether it fits; `Search`: many of them."""

from __future__ import annotations

import msgspec

from gapless.model.estimate import Range, Throughput


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One run of the script, or an estimate instead of one.

    `what` is the change (``batch_size=64``), `value` the argument's. It `fits` if every device's requests are
    met: `needs` is then the peak of reserved memory, else the least with which the replay succeeds; `has` is
    what a process may have, `allocated` the peak in use; bytes, on the device with least left. `lasts` is
    after how many more steps growing memory is full (-1: it does not grow, or the run ended by itself).
    `step` is a step's length (nanoseconds), `seconds` what the run took here. If it is not `tried`, it is
    estimated from the recording, and `note` says how. `failed` says why there is no result. `command` repeats
    it.
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
        """Whether it fits, and keeps fitting."""
        return self.fits and self.lasts < 0

    @property
    def left(self) -> int:
        """Bytes left over; negative if some are missing."""
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
        """The attempt with the largest value that fits."""
        return next((attempt for attempt in self.attempts if attempt.value == self.found), None)

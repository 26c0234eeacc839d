"""`Attempt`: a run of the script with something changed, to see whether it fits; `Search`: many of them."""

from __future__ import annotations

import msgspec

from gapless.model.estimate import Range, StepThroughput


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One run of the script with a change, or an estimate of it.

    - `what`: the change (``batch_size=64``); `value`: the argument's.
    - `fits`: every device's requests are met.
    - `needs`: the peak of reserved memory if it fits, else the least with which the replay succeeds; `has`:
      what a process may have; `allocated`: the peak in use. Bytes, on the device with the least left.
    - `lasts`: further steps until growing memory is full (-1: it does not grow, or the run ended by itself).
    - `step`: a step's length (nanoseconds); `seconds`: the length of the run here.
    - `tried`: it was run; otherwise it is estimated from the recording, and `note` says how.
    - `failed`: why there is no result ("": there is).
    - `command`: repeats it.
    """

    what: str
    value: int = -1
    fits: bool = False
    needs: int = -1
    has: int = -1
    allocated: int = -1
    lasts: int = -1
    step: Range = Range()
    throughput: StepThroughput | None = None
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
    """The search for the largest value of a script's argument that fits.

    `argument` was tried from `least` to `most`, in steps of `by`. `found` is the largest value that fits (-1:
    not even `least` does): every larger one that was tried does not. `holes` are smaller values that do not
    fit. `attempts` are ordered by value, `words` is how the argument is passed to the script.
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

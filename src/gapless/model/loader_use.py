"""`LoaderUse`: a DataLoader that a script's loop iterated, and what was measured of it afterwards."""

from __future__ import annotations

import msgspec

from gapless.model.estimate import Range
from gapless.model.loading import Diagnosis, Fetch, Setting
from gapless.model.loading_mistakes import Mistake
from gapless.model.source import SourceLine


class LoaderUse(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a run saw of the loaders that were made at one line and gone through at another.

    `made` and `asked` are these lines; `library` is the package that made it where the user's line only led
    there. `batches` were asked for in `passes`, of which `ended` came to their end, and `per_step` in each
    training step (0: it feeds none); `length` is that of an epoch (-1: unknown). `wait` is the mean time in
    ``next`` without each pass's first batch, and `first` that until the first, both in nanoseconds and on the
    machine of the run, whose steps are not those of a GPU.

    `fetch` is a first measurement and `diagnosis` the whole one, where it was needed. `step` is what a
    training step takes without its input (nanoseconds), `device` that part of it in which the GPU has work
    (0: unknown); `late` is how long it then waits for its batches, and
    `left` how long under the setting that is advised. They are longest where the step is shortest. `mistakes`
    are what it yields wrongly; `untouched` are columns of its batches that the loop never uses; `notes` what
    could not be told.
    """

    made: SourceLine | None = None
    asked: SourceLine | None = None
    library: str = ""
    dataset: str = ""
    setting: Setting = Setting()
    passes: int = 0
    batches: int = 0
    ended: int = 0
    length: int = -1
    per_step: float = 0.0
    wait: float = 0.0
    first: float = 0.0
    step: Range = Range()
    device: int = 0
    late: Range = Range()
    left: Range = Range()
    fetch: Fetch | None = None
    diagnosis: Diagnosis | None = None
    mistakes: tuple[Mistake, ...] = ()
    untouched: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def restarted(self) -> bool:
        """Whether the loop starts a new pass for (nearly) each batch although many more would come."""
        # A pass that reached its end had no more batches.
        left = self.passes - self.ended
        often = left >= 5 and self.batches <= 1.5 * self.passes and self.per_step > 0
        return often and (self.length < 0 or self.length >= 5)

    @property
    def line(self) -> SourceLine | None:
        """The line to change: where the loader was made, or iterated."""
        return self.made or self.asked

"""`LoaderUse`: a DataLoader that a script's loop iterated, and what was measured of it afterwards."""

from __future__ import annotations

import msgspec

from gapless.model.estimate import Range
from gapless.model.loading import Diagnosis, Fetch, Setting
from gapless.model.loading_mistakes import Mistake
from gapless.model.source import SourceLine


class LoaderUse(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The loaders of a run that were created at one line and iterated at another.

    - `made`, `asked`: these lines; `library`: the package that created it, if the user's line only called
      that.
    - `batches`: requested in `passes`, of which `ended` came to their end; `per_step`: in each training step
      (0: it feeds none); `length`: of an epoch (-1: unknown).
    - `wait`: mean time in ``next`` without each pass's first batch; `first`: until the first; nanoseconds on
      the machine of the run, whose steps are not those of a GPU.
    - `fetch`: a first measurement; `diagnosis`: the complete one, if it was needed.
    - `step`: a training step without its input (nanoseconds); `device`: the part in which the GPU has work
      (0: unknown); `late`: its wait for batches; `left`: that under the recommended setting. The waits are
      longest if the step is shortest.
    - `mistakes`: what it yields wrongly; `untouched`: columns of its batches that the loop never uses;
      `notes`: what could not be determined.
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

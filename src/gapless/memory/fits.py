"""Whether a run fits a device, in numbers alone: for the many runs of a search, without a report of each."""

from __future__ import annotations

from typing import NamedTuple

from gapless.memory.shortfall import shortfall
from gapless.memory.simulate import Simulation
from gapless.memory.trials import Where
from gapless.model.memory import MemoryRun


class Fits(NamedTuple):
    """What a replay comes to, in bytes: what is reserved at most where it `fits`, else the least with which
    it comes through; what the process may have; the peak of what is in use; requests that find it full."""

    fits: bool
    needs: int
    has: int
    allocated: int
    retries: int


def fits(run: MemoryRun, where: Where | None = None) -> Fits:
    """`run` on its own device, or where it is asked about."""
    replay = Simulation(run, **(where or Where())._asdict()).go(points=1)
    outcome, has = replay.outcome(), replay.room
    lack = shortfall(run, where or Where(), outcome)
    if lack is not None:
        return Fits(False, lack.needs, lack.has, outcome.peak_allocated, outcome.retries)
    return Fits(True, outcome.peak_reserved, has, outcome.peak_allocated, outcome.retries)

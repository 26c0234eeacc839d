"""Whether a run fits a device, as numbers: for the many runs of a search, without a report of each."""

from __future__ import annotations

from typing import NamedTuple

from gapless.memory.shortfall import shortfall
from gapless.memory.simulate import Simulation
from gapless.memory.trials import TrialConditions
from gapless.model.memory import MemoryRun


class Fits(NamedTuple):
    """The result of a replay, in bytes.

    `needs` is the peak reserved if the run `fits`, else the least memory with which it does; `has` is what
    the process may use; `allocated` is the peak in use; `retries` counts requests that found the memory full.
    """

    fits: bool
    needs: int
    has: int
    allocated: int
    retries: int


def fits(run: MemoryRun, where: TrialConditions | None = None) -> Fits:
    """Replay `run` on its own device, or on the one described by `where`."""
    replay = Simulation(run, **(where or TrialConditions())._asdict()).go(points=1)
    outcome, has = replay.outcome(), replay.room
    lack = shortfall(run, where or TrialConditions(), outcome)
    if lack is not None:
        return Fits(False, lack.needs, lack.has, outcome.peak_allocated, outcome.retries)
    return Fits(True, outcome.peak_reserved, has, outcome.peak_allocated, outcome.retries)

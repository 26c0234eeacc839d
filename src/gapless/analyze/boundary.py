"""Which of a running script's marks end a step, told while they arrive."""

from __future__ import annotations

from gapless.analyze.steps import StepTally
from gapless.model import Mark


class StepEnds:
    """``ends(mark)`` is true where a step ends that was not counted before; `count` are those that ended.

    What ends steps may turn out later: the first mark of a kind that knows better (``gapless.step()``, the
    script's own ``profiler.step()``) ends one, whatever optimizers had been counted for.
    """

    def __init__(self) -> None:
        self.tally = StepTally()
        self.count = 0
        self._most: dict[str, int] = {}

    def __call__(self, mark: Mark) -> bool:
        self.tally.add(mark)
        kind, count = self.tally.kind, self.tally.count
        if count <= self._most.get(kind, 0):
            return False
        self._most[kind] = count
        self.count += 1
        return True

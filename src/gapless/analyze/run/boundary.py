"""Which of a running script's marks end a step, told while they arrive."""

from __future__ import annotations

from gapless.analyze.run.steps import StepTally
from gapless.model import Mark

_MAX_STEPS_WITHOUT_PROFILER = 20
"""Optimizer steps after which a profiler that steps no more is taken not to tell steps."""


class StepEnds:
    """``ends(mark)`` is true where a step ends that was not counted before; `count` are those that ended.

    What ends steps may turn out later: the first mark of a kind that knows better (``gapless.step()``, the
    script's own ``profiler.step()``) ends one, whatever optimizers had been counted for. From then on that
    kind does, until a profiler is stepped no more.
    """

    def __init__(self) -> None:
        self.tally = StepTally()
        self.count = 0
        self._most: dict[str, int] = {}
        self._kind = ""
        self._since = 0

    def __call__(self, mark: Mark) -> bool:
        self.tally.add(mark)
        self._since = 0 if mark.kind == "profiler" else self._since + 1
        kind, count = self.tally.kind, self.tally.count
        if kind == "optimizer" and self._kind == "profiler" and self._since < _MAX_STEPS_WITHOUT_PROFILER:
            kind, count = "profiler", self.tally.seen["profiler"]
        self._kind = kind
        if count <= self._most.get(kind, 0):
            return False
        self._most[kind] = count
        self.count += 1
        return True

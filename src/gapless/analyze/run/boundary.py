"""Decide which marks of a running script end a step, as they arrive."""

from __future__ import annotations

from gapless.analyze.run.steps import StepTally
from gapless.model import StepMark

_MAX_STEPS_WITHOUT_PROFILER = 20
"""Optimizer steps without a profiler step after which the profiler no longer defines steps."""


class StepEnds:
    """Call with each mark: true if a step ends that was not counted yet; `count` is their number.

    What ends steps may become known later: the first mark of a better kind (``gapless.step()``, the script's
    own ``profiler.step()``) ends a step, whatever optimizers were counted before. That kind then defines
    steps, until a profiler stops stepping.
    """

    def __init__(self) -> None:
        self.tally = StepTally()
        self.count = 0
        self._most: dict[str, int] = {}
        self._kind = ""
        self._since = 0

    def __call__(self, mark: StepMark) -> bool:
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

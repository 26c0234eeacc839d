"""What ``gapless check`` has its script's child processes do."""

from __future__ import annotations

from gapless.analyze import WARM_UP, StepTally
from gapless.capture.child import Child
from gapless.capture.children import Plan
from gapless.model import Mark

START = f"{__name__}:start"


def start(plan: Plan) -> None:
    """Emulate in this process, until as many steps have been seen as the command asks for."""
    tally = StepTally()

    def enough(mark: Mark) -> bool:
        tally.add(mark)
        return plan.steps is not None and tally.count >= plan.steps + WARM_UP

    Child(plan, enough).start()

"""What ``gapless check`` runs in its script's child processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.analyze import WARM_UP, report
from gapless.analyze.run.inference import may_train
from gapless.analyze.run.turns import are_in_turn, tally
from gapless.capture.child import Child, ChildWatcher
from gapless.capture.children import ChildPlan
from gapless.commands import _ranks
from gapless.commands._compiled import add_compile_results
from gapless.commands._loaders import Loaders
from gapless.model import Session, StepMark

if TYPE_CHECKING:
    from gapless.emulation.emulator import Emulator

START = f"{__name__}:start"


def start(plan: ChildPlan) -> None:
    """Emulate the device in this process until enough steps were made."""
    child = Child(plan, ChildStepWatcher(plan))
    child.emulator.in_turn = are_in_turn
    child.start()


class ChildStepWatcher(ChildWatcher):
    """Counts a child's steps; the first rank also measures loaders and compiled code."""

    def __init__(self, plan: ChildPlan) -> None:
        self._plan = plan
        self._tally = tally()
        self._loaders = Loaders(plan.loader, lambda where, budget: None) if plan.loader else None

    def enough(self, mark: StepMark) -> bool:
        self._tally.add(mark)
        if mark.kind == "along":
            return False
        if self._loaders is not None:
            self._loaders.step()
        if self._plan.steps is None or (self._tally.kind == "forward" and may_train(mark)):
            return False
        return self._tally.count >= self._plan.steps + WARM_UP

    def complete_session(self, session: Session, emulator: Emulator) -> Session:
        # Only one rank measures: several would slow each other down. Which one it is shows only now.
        if self._plan.world_size is None and (session.environment.rank or _ranks.rank()):
            return session
        if self._plan.compiled:
            session = add_compile_results(session, emulator, lambda text: None)
        if self._loaders is None:
            return session
        priced = report(session, priced=self._plan.programme)
        return self._loaders.examine_session(session, priced, self._tally.count)[0]

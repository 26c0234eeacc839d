"""What ``gapless check`` runs in its script's child processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.analyze import WARM_UP
from gapless.analyze.run.inference import may_train
from gapless.analyze.run.turns import are_in_turn, tally
from gapless.analyze.session_report import draft
from gapless.capture.child import Child, ChildWatcher
from gapless.capture.children import ChildPlan
from gapless.capture.options import CaptureOptions
from gapless.commands import _ranks
from gapless.commands._compiled import add_compile_results
from gapless.commands._loaders import Loaders
from gapless.model import Session, StepMark

if TYPE_CHECKING:
    from gapless.emulation.emulator import Emulator

START = f"{__name__}:start"


def start(plan: ChildPlan) -> None:
    """Emulate the device in this process until enough steps were made."""
    child = Child(plan, ChildStepWatcher(plan.capture))
    child.emulator.in_turn = are_in_turn
    child.start()


class ChildStepWatcher(ChildWatcher):
    """Counts a child's steps; the first rank also measures loaders and compiled code."""

    def __init__(self, options: CaptureOptions) -> None:
        self._options = options
        self._tally = tally()
        self._loaders = Loaders(options.loader_budget, lambda where, budget: None) if options.loader else None

    def enough(self, mark: StepMark) -> bool:
        self._tally.add(mark)
        if mark.kind == "along":
            return False
        if self._loaders is not None:
            self._loaders.step()
        if self._options.steps is None or (self._tally.kind == "forward" and may_train(mark)):
            return False
        return self._tally.count >= self._options.steps + WARM_UP

    def complete_session(self, session: Session, emulator: Emulator) -> Session:
        # Only one rank measures: several would slow each other down. Which one it is shows only now.
        if self._options.emulator.world_size is None and (session.environment.rank or _ranks.rank()):
            return session
        if self._options.emulator.compiled:
            session = add_compile_results(session, emulator, lambda text: None)
        if self._loaders is None:
            return session
        estimated = draft(session, priced=self._options.emulator.programme)
        return self._loaders.examine_session(session, estimated, self._tally.count)[0]

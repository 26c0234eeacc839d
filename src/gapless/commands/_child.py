"""What ``gapless check`` has its script's child processes do."""

from __future__ import annotations

from gapless.analyze import WARM_UP, StepTally, report
from gapless.capture.child import Child
from gapless.capture.children import Plan
from gapless.commands import _ranks
from gapless.commands._compiled import with_compiled
from gapless.commands._loaders import Loaders
from gapless.model import Mark, Session

START = f"{__name__}:start"


def start(plan: Plan) -> None:
    """Emulate in this process, until as many steps have been seen as the command asks for."""
    tally = StepTally()
    loaders = Loaders(plan.loader, lambda where, budget: None) if plan.loader else None

    def enough(mark: Mark) -> bool:
        tally.add(mark)
        if loaders is not None:
            loaders.step()
        return plan.steps is not None and tally.count >= plan.steps + WARM_UP

    def completed(session: Session) -> Session:
        # One rank measures for all; the others would be in its way. Which one this is shows only now.
        if plan.world_size is None and (session.environment.rank or _ranks.rank()):
            return session
        if plan.compiled:
            session = with_compiled(session, child.emulator, lambda text: None)
        if loaders is None:
            return session
        return loaders.examined(session, report(session, priced=plan.programme), tally.count)[0]

    child = Child(plan, enough)
    child.completed = completed
    child.start()

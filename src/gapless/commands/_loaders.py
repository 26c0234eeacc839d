"""What ``gapless check`` does about a script's loaders: looks on, and measures those that feed its steps."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from gapless.analyze.run.loop import Loop
from gapless.commands import _ranks
from gapless.model import Report, Session
from gapless.model.loader_use import LoaderUse

BUDGET = 6.0
"""Seconds for all loaders of a script."""
_CUT = "measuring the loaders was interrupted"
_ENDED_WELL = ("enough-steps", "finished", "exit")


class Loaders:
    """Looks on while the script runs; `examined` then measures, for about `budget` seconds."""

    def __init__(self, budget: float, tell: Callable[[str, float], None]) -> None:
        from gapless.loading.uses import Uses

        self._uses = Uses()
        self._budget, self._tell = budget, tell
        self._folder = os.getcwd()
        self.status = 0
        self.step = self._uses.stepped
        self._uses.start()

    def of_loop(self, loop: Loop) -> tuple[float, int]:
        """How many batches of a loader each step has in `loop`, and a pass of it; zeros where it has none."""
        from gapless.loading.batches import length_of

        here = (loop.file, loop.first)
        uses = [use for use in self._uses.uses if use.asked and (use.asked.file, use.asked.line) == here]
        use = max(uses, key=lambda one: one.per_step(self._uses.steps), default=None)
        if use is None:
            return 0.0, 0
        length = length_of(use.loader) if use.loader is not None else 0
        return use.per_step(self._uses.steps), max(length, 0)

    def examined(self, session: Session, found: Report, steps: int) -> tuple[Session, Report]:
        """`session` and its report with what the loaders do; as they were where none was gone through.

        A request to end the process is heeded: then the report comes with what is known until then.
        """
        self._uses.stop()
        measured = session.loaders  # by the process that made the steps, where this one has started it
        if measured or not self._uses.uses or not can_measure(session):
            return session, found
        from gapless.analyze.session_report import with_loaders
        from gapless.capture.signals import INTERRUPTED, TERMINATED, Terminated, terminable
        from gapless.loading.examine import Interrupted

        try:
            with terminable():
                uses = self._examine(found, steps)
        except Interrupted as cut:
            self.status = TERMINATED if isinstance(cut.request, Terminated) else INTERRUPTED
            uses, found = cut.found, _noted(found, _CUT)
        except (KeyboardInterrupt, Terminated) as request:
            self.status = INTERRUPTED if isinstance(request, KeyboardInterrupt) else TERMINATED
            return session, _noted(found, _CUT)
        except Exception as error:  # what was seen of the waits is not to be lost for it
            why = f"{type(error).__name__}: {error}".split("\n")[0]
            return session, _noted(found, f"the loaders could not be measured: {why}")
        return msgspec.structs.replace(session, loaders=uses), with_loaders(found, uses, session.memory)

    def _examine(self, report: Report, steps: int) -> tuple[LoaderUse, ...]:
        from gapless.loading.examine import Step, examine

        estimate, waits = report.estimate, report.steps.waits_per_step
        known = estimate is not None and not estimate.refused
        if estimate is not None and known:
            length, host, device = estimate.step, estimate.host, estimate.device
            step = Step(length, steps, _ranks.here(), host, waits, device)
        else:
            step = Step(None, steps, _ranks.here(), None, waits)
        with undisturbed():
            return examine(self._uses, step, self._budget, self._said)

    def _said(self, use: LoaderUse) -> None:
        line = use.line
        where = use.dataset if line is None else f"{os.path.relpath(line.file, self._folder)}:{line.line}"
        self._tell(where, self._budget)


def _noted(report: Report, note: str) -> Report:
    return msgspec.structs.replace(report, notes=(*report.notes, note))


def can_measure(session: Session) -> bool:
    """Whether the process is as the script left it, and not about to end."""
    if session.ending.how not in _ENDED_WELL or session.ending.status:
        return False
    return session.ending.message != "os._exit" and threading.current_thread() is threading.main_thread()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Copies of this process, and what they start, are the host's alone: nobody records them."""
    from gapless.capture.children import VARIABLE
    from gapless.capture.forks import plain_forks

    told = os.environ.pop(VARIABLE, None)
    try:
        with plain_forks():
            yield
    finally:
        if told is not None:
            os.environ[VARIABLE] = told

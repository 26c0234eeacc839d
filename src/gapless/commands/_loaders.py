"""What ``gapless check`` does about a script's loaders: watch them, then measure those that feed its
steps."""

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

_CUT = "measuring the loaders was interrupted"


class Loaders:
    """Watches loaders while the script runs; `examine_session` then measures them for about `budget`
    seconds."""

    def __init__(self, budget: float, tell: Callable[[str, float], None]) -> None:
        from gapless.loading.uses import Uses

        self._uses = Uses()
        self._budget, self._tell = budget, tell
        self._folder = os.getcwd()
        self.status = 0
        self.step = self._uses.stepped
        self._uses.start()

    def of_loop(self, loop: Loop) -> tuple[float, int]:
        """Return batches per step and batches per pass of the loader that `loop` iterates; zeros if there is
        none."""
        from gapless.loading.batches import length_of

        here = (loop.file, loop.first)
        uses = [use for use in self._uses.uses if use.asked and (use.asked.file, use.asked.line) == here]
        use = max(uses, key=lambda candidate: candidate.per_step(self._uses.steps), default=None)
        if use is None:
            return 0.0, 0
        length = length_of(use.loader) if use.loader is not None else 0
        return use.per_step(self._uses.steps), max(length, 0)

    def have_work(self, session: Session) -> bool:
        """Whether `examine_session` has anything to measure."""
        measured = session.loaders  # by the process that made the steps, if this one started it
        return not measured and bool(self._uses.uses) and can_measure(session)

    def examine_session(self, session: Session, draft: Report, steps: int) -> tuple[Session, Report]:
        """Return `session` with what the loaders do, and the `draft` of its report with notes on how that was
        measured; both unchanged if no loader was iterated.

        A request to end the process is obeyed: the session then has what was measured so far.
        """
        self._uses.stop()
        if not self.have_work(session):
            return session, draft
        from gapless.capture.signals import INTERRUPTED, TERMINATED, Terminated, terminable
        from gapless.loading.examine import Interrupted

        try:
            with terminable():
                uses = self._examine(draft, steps)
        except Interrupted as cut:
            self.status = TERMINATED if isinstance(cut.request, Terminated) else INTERRUPTED
            uses, draft = cut.uses, _add_note(draft, _CUT)
        except (KeyboardInterrupt, Terminated) as request:
            self.status = INTERRUPTED if isinstance(request, KeyboardInterrupt) else TERMINATED
            return session, _add_note(draft, _CUT)
        except Exception as error:  # a failing measurement must not lose what the run recorded
            why = f"{type(error).__name__}: {error}".split("\n")[0]
            return session, _add_note(draft, f"the loaders could not be measured: {why}")
        return msgspec.structs.replace(session, loaders=uses), draft

    def _examine(self, report: Report, steps: int) -> tuple[LoaderUse, ...]:
        from gapless.loading.examine import StepTimes, examine

        estimate, waits = report.estimate, report.steps.waits_per_step
        has_estimate = estimate is not None and not estimate.refused
        if estimate is not None and has_estimate:
            length, host, device = estimate.step, estimate.host, estimate.device
            step = StepTimes(length, steps, _ranks.here(), host, waits, device)
        else:
            step = StepTimes(None, steps, _ranks.here(), None, waits)
        with without_recording():
            return examine(self._uses, step, self._budget, self._announce)

    def _announce(self, use: LoaderUse) -> None:
        line = use.line
        where = use.dataset if line is None else f"{os.path.relpath(line.file, self._folder)}:{line.line}"
        self._tell(where, self._budget)


def _add_note(report: Report, note: str) -> Report:
    return msgspec.structs.replace(report, notes=(*report.notes, note))


def can_measure(session: Session) -> bool:
    """Whether the script ended well and this process is not about to end."""
    if not session.ending.is_good:
        return False
    return session.ending.message != "os._exit" and threading.current_thread() is threading.main_thread()


@contextmanager
def without_recording() -> Iterator[None]:
    """Keep copies of this process, and what they start, from being recorded."""
    from gapless.capture.children import VARIABLE
    from gapless.capture.forks import plain_forks

    recording = os.environ.pop(VARIABLE, None)
    try:
        with plain_forks():
            yield
    finally:
        if recording is not None:
            os.environ[VARIABLE] = recording

"""What ``gapless check`` does with what it sees: follows the script's steps, and says what came of them."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from gapless.analyze import WARM_UP, report
from gapless.analyze.run.enough import Enough
from gapless.analyze.run.inference import ITERATION, TRAINING_STEP, may_train, noun_of
from gapless.analyze.run.planned import Planner
from gapless.analyze.run.turns import tally
from gapless.capture.children import Plan
from gapless.capture.finishing import Abandoned, Finishing
from gapless.capture.stopping import Watcher, variables
from gapless.commands import _gate, _host, _output, _ranks
from gapless.commands._again import Again
from gapless.commands._compiled import with_compiled
from gapless.commands._fit import Fit
from gapless.commands._loaders import Loaders
from gapless.commands._progress import Progress
from gapless.errors import EXIT_FINDINGS, GaplessError, UnreadableInput
from gapless.files.output import is_stream
from gapless.model import Mark, Recurrence, Report, Session
from gapless.model.assumption import Switch
from gapless.model.offer import Wanted
from gapless.model.planned import Planned
from gapless.model.session import save
from gapless.model.tally import UNTRAINED
from gapless.render import renderer

if TYPE_CHECKING:
    from gapless.emulation.distributed.world import World
    from gapless.emulation.emulator import Emulator


@dataclass(frozen=True)
class Wishes:
    """The command's options: the `plan` has those that say what is recorded.

    `dry` is None where it is for the run to tell, and `world` has the ranks that are said to be there besides
    this process, if any.
    """

    plan: Plan
    world: World | None
    dry: bool | None
    max_waits: float | None
    fail_on: tuple[str, ...]
    output: str | None
    shown: _output.Shown
    quiet: bool
    calibrate: str | None
    what_if: tuple[str, ...]
    fit: Fit
    longer: float
    wanted: Wanted | None


class Watch(Watcher):
    """Follows the script from one step mark to the next: counts, tells, and says when steps are enough.

    One rank speaks for all, and looks at the loaders for all: they run the same steps.
    """

    def __init__(self, wishes: Wishes) -> None:
        steps = wishes.plan.steps or 0
        self.progress = Progress(
            _output.own_copy(sys.stderr),
            wishes.plan.steps and steps + WARM_UP,
            quiet=wishes.quiet,
            color=not wishes.shown.no_color,
        )
        self.tally = tally()
        self._until = Enough(
            steps + WARM_UP,
            lambda at: variables(at.file, at.first, at.last),
            wishes.longer,
            batches=lambda at: self.loaders.of_loop(at)[0] if self.loaders is not None else 0.0,
        )
        self._planner = Planner(
            lambda at: variables(at.file, at.first, at.last),
            lambda at: self.loaders.of_loop(at) if self.loaders is not None else (0.0, 0),
        )
        self.speaks = _ranks.rank() == 0
        self.loaders: Loaders | None = None
        self._wishes = wishes

    def begin(self, name: str, gpu: str) -> None:
        """The script is about to run: from now on its loaders are taken note of."""
        if not self.speaks:
            return
        world, plan = self._wishes.world, self._wishes.plan
        rank = world[1::-1] if world is not None else None
        self.progress.begin(name, gpu, plan.steps, rank, dry=bool(self._wishes.dry))
        if plan.loader and "torch" in sys.modules:
            self.loaders = Loaders(plan.loader, self.progress.loader)

    def enough(self, mark: Mark) -> bool:
        self.tally.add(mark)
        if mark.kind == "along":
            return False
        self.progress.noun = ITERATION if self.tally.kind in UNTRAINED else TRAINING_STEP
        self.progress.step(self.tally.count)
        self._planner(mark, self.tally.count)
        if self.loaders is not None:
            self.loaders.step()
        if self._wishes.plan.steps is None or (self.tally.kind in UNTRAINED and may_train(mark)):
            return False
        if self.tally.kind == "wait":  # which of its loops is the one to look at shows only at the end
            return False
        if self._until(mark, self.tally.count):
            return True
        if self.tally.count == self._until.steps:
            self.progress.longer(self._until.waiting_for(), self._until.longer)
        return False

    def overdue(self, seconds: float) -> bool:
        return self._until.overdue(seconds)

    def phases(self) -> tuple[Recurrence, ...]:
        return self._until.phases()

    def planned(self) -> Planned:
        return self._planner.planned

    def switched(self, switch: Switch) -> None:
        """What the script prints from now on is assumed: it is told before it does."""
        self.progress.without_values(switch)

    def recount(self, session: Session) -> None:
        """The steps are those of `session`, which another process has recorded."""
        self.tally = tally()
        for mark in session.marks:
            self.tally.add(mark)

    def end(self, session: Session) -> None:
        """The script has ended; its steps may have been made in a child."""
        if not self.tally.count:
            for mark in session.marks:
                self.tally.add(mark)
        if self.speaks:
            self.progress.noun = noun_of(session)
            self.progress.end(session, self.tally.count)


class Conclusion:
    """Saves and reports a session, and remembers the exit status that follows from it."""

    def __init__(
        self, wishes: Wishes, watch: Watch, again: Again | None = None, finishing: Finishing | None = None
    ) -> None:
        self.wishes = wishes
        self._finishing = finishing or Finishing(watch.progress.unbuffered)
        self._saved = False
        self.watch = watch
        self.status = 0
        self._again = again
        self._stream = _output.own_copy(sys.stdout)
        hints = () if wishes.output else ("save it with -o FILE",)
        self._style = wishes.shown.style(self._stream, hints=hints)
        self._calibration = os.path.abspath(wishes.calibrate) if wishes.calibrate else ""
        self._output = wishes.output and os.path.abspath(_ranks.path_for(wishes.output, _ranks.rank()))
        asked = wishes.plan.programme and not wishes.calibrate and watch.speaks
        self._host = _host.speed(wishes.fit.host) if asked else None  # now, before the script uses torch

    def __call__(self, session: Session, emulator: Emulator | None = None) -> None:
        """Save and report `session`, whatever signals arrive meanwhile.

        `emulator` is what the script ran on; without, what it compiles is not compiled again.
        """
        self.status = session.ending.status
        if session.ending.how == "interrupted" and session.ending.message:  # SIGTERM, and SIGKILL follows
            self._finishing.hurry()
        self._session = session
        self._finishing.may_leave()
        try:
            self._conclude(session, emulator)
        except Abandoned as request:
            self.status = request.status
            self._rescue("stopped before the report was written")

    def _conclude(self, session: Session, emulator: Emulator | None) -> None:
        self.watch.end(session)
        asked = {"wanted": self.wishes.wanted, "what_if": self.wishes.what_if}
        failed = session
        anew = self._finishing.attempt(lambda: self._with_values(failed, emulator), None)
        if anew is not None and anew.failed_dry is not None and not anew.failed_dry.kept:
            session, self.status = msgspec.structs.replace(anew, **asked), anew.ending.status
            self.watch.recount(session)
        else:
            session = self._calibrated(session if anew is None else anew)
            session = msgspec.structs.replace(session, **asked)
            if emulator is not None and self.wishes.plan.compiled and self.watch.speaks:
                recorded = session
                session = self._finishing.attempt(
                    lambda: with_compiled(recorded, emulator, self.watch.progress.tried), recorded
                )
        self._save(session)
        told = self.watch.speaks and not self.wishes.fit.silent
        found = report(session, priced=self.wishes.plan.programme) if told else None
        loaders = self.watch.loaders
        if found is not None and loaders is not None:
            steps, unfed = self.watch.tally.count, (session, found)
            session, found = self._finishing.attempt(lambda: loaders.examined(*unfed, steps), unfed)
            self.status = self.status or loaders.status
            if session.loaders:
                self._save(session)
        if found is not None and self._again is not None and self._tries(found):
            from gapless.commands._remedies import with_remedies

            lacking, again = (session, found), self._again
            session, found = self._finishing.attempt(
                lambda: with_remedies(*lacking, again, self.watch.progress), lacking
            )
        if self._save(session, last=True):
            self.watch.progress.saved(self._style.path(self._output or ""))
        if found is not None:
            self._report(found)

    def _with_values(self, session: Session, emulator: Emulator | None) -> Session | None:
        """The session of the script run again with values, or one that says why not; None where the script
        did not fail for want of values, or nobody is to be told."""
        if not session.environment.dry or self.wishes.fit.silent or not self.watch.speaks:
            return None
        from gapless.commands._with_values import with_values

        may = emulator is not None and self.wishes.fit.tries and not _ranks.several()
        core = emulator.core if emulator is not None else None
        return with_values(
            session,
            self._again if may else None,
            self.watch.progress,
            explicit=bool(self.wishes.dry),
            peak=sum(core.peak_allocated(n) for n in range(core.device_count)) if core is not None else 0,
        )

    def _tries(self, report: Report) -> bool:
        """Whether the script is to be run again with changes that may make it fit."""
        lacks = any(memory.ends_it for memory in report.memory)
        return lacks and self.wishes.fit.tries and not _ranks.several()

    def _save(self, session: Session, last: bool = False) -> bool:
        """Save what there is so far, where a file can be written again later; the `last` time anywhere.

        Whether it was saved: that it was not is said once, and does not keep the report from being shown.
        """
        self._session = session
        if not self._output or (is_stream(self._output) and not last):
            return False
        try:
            save(session, self._output)
        except UnreadableInput as error:
            if last:
                self.watch.progress.problem(str(error))
                self.status = self.status or error.exit_code
            return False
        self._saved = True
        return True

    def _rescue(self, why: str) -> None:
        """Say where the session is that was not reported; a temporary file where none was asked for."""
        path = self._style.path(self._output or "")
        if not self._saved:
            try:
                descriptor, path = tempfile.mkstemp(prefix="gapless-", suffix=".gapless.json")
                os.close(descriptor)
                save(self._session, path)
            except (OSError, UnreadableInput) as error:
                self.watch.progress.problem(f"{why}, and the session could not be saved: {error}")
                return
        self.watch.progress.problem(f"{why}; the session is saved: gapless show {path}")

    def _calibrated(self, session: Session) -> Session:
        """The session with the times of the profile that the user named, or the host's speed; they are saved
        with it."""
        programme = session.programme
        if programme is None:
            return session
        programme = self.wishes.fit.joined(programme)
        if not self._calibration:
            paced = msgspec.structs.replace(programme, host=self._host)
            return msgspec.structs.replace(session, programme=paced)
        from gapless.analyze.estimate.measure import calibrated

        return msgspec.structs.replace(session, programme=calibrated(self._calibration, programme))

    def _report(self, report: Report) -> None:
        shown = self.wishes.shown
        text = shown.lead + renderer(shown.form)(report, self._style)
        try:
            if not _output.write(self._stream, text):
                self._rescue("the report's reader has gone")
        except GaplessError as error:
            self._rescue(str(error))
            self.status = self.status or error.exit_code
        over = _gate.exceeded(report, self.wishes.max_waits, self.wishes.fail_on)
        for reason in over:
            self.watch.progress.problem(reason)
        if over and not self.status:
            self.status = EXIT_FINDINGS

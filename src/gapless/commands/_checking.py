"""What ``gapless check`` does during and after the run: follow the script's steps, then save and report."""

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
from gapless.capture.children import ChildPlan
from gapless.capture.finishing import Abandoned, Finishing
from gapless.capture.stopping import Watcher, variables
from gapless.commands import _gate, _host, _output, _ranks
from gapless.commands._again import Rerun
from gapless.commands._compiled import add_compile_results
from gapless.commands._fit import Fit
from gapless.commands._loaders import Loaders
from gapless.commands._progress import Progress
from gapless.errors import EXIT_FINDINGS, GaplessError, UnreadableInput
from gapless.files.output import is_stream
from gapless.model import Recurrence, Report, Session, StepMark
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
class CheckOptions:
    """The options of ``gapless check``; those about what is recorded are in `plan`.

    `dry` is None if the run decides whether to compute values; `world` describes the simulated ranks, if any.
    """

    plan: ChildPlan
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


class CheckWatcher(Watcher):
    """Follows the script from one step mark to the next: counts, reports progress, and stops after enough
    steps.

    Only one rank reports and watches the loaders: all ranks run the same steps.
    """

    def __init__(self, options: CheckOptions) -> None:
        steps = options.plan.steps or 0
        self.progress = Progress(
            _output.own_copy(sys.stderr),
            options.plan.steps and steps + WARM_UP,
            quiet=options.quiet,
            color=not options.shown.no_color,
        )
        self.tally = tally()
        self._until = Enough(
            steps + WARM_UP,
            lambda at: variables(at.file, at.first, at.last),
            options.longer,
            batches=lambda at: self.loaders.of_loop(at)[0] if self.loaders is not None else 0.0,
        )
        self._planner = Planner(
            lambda at: variables(at.file, at.first, at.last),
            lambda at: self.loaders.of_loop(at) if self.loaders is not None else (0.0, 0),
        )
        self.speaks = _ranks.rank() == 0
        self.loaders: Loaders | None = None
        self._options = options

    def begin(self, name: str, gpu: str) -> None:
        """Announce the run, and watch the loaders that the script creates from now on."""
        if not self.speaks:
            return
        world, plan = self._options.world, self._options.plan
        rank = world[1::-1] if world is not None else None
        self.progress.begin(name, gpu, plan.steps, rank, dry=bool(self._options.dry))
        if plan.loader and "torch" in sys.modules:
            self.loaders = Loaders(plan.loader, self.progress.loader)

    def enough(self, mark: StepMark) -> bool:
        self.tally.add(mark)
        if mark.kind == "along":
            return False
        self.progress.noun = ITERATION if self.tally.kind in UNTRAINED else TRAINING_STEP
        self.progress.step(self.tally.count)
        self._planner(mark, self.tally.count)
        if self.loaders is not None:
            self.loaders.step()
        if self._options.plan.steps is None or (self.tally.kind in UNTRAINED and may_train(mark)):
            return False
        if self.tally.kind == "wait":  # which of its loops matters shows only at the end
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

    def announce_switch(self, switch: Switch) -> None:
        """Say, before the script prints any, that its numbers are assumed from now on."""
        self.progress.without_values(switch)

    def recount(self, session: Session) -> None:
        """Count the steps of `session`, which another process recorded."""
        self.tally = tally()
        for mark in session.marks:
            self.tally.add(mark)

    def end(self, session: Session) -> None:
        """Report the end of the run, counting steps that a child process made."""
        if not self.tally.count:
            for mark in session.marks:
                self.tally.add(mark)
        if self.speaks:
            self.progress.noun = noun_of(session)
            self.progress.end(session, self.tally.count)


class Conclusion:
    """Saves and reports a session, and keeps the exit status that follows from it."""

    def __init__(
        self,
        options: CheckOptions,
        watch: CheckWatcher,
        again: Rerun | None = None,
        finishing: Finishing | None = None,
    ) -> None:
        self.options = options
        self._finishing = finishing or Finishing(watch.progress.write_unbuffered)
        self._saved = False
        self.watch = watch
        self.status = 0
        self._again = again
        self._stream = _output.own_copy(sys.stdout)
        hints = () if options.output else ("save it with -o FILE",)
        self._style = options.shown.style(self._stream, hints=hints)
        self._calibration = os.path.abspath(options.calibrate) if options.calibrate else ""
        self._output = options.output and os.path.abspath(_ranks.path_for(options.output, _ranks.rank()))
        measures_host = options.plan.programme and not options.calibrate and watch.speaks
        self._host = (
            _host.resolve_host_speed(options.fit.host) if measures_host else None
        )  # now, before the script uses torch

    def __call__(self, session: Session, emulator: Emulator | None = None) -> None:
        """Save and report `session`, whatever signals arrive meanwhile.

        `emulator` is the device that the script ran on; without it no code is compiled again.
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
        requests = {"wanted": self.options.wanted, "what_if": self.options.what_if}
        failed = session
        rerun = self._finishing.attempt(lambda: self._with_values(failed, emulator), None)
        if rerun is not None and rerun.failed_dry is not None and not rerun.failed_dry.kept:
            session, self.status = msgspec.structs.replace(rerun, **requests), rerun.ending.status
            self.watch.recount(session)
        else:
            session = self._calibrate(session if rerun is None else rerun)
            session = msgspec.structs.replace(session, **requests)
            if emulator is not None and self.options.plan.compiled and self.watch.speaks:
                recorded = session
                session = self._finishing.attempt(
                    lambda: add_compile_results(recorded, emulator, self.watch.progress.announce), recorded
                )
        self._save(session)
        reports_here = self.watch.speaks and not self.options.fit.silent
        built_report = report(session, priced=self.options.plan.programme) if reports_here else None
        loaders = self.watch.loaders
        if built_report is not None and loaders is not None:
            steps, unfed = self.watch.tally.count, (session, built_report)
            session, built_report = self._finishing.attempt(
                lambda: loaders.examine_session(*unfed, steps), unfed
            )
            self.status = self.status or loaders.status
            if session.loaders:
                self._save(session)
        if built_report is not None and self._again is not None and self._should_try_changes(built_report):
            from gapless.commands._remedies import with_remedies

            lacking, again = (session, built_report), self._again
            session, built_report = self._finishing.attempt(
                lambda: with_remedies(*lacking, again, self.watch.progress), lacking
            )
        if self._save(session, last=True):
            self.watch.progress.saved(self._style.path(self._output or ""))
        if built_report is not None:
            self._report(built_report)

    def _with_values(self, session: Session, emulator: Emulator | None) -> Session | None:
        """Return the session of a second run with values, or `session` with the reason why there was none.

        None if the script did not fail for want of values, or this process reports nothing.
        """
        if not session.environment.dry or self.options.fit.silent or not self.watch.speaks:
            return None
        from gapless.commands._with_values import with_values

        may = emulator is not None and self.options.fit.tries and not _ranks.several()
        core = emulator.core if emulator is not None else None
        return with_values(
            session,
            self._again if may else None,
            self.watch.progress,
            explicit=bool(self.options.dry),
            peak=sum(core.peak_allocated(n) for n in range(core.device_count)) if core is not None else 0,
        )

    def _should_try_changes(self, report: Report) -> bool:
        """Whether to run the script again with changes that may make it fit."""
        lacks = any(memory.ends_it for memory in report.memory)
        return lacks and self.options.fit.tries and not _ranks.several()

    def _save(self, session: Session, last: bool = False) -> bool:
        """Save the session if the file can be written again later, or if this is the `last` time.

        Returns whether it was saved. A failure is reported once, and does not keep the report from being
        shown.
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
        """Say where the unreported session is saved; without -o it goes to a temporary file."""
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

    def _calibrate(self, session: Session) -> Session:
        """Return the session with the kernel times of the user's profile, or else with the host's speed."""
        programme = session.programme
        if programme is None:
            return session
        programme = self.options.fit.with_links(programme)
        if not self._calibration:
            paced = msgspec.structs.replace(programme, host=self._host)
            return msgspec.structs.replace(session, programme=paced)
        from gapless.analyze.estimate.measure import calibrate

        return msgspec.structs.replace(session, programme=calibrate(self._calibration, programme))

    def _report(self, report: Report) -> None:
        shown = self.options.shown
        text = shown.lead + renderer(shown.form)(report, self._style)
        try:
            if not _output.write(self._stream, text):
                self._rescue("the report's reader has gone")
        except GaplessError as error:
            self._rescue(str(error))
            self.status = self.status or error.exit_code
        over = _gate.find_exceeded_limits(report, self.options.max_waits, self.options.fail_on)
        for reason in over:
            self.watch.progress.problem(reason)
        if over and not self.status:
            self.status = EXIT_FINDINGS

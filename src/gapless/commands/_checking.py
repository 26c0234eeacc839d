"""What ``gapless check`` does during and after the run: follow the script's steps, then save and report."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from gapless.analyze import WARM_UP
from gapless.analyze.run.enough import Enough
from gapless.analyze.run.inference import ITERATION, TRAINING_STEP, may_train, noun_of
from gapless.analyze.run.planned import Planner
from gapless.analyze.run.turns import tally
from gapless.analyze.session_report import draft, with_loaders
from gapless.capture.finishing import Abandoned, Finishing
from gapless.capture.options import CaptureOptions
from gapless.capture.stopping import Watcher, variables
from gapless.commands import _gate, _gpus, _host, _installed_gpu, _output, _ranks
from gapless.commands._again import Rerun
from gapless.commands._compiled import add_compile_results
from gapless.commands._fit import Fit
from gapless.commands._fixes import with_fixes
from gapless.commands._loaders import Loaders
from gapless.commands._progress import Progress
from gapless.emulation.options import EmulatorOptions
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
    from gapless.emulation.emulator import Emulator


class CheckOptions(msgspec.Struct, frozen=True):
    """The options of ``gapless check``; those about what is recorded are in `capture`.

    `gpus` are the names given with --gpu: the first is emulated, the others are estimated. The run goes on
    for up to `longer` seconds to reach what its steps have not shown.
    """

    capture: CaptureOptions = CaptureOptions(
        EmulatorOptions(programme=True, compiled=True, dry=None, lasting=True, inference=True)
    )
    gpus: str | None = None
    max_waits: float | None = None
    fail_on: tuple[str, ...] = ()
    output: str | None = None
    calibrate: str | None = None
    what_if: tuple[str, ...] = ()
    fit: Fit = Fit()
    shown: _output.Shown = _output.Shown()
    quiet: bool = False
    longer: float = 0.0

    @property
    def emulator(self) -> EmulatorOptions:
        return self.capture.emulator

    @property
    def priced_gpus(self) -> Wanted | None:
        """The GPUs to estimate the run for, and their prices."""
        return _gpus.choose_gpus(self.gpus, self.fit.price)[1]

    def decide(self, longer: float) -> CheckOptions:
        """Return what the command follows where options depend on each other.

        Ranks end at the same step, and agree on whether the data that they exchange has values.

        Raises:
            UsageError: there is no GPU of a name.
        """
        gpu, wanted = _gpus.choose_gpus(self.gpus, self.fit.price)
        if gpu is None:
            gpu, unlisted = _installed_gpu.gpu_of_this_machine()
            if unlisted and not _ranks.rank():
                _output.say(unlisted)
        several = _ranks.several()
        capture = self.capture.emulating(
            gpu=gpu,
            memory=self.emulator.memory or wanted is not None,
            dry=bool(self.emulator.dry) if several else self.emulator.dry,
        )
        return msgspec.structs.replace(self, capture=capture, longer=0.0 if several else longer)

    def with_own_code(self, folder: str) -> CheckOptions:
        """Return the options with the installed code of the project around the script's `folder`, too."""
        from gapless.emulation.support.projects import installed_from

        own = (*self.emulator.own, *installed_from(folder))
        return msgspec.structs.replace(self, capture=self.capture.emulating(own=own))


class CheckWatcher(Watcher):
    """Follows the script from one step mark to the next: counts, reports progress, and stops after enough
    steps.

    Only one rank reports and watches the loaders: all ranks run the same steps.
    """

    def __init__(self, options: CheckOptions) -> None:
        steps = options.capture.steps or 0
        self.progress = Progress(
            _output.own_copy(sys.stderr),
            options.capture.steps and steps + WARM_UP,
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
        capture, emulator = self._options.capture, self._options.emulator
        rank = (emulator.rank or 0, emulator.world_size) if emulator.world_size is not None else None
        self.progress.begin(name, gpu, capture.steps, rank, dry=bool(emulator.dry))
        if capture.loader and "torch" in sys.modules:
            self.loaders = Loaders(capture.loader_budget, self.progress.loader)

    def enough(self, mark: StepMark) -> bool:
        self.tally.add(mark)
        if mark.kind == "along":
            return False
        self.progress.noun = ITERATION if self.tally.kind in UNTRAINED else TRAINING_STEP
        self.progress.step(self.tally.count)
        self._planner(mark, self.tally.count)
        if self.loaders is not None:
            self.loaders.step()
        if self._options.capture.steps is None or (self.tally.kind in UNTRAINED and may_train(mark)):
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
        self._rank = _ranks.rank()
        self._output = options.output and os.path.abspath(_ranks.path_for(options.output, self._rank))
        measures_host = options.emulator.programme and not options.calibrate and watch.speaks
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
        except Exception:  # a defect must not lose what the run recorded
            self._rescue("the report failed")
            raise

    def _conclude(self, session: Session, emulator: Emulator | None) -> None:
        """Complete, save and report `session`; measure its loaders and try changes that may make it fit."""
        self.watch.end(session)
        session = self._session = self._complete(session, emulator)
        document = None
        if self.watch.speaks and not self.options.fit.silent:
            document = draft(session, priced=self.options.emulator.programme)
            session, document = self._measure_loaders(session, document)
            session, document = self._try_changes(session, document)
        early = _ranks.describe_end(self._rank, session.ending) if self._rank else ""
        if early:
            self._rescue(early)
        else:
            self._save(session)
        if document is not None:
            report = with_loaders(document, session.loaders, session.memory)
            self._report(with_fixes(report, session, self.options.shown.form))

    def _complete(self, session: Session, emulator: Emulator | None) -> Session:
        """Return the session to report: that of another run if this one lacked values, calibrated, and with
        what the script compiled.
        """
        requests = {"wanted": self.options.priced_gpus, "what_if": self.options.what_if}
        if session.environment.dry and not session.ending.is_good:
            self._save_early(session)
        rerun = self._finishing.attempt(lambda: self._with_values(session, emulator), None)
        if rerun is not None and rerun.failed_dry is not None and not rerun.failed_dry.kept:
            self.status = rerun.ending.status
            self.watch.recount(rerun)
            return msgspec.structs.replace(rerun, **requests)
        recorded = self._calibrate(session if rerun is None else rerun)
        recorded = msgspec.structs.replace(recorded, **requests)
        if emulator is None or not self.options.emulator.compiled or not self.watch.speaks:
            return recorded
        if emulator.compiled.targets:
            self._save_early(recorded)
        return self._finishing.attempt(
            lambda: add_compile_results(recorded, emulator, self.watch.progress.announce), recorded
        )

    def _measure_loaders(self, session: Session, document: Report) -> tuple[Session, Report]:
        loaders = self.watch.loaders
        if loaders is None:
            return session, document
        if loaders.have_work(session):
            self._save_early(session)
        steps = self.watch.tally.count
        results = self._finishing.attempt(
            lambda: loaders.examine_session(session, document, steps), (session, document)
        )
        self.status = self.status or loaders.status
        self._session = results[0]
        return results

    def _try_changes(self, session: Session, document: Report) -> tuple[Session, Report]:
        """Run the script again with changes that may make it fit, if it does not."""
        again = self._again
        if again is None or not self._should_try_changes(document):
            return session, document
        from gapless.commands._remedies import Remedies

        self._save_early(session)
        remedies = Remedies(again, self.watch.progress)
        session = self._finishing.attempt(lambda: remedies.try_changes(session, document), session)
        return session, msgspec.structs.replace(document, remedies=session.remedies)

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
            explicit=bool(self.options.emulator.dry),
            peak=sum(core.peak_allocated(n) for n in range(core.device_count)) if core is not None else 0,
        )

    def _should_try_changes(self, report: Report) -> bool:
        """Whether to run the script again with changes that may make it fit."""
        lacks = any(memory.ends_it for memory in report.memory)
        return lacks and self.options.fit.tries and not _ranks.several()

    def _save_early(self, session: Session) -> None:
        """Save the session before work that takes long, in which the process may be killed.

        `_save` replaces the file, and reports what keeps it from being written.
        """
        self._session = session
        if self._output and not self._finishing.hurried and not is_stream(self._output):
            with suppress(UnreadableInput):
                save(session, self._output)

    def _save(self, session: Session) -> None:
        """Save the reported session; a failure is said, and does not keep the report from being shown."""
        self._session = session
        if not self._output:
            return
        try:
            save(session, self._output)
        except UnreadableInput as error:
            self.watch.progress.problem(str(error))
            self.status = self.status or error.exit_code
            return
        self._saved = True
        self.watch.progress.saved(self._style.path(self._output))

    def _rescue(self, why: str) -> None:
        """Save the session if it is not saved yet, without -o to a temporary file, and say where."""
        named = self._output and self._style.path(self._output)
        if not self._saved:
            try:
                path = self._output or _new_temporary_file()
                save(self._session, path)
                named = named or path
            except (OSError, UnreadableInput) as error:
                self.watch.progress.problem(f"{why}, and the session could not be saved: {error}")
                return
        self.watch.progress.problem(f"{why}; the session is saved: gapless show {named}")

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


def _new_temporary_file() -> str:
    descriptor, path = tempfile.mkstemp(prefix="gapless-", suffix=".gapless.json")
    os.close(descriptor)
    return path

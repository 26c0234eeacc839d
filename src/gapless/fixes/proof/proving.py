"""Prove an edit: run both versions, and compare all that they show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType

import msgspec

from gapless.analyze.findings.race_findings import findings as race_findings
from gapless.capture.options import CaptureOptions
from gapless.errors import UsageError
from gapless.fixes.proof.edited_lines import FileEdit, find_edits, lines_to_run
from gapless.fixes.proof.first_difference import RunComparison, describe_ending
from gapless.fixes.proof.line_waits import compare_waits, count_waits, follow_expressions, map_places
from gapless.fixes.proof.project import ProjectVersion, ScriptProject
from gapless.fixes.proof.runner import Run, VersionRunner
from gapless.model.fix import Edit, FixProof, ParametersMatch, ProofOutcome
from gapless.model.source import SourceLine, places
from gapless.model.wording import count

_LIMIT_FACTOR = 4.0
"""Times the duration before the edit after which the run after it counts as endless."""
_LIMIT_EXTRA_SECONDS = 60.0
"""Seconds beyond that: a machine that others use is slow at times."""


class ProofOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How two versions are run and compared.

    - `arguments`: the script's.
    - `steps`: step marks after which both are stopped; `seconds`: the run before the edit is stopped at the
      first mark after so long, and the one after it at the same mark.
    - `rounding`: the share of a tensor's largest element, and of a printed number, by which numbers may
      differ; 0: not by a bit.
    - `seed`: of random numbers that the script does not seed.
    - `capture`: the emulated machine.
    """

    arguments: tuple[str, ...] = ()
    steps: int | None = None
    seconds: float = 60.0
    rounding: float = 0.0
    seed: int = 0
    capture: CaptureOptions = CaptureOptions(steps=None, loader=False)


class Prover:
    """Proves edits of one version of a project, which is run once for all of them.

    Use it as a context manager: it ends its processes and removes its copies of the project.

    Raises:
        UsageError: an edit changes nothing.
    """

    def __init__(self, before: ProjectVersion, options: ProofOptions = ProofOptions()) -> None:  # noqa: B008 - frozen
        self.version = before
        self.options = options
        self._runner = VersionRunner(options.capture, options.arguments, options.seed)
        self._before: Run | None = None
        self._again: Run | None = None

    def __enter__(self) -> Prover:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.close()

    @property
    def before(self) -> Run:
        """The run before the edit."""
        if self._before is None:
            options = self.options
            limit = 2 * options.seconds + _LIMIT_EXTRA_SECONDS
            self._before = self._runner.run(
                self.version, max_steps=options.steps, seconds=options.seconds, limit=limit
            )
        return self._before

    def _run_like_before(self, version: ProjectVersion) -> Run:
        """Run `version` until where the run before was stopped; for one step mark more if it was not."""
        record = self.before.record
        stopped = record.ending.how == "enough-steps"
        more = 0 if stopped else 1  # that makes a difference, and ends what trains for ever
        return self._runner.run(
            version,
            max_steps=record.marks + more if stopped or record.steps else None,
            seconds=None,
            limit=_LIMIT_FACTOR * record.seconds + _LIMIT_EXTRA_SECONDS,
        )

    def _differs_by_itself(self) -> str:
        """Return how a second run of the version before differs from the first; "" if it does not."""
        if self._again is None:
            self._again = self._run_like_before(self.version)
        difference = RunComparison(self.before, self._again, self.options.rounding).first_difference()
        return difference.text if difference is not None else ""

    def prove(self, after: ProjectVersion) -> FixProof:
        """Prove the edit from the version before to `after`."""
        edits = find_edits(self.version, after)
        if not edits and dict(self.version.changes) == dict(after.changes):
            raise UsageError("the two versions are the same")
        before = self.before
        if before.why or not before.record.ending.is_good:
            how = before.why or describe_ending(before.record.ending)
            return FixProof(
                proved=False,
                reason=f"the version before {how}: nothing can be compared with that",
                endings=(before.record.ending, before.record.ending),
            )
        run = self._run_like_before(after)
        try:
            return self._conclude(run, edits)
        finally:
            run.discard()

    def _conclude(self, run: Run, edits: Sequence[FileEdit]) -> FixProof:
        """Compare `run` with the one before the edit."""
        before = self.before
        comparison = RunComparison(before, run, self.options.rounding)
        difference = comparison.first_difference()
        scripts = before.version.project.script, run.version.project.script
        waits = (
            count_waits(before.session, str(before.root), lambda file, line: (file, line)),
            count_waits(run.session, str(run.root), map_places(edits, *scripts)),
        )
        lines, no_gain = compare_waits(waits[0], follow_expressions(*waits, edits))
        is_complete = run.record.ending.is_good and not run.why  # a run that failed says nothing of waits
        known_races = {_race_key(finding) for finding in race_findings(before.session.races)}
        races = [f for f in race_findings(run.session.races) if _race_key(f) not in known_races]
        proof = FixProof(
            proved=False,
            before=waits[0].rate,
            after=waits[1].rate if is_complete else -1.0,
            lines=lines if is_complete else (),
            steps=len(before.record.steps) or waits[0].steps,
            printed=not any(comparison.printed_differences()),
            parameters=comparison.parameters if difference is None else _match(comparison),
            difference=difference.text if difference is not None else "",
            races=tuple(dict.fromkeys(finding.code for finding in races)),
            not_run=tuple(self._not_run(run, edits)),
            endings=(before.record.ending, run.record.ending),
            bound=self.options.rounding,
            stopped=before.record.ending.how == "enough-steps",
            notes=tuple(self._notes(run)),
        )
        reason, refused = "", True
        if difference is not None:
            reason = f"{difference.text}"
            own = "" if run.why or not run.record.ending.is_good else self._differs_by_itself()
            if own:
                reason, refused = f"the script differs from run to run by itself: {own}", False
            elif run.why:
                refused = False
        elif races:
            first = races[0]
            where = f" at {first.line.short}" if first.line is not None else ""
            reason = f"a race{where}, {first.code} {first.name}"
        elif no_gain:
            reason = no_gain
        elif proof.not_run:
            reason, refused = _describe_not_run(proof.not_run), False
        elif not self._has_evidence():
            reason, refused = (
                "the script prints nothing, and no model runs: nothing shows what it does",
                False,
            )
        return self._judge(
            proof, reason, refused, fewer=sum(waits[1].totals.values()) < waits[0].totals.total()
        )

    @staticmethod
    def _judge(proof: FixProof, reason: str, refused: bool, fewer: bool) -> FixProof:
        if reason:
            return msgspec.structs.replace(
                proof, reason=reason, outcome="refused" if refused else "unprovable"
            )
        outcome: ProofOutcome = "rounding" if proof.parameters == "rounding" else "bits"
        more = {} if fewer else {"reason": "it removes no sync"}
        return msgspec.structs.replace(proof, outcome=outcome, proved=fewer, **more)

    def _has_evidence(self) -> bool:
        before = self.before
        record = before.record
        return bool(
            before.output
            or before.errors
            or any(text is not None for text in before.files.values())
            or record.steps
            or record.results
            or record.processes
        )

    def _not_run(self, run: Run, edits: Sequence[FileEdit]) -> Iterator[SourceLine]:
        """Yield the edited lines with code that did not run: of each hunk new ones, else removed ones."""
        for edit in edits:
            sides = (run, edit.renamed), (self.before, edit.file)
            texts = [side.version.read(file) or b"" for side, file in sides]
            for hunk in edit.hunks:
                for (side, file), text, numbers in zip(sides, texts, (hunk.added, hunk.removed), strict=True):
                    missing = lines_to_run(text, numbers) - side.lines.get(file, frozenset())
                    for line in sorted(missing):
                        code = text.splitlines()[line - 1].decode("utf-8", "replace").strip()
                        yield SourceLine(file=file, line=line, code=code)
                    if missing:
                        break

    def _notes(self, run: Run) -> Iterator[str]:
        """Yield what a reader should know of how the two were compared."""
        record = self.before.record
        if not record.steps and not record.processes:
            yield "no optimizer stepped: only " + (
                "printed lines and outputs of models were compared"
                if record.results
                else "printed lines were compared"
            )
        if record.processes:
            trained = count(len(record.processes), "process")
            yield f"{trained} trained; their prints were compared in any order"
        new = sorted(set(run.warnings) - set(self.before.warnings))
        if new:
            yield f"new warning: {new[0]}"
        checkpoints = tuple(tensor.name for tensor in record.saved)
        for path, text in self.before.files.items():
            if text is None and not any(name.startswith(path.rpartition("/")[2]) for name in checkpoints):
                yield f"not compared: {path}, which the script writes"
                break
        if record.outside:
            yield f"the script writes outside of its project: {record.outside[0]}"


def _match(comparison: RunComparison) -> ParametersMatch:
    if comparison.state_difference() is not None:
        return "different"
    return comparison.parameters


def _race_key(finding: object) -> tuple[str, str]:
    line = getattr(finding, "line", None)
    return getattr(finding, "code", ""), line.code if line is not None else ""


def _describe_not_run(lines: Sequence[SourceLine]) -> str:
    noun = "an edited line never ran" if len(lines) == 1 else f"{len(lines)} edited lines never ran"
    return f"{noun}: {places(lines[:5], str)}"


def prove(before: ProjectVersion, after: ProjectVersion, options: ProofOptions = ProofOptions()) -> FixProof:  # noqa: B008 - frozen
    """Run two versions of a project, and say whether they do the same with no more waits.

    Raises:
        UsageError: the versions do not differ.
    """
    with Prover(before, options) as prover:
        return prover.prove(after)


def prove_edits(
    project: ScriptProject,
    edits: Iterable[Edit],
    options: ProofOptions = ProofOptions(),  # noqa: B008 - frozen
) -> FixProof:
    """Prove that `edits` of a project's files remove waits and change nothing else.

    Raises:
        UsageError: the edits change nothing, or a file is not part of the project.
        ValueError: edits overlap.
    """
    return prove(ProjectVersion(project), ProjectVersion.with_edits(project, edits), options)

"""``gapless fix``: write the changes that remove syncs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click
import msgspec

from gapless.capture.signals import terminable
from gapless.capture.target import Target
from gapless.commands import _output
from gapless.commands._again import Rerun
from gapless.commands._gate import CodesParam
from gapless.commands._options import takes
from gapless.commands._script import ScriptCommand
from gapless.errors import UnreadableInput, UsageError, require_torch
from gapless.files.kinds import kind_of
from gapless.fixes.patches import edited_files, refuse_unclean, unified_diff, write_files
from gapless.fixes.planning import choose_fixes, main_file, plan_fixes
from gapless.model import Session
from gapless.model.fix import Fix, FixProof
from gapless.model.session import load
from gapless.model.wording import count

if TYPE_CHECKING:
    from gapless.fixes.proof import ScriptProject

_LEVELS = ("exact", "rounding", "tried", "suggested")
_QUICK = ("--no-prices", "--no-compile-pass", "--quiet", "--loader-budget", "1")
"""Options of the check whose results no fix needs, or not exactly."""


class FixOptions(msgspec.Struct, frozen=True):
    """The command's options: which fixes, and whether to write them."""

    only: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    level: str = "tried"
    write: bool = False
    dirty: bool = False
    proof: bool = True
    seconds: float = 60.0
    steps: str | None = None


@takes(FixOptions())
@click.command("fix", cls=ScriptCommand)
@click.option("-m", "--module", metavar="MODULE", help="Run a module, as python -m does.")
@click.option(
    "--only",
    metavar="CODES",
    type=CodesParam(),
    help="Fix findings of these rules, or groups of rules: GAP112,GAP12.",
)
@click.option(
    "--at", "places", metavar="FILE:LINE", multiple=True, help="Fix what waits at this line: train.py:42."
)
@click.option(
    "--level",
    type=click.Choice(_LEVELS),
    show_default=True,
    help="Up to which level. exact: results stay the same to the last bit; rounding: but for last bits; "
    "tried: whether they stay the same must be tried; suggested: what is computed or logged changes.",
)
@click.option("--write", is_flag=True, help="Edit the files, which git must be able to restore.")
@click.option("--dirty", is_flag=True, help="With --write: also edit files that git could not restore.")
@click.option(
    "--prove/--no-prove",
    "proof",
    help="Run the script again with the changes, and leave out those that change anything but syncs; on by "
    "default, except for a saved session.",
)
@click.option(
    "--seconds",
    metavar="SECONDS",
    type=click.FloatRange(0, min_open=True),
    show_default=True,
    help="Stop the runs of the proof at the first step after so long.",
)
@click.option("--steps", metavar="N", help="Run N training steps, or `all`; see gapless check.")
@click.argument("script", metavar="SCRIPT|SESSION [ARGS]...", nargs=-1, type=click.UNPROCESSED)
def command(script: tuple[str, ...], module: str | None, options: FixOptions) -> int:
    """Check SCRIPT, and show as a diff how its syncs go. Why the rest is left goes to standard error.

    Only your own files are edited, never a library's. Given a session that `gapless check -o` saved, nothing
    is run.

    \b
    Examples:
      gapless fix train.py --epochs 1
      gapless fix --write train.py
      gapless fix --only GAP112 --at losses.py:42 train.py
      gapless fix run.gapless.json | git apply
    """
    if module is None and not script:
        raise UsageError("no script given. Example: gapless fix train.py")
    session, is_saved = _read_session(module, script, options)
    path = main_file(session)
    from gapless.fixes.proof import ScriptProject

    project = ScriptProject.of(path)
    fixes = [fix for fix in plan_fixes(session, project.root, path) if _is_wanted(fix, options)]
    chosen, late = choose_fixes(
        fix for fix in fixes if _LEVELS.index(fix.level) <= _LEVELS.index(options.level)
    )
    failed: list[Fix] = []
    # Suggested changes alter what is shown, so that no proof would pass.
    suggested = [fix for fix in chosen if fix.level == "suggested"]
    chosen = [fix for fix in chosen if fix.level != "suggested"]
    if options.proof and chosen and not is_saved and module is None:
        chosen, failed = _try(project, chosen, script[1:], options)
    else:
        failed = [fix for fix in chosen if fix.level == "tried"]
        chosen = [fix for fix in chosen if fix.level != "tried"]
    proof = chosen[-1].proof if chosen else None
    chosen += suggested
    files = edited_files(chosen, project.root)
    if options.write:
        if not options.dirty:
            refuse_unclean(project.root, list(files))
        write_files(project.root, files)
    else:
        _output.write(sys.stdout, "".join(unified_diff(name, *data) for name, data in files.items()))
    for line in _describe(fixes, (chosen, failed, late), proof, options.write):
        click.echo(line, err=True)
    return 0


def _try(
    project: ScriptProject, fixes: Sequence[Fix], arguments: tuple[str, ...], options: FixOptions
) -> tuple[list[Fix], list[Fix]]:
    """Return the fixes whose proof passes, and the others.

    Raises:
        UsageError: a signal ended it.
    """
    from gapless.fixes.proof import ProofOptions
    from gapless.fixes.trial import FixTrial

    trial = FixTrial(project, ProofOptions(arguments=arguments, seconds=options.seconds))
    with terminable():  # a run under way ends with the command
        trial.run(fixes)
    return trial.kept, trial.failed


def _read_session(module: str | None, words: Sequence[str], options: FixOptions) -> tuple[Session, bool]:
    """Return the session to fix, and whether it was saved, not of a run.

    Raises:
        UsageError: there is no such script.
        UnreadableInput: the run left no session.
    """
    if module is None and len(words) == 1 and os.path.isfile(words[0]) and kind_of(words[0]) == "session":
        return load(words[0]), True
    require_torch("gapless fix runs your script")
    Target.of(module, tuple(words))  # refuses what is no script
    own = (*(("--steps", options.steps) if options.steps else ()), *(("-m", module) if module else ()))
    result = Rerun(own, words, module=module is not None)(words, quiet=_QUICK)
    if result.session is None:
        raise UnreadableInput(f"the run recorded nothing: {result.why}")
    if result.why:
        _output.say(f"the script failed: {result.why}")
    return result.session, False


def _is_wanted(fix: Fix, options: FixOptions) -> bool:
    if options.only and not fix.code.startswith(options.only):
        return False
    where = fix.line.where.replace("\\", "/")
    return not options.places or any(
        where == place or where.endswith(f"/{place.removeprefix('./')}") for place in options.places
    )


def _describe(
    fixes: Sequence[Fix], parts: tuple[Sequence[Fix], ...], proof: FixProof | None, written: bool
) -> Iterator[str]:
    """Yield a line for each fix, and for each place that is left with the reason.

    `parts` are the fixes that were chosen, that failed their `proof`, and that overlap with others.
    """
    chosen, failed, late = parts
    total = sum(fix.waits for fix in chosen)
    verb = "written" if written else "as a diff above"
    yield f"{count(len(chosen), 'change')} {verb}, which remove {total:.3g} syncs per step"
    if proof is not None:
        same = "to the last bit" if proof.outcome == "bits" else "up to rounding"
        steps = f"parameters of {count(proof.steps, 'step')} and " if proof.steps else ""
        yield (
            f"proved: {proof.before:.3g} → {proof.after:.3g} syncs per step; {steps}printed lines are the "
            f"same {same}"
        )
    for fix in chosen:
        yield f"  {fix.code} {fix.line.short}  {fix.title} ({fix.level})"
    for fix in failed:
        reason = fix.proof.reason if fix.proof is not None else "it must be tried: run it with the script"
        yield f"  {fix.code} {fix.line.short}  not proved: {fix.title}: {reason}"
    for fix in late:
        yield f"  {fix.code} {fix.line.short}  left: overlaps with another change; run again after it"
    done = {(fix.code, fix.line, fix.edits) for fix in (*chosen, *failed, *late)}
    for fix in fixes:
        if fix.refusal:
            yield f"  {fix.code} {fix.line.short}  left: {fix.refusal}"
        elif (fix.code, fix.line, fix.edits) not in done:
            yield f"  {fix.code} {fix.line.short}  with --level {fix.level}: {fix.title}"

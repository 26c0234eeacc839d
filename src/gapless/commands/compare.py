"""``gapless compare``: what changed from one run to another."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import click
import msgspec

from gapless.analyze import report
from gapless.commands import _memory_compare, _output, _proof
from gapless.commands._options import takes
from gapless.commands._reading import read_profiles
from gapless.errors import EXIT_FINDINGS, EXIT_OK, EXIT_UNREADABLE, GaplessError, UsageError, require_torch
from gapless.files.kinds import kind_of
from gapless.model import Profile, Session
from gapless.model.comparison import Comparison, FindingChange, percents
from gapless.model.session import load
from gapless.model.wording import rate
from gapless.prove.naming import is_target, script_words
from gapless.prove.options import CompareOptions
from gapless.render import Style

if TYPE_CHECKING:
    from gapless.analyze.compare import ComparisonSide

Kind = Literal["trace", "session", "profile", "script", "callable"]

_ACCEPTED = (
    "compare takes two traces (or folders or patterns for the ranks of a run), two saved profiles, two "
    "sessions of `gapless check -o`, two memory snapshots, two scripts, or two callables"
)
_STEPS_PER_SCRIPT = "10"


class CompareCommandOptions(msgspec.Struct, frozen=True):
    """The command's options; those for callables are in `proof`."""

    shown: _output.Shown = _output.Shown()
    bound: float | None = None
    quiet: bool = False
    fail_if_slower: bool = False
    proof: CompareOptions = CompareOptions()


@takes(CompareCommandOptions())
@click.command("compare")
@_output.report_options
@click.option(
    "--fail-on-regression",
    "bound",
    metavar="PERCENT",
    type=click.FloatRange(0),
    help="Exit with 1 if AFTER takes over PERCENT % more time (sessions: has that many more syncs), or if "
    "a new finding adds that much; with 0 every new finding fails, and is named with its line.",
)
@_proof.options
@click.option("-q", "--quiet", is_flag=True, help="No progress on standard error.")
@click.argument("before", metavar="BEFORE")
@click.argument("after", metavar="AFTER")
def command(before: str, after: str, options: CompareCommandOptions) -> int:
    """Show what changed from BEFORE to AFTER.

    Two traces, or two sessions saved by `gapless check -o`: compares the step, its phases, kernels, lines and
    findings. A folder or a quoted pattern stands for the ranks of one run; the slowest rank is compared. Two
    scripts (quoted together with their arguments) are checked first.

    Two GPU memory snapshots (or sessions of `gapless check --memory`): shows which owners take more memory at
    the peak.

    Two callables (losses.py:fixed, package.module:Loss(10)): shows whether they compute the same results and
    gradients on --inputs and on edge cases derived from them, how often a call syncs, and which is faster.

    \b
    Examples:
      gapless compare before.pt.trace.json.gz after.pt.trace.json.gz
      gapless compare 'old/rank*.json' 'new/rank*.json'
      gapless compare -f html old.json.gz new.json.gz > report.html
      gapless compare --fail-on-regression 5 main.json.gz branch.json.gz
      gapless compare before.gapless.json after.gapless.json
      gapless compare before.pickle after.pickle
      gapless compare 'old.py --epochs 1' 'new.py --epochs 1'
      gapless compare losses.py:old losses.py:fixed --inputs losses.py:batches

    Exit status: 0; 1 not the same, slower, or a regression over the limit; 2 usage error; 3 a file could not
    be read or is too incomplete to check against the limit, or the code to compare failed.
    """
    shown, bound = options.shown, options.bound
    shown.refuse_terminal(f"gapless compare -f html {before} {after}")
    if is_target(before) or is_target(after):
        _refuse_other_inputs(before, after, bound)
        result = _proof.proof(before, after, options.proof)
        shown.write([report(result)])
        return _proof.status(result, options.fail_if_slower)
    _refuse_callable_options(scripts=bool(script_words(before) and script_words(after)))
    memory = _both_memory(before, after)
    comparison = (
        _memory_compare.compare_files(before, after)
        if memory
        else compare(before, after, options.quiet, options.proof.gpu)
    )
    shown.write([report(comparison)])
    return _status(comparison, bound)


def _status(comparison: Comparison, bound: float | None) -> int:
    """Return the exit status, after naming what is a regression over `bound` percent."""
    if bound is None:
        return EXIT_OK
    if comparison.incomplete:
        _output.say(f"cannot tell: {comparison.incomplete} (--fail-on-regression)")
        return EXIT_UNREADABLE
    reasons = regression(comparison, bound, Style(folder=os.getcwd()).path)
    for reason in reasons:
        _output.say(reason)
    return EXIT_FINDINGS if reasons else EXIT_OK


def _both_memory(before: str, after: str) -> bool:
    """Whether both are memory recordings.

    Raises:
        UsageError: only one is, and the other is no session.
    """
    sides = {name: _memory_compare.is_memory(name) for name in (before, after)}
    if any(sides.values()):
        for name, is_memory in sides.items():
            if not (is_memory or (os.path.isfile(name) and kind_of(name) == "session")):
                raise UsageError(f"{name} is not a memory recording, but the other one is: {_ACCEPTED}")
    return any(sides.values())


def _refuse_other_inputs(before: str, after: str, bound: float | None) -> None:
    """Raise `UsageError` unless both are callables, without a `bound` for runs."""
    if not (is_target(before) and is_target(after)):
        other = after if is_target(before) else before
        example = f"{other}:function" if other.endswith(".py") else "losses.py:function"
        raise UsageError(f"{other} is not a callable: write {example}")
    if bound is not None:
        raise UsageError("--fail-on-regression is for runs; for callables use --fail-if-slower")


def _refuse_callable_options(scripts: bool) -> None:
    """Refuse options that apply to callables only; scripts take --gpu."""
    callable_options = [option for option in _proof.explicit_options() if not (scripts and option == "--gpu")]
    if callable_options:
        verb = "is" if len(callable_options) == 1 else "are"
        raise UsageError(
            f"{' and '.join(callable_options)} {verb} for callables: losses.py:original losses.py:fixed"
        )


def compare(before: str, after: str, quiet: bool = True, gpu: str | None = None) -> Comparison:
    """Compare what `before` and `after` name, with progress unless `quiet`.

    Scripts run on an emulated `gpu`.

    Raises:
        UsageError: they are of different kinds, or scripts and torch is missing.
        UnreadableInput: one of them cannot be read.
    """
    kinds = _kind_of_name(before), _kind_of_name(after)
    if kinds == ("script", "script"):
        require_torch("comparing scripts runs them")
        return _compare_scripts(before, after, gpu)
    if "script" in kinds:
        script, other = (before, after) if kinds[0] == "script" else (after, before)
        raise UsageError(f"{script} is a script but {other} is not: {_ACCEPTED}")
    if kinds == ("session", "session"):
        return _compare_sessions(before, after)
    if "session" in kinds:
        trace, session = (before, after) if kinds[1] == "session" else (after, before)
        raise UsageError(f"{session} is a session but {trace} is not: {_ACCEPTED}")
    from gapless.analyze.compare import compare_profiles

    return compare_profiles(_load_subject(before, kinds[0], quiet), _load_subject(after, kinds[1], quiet))


def regression(comparison: Comparison, bound: float, path: Callable[[str], str] = str) -> list[str]:
    """Return a line for each reason why `comparison` is a regression over `bound` percent.

    `path` formats file names. A change within the variation of the steps is no regression.
    """
    from gapless.analyze.compare import find_regressions, has_grown

    if comparison.of == "memory":
        reason = _memory_compare.regression(comparison, bound)
        return [f"{reason} (--fail-on-regression)"] if reason else []
    rows = find_regressions(comparison, bound)
    reasons = [_describe_regression(row, path) for row in rows]
    if has_grown(comparison, bound):
        percent = comparison.length.percent
        more = f"{percents(percent)} more" if percent is not None else "more"
        unit = "syncs" if comparison.of == "sessions" else "time"
        reasons.append(f"{more} {unit} than before, over the limit of {percents(bound)}")
    return [f"{reason} (--fail-on-regression)" for reason in reasons]


def _describe_regression(row: FindingChange, path: Callable[[str], str]) -> str:
    """Return ``new: GAP101 scalar-read at train.py:42, every step: loss.item()``."""
    finding, line = row.finding, row.finding.line
    where = f"{path(line.file)}:{line.line}" if line else finding.place or "the whole run"
    text = f"{row.state if row.state == 'new' else 'more'}: {finding.code} {finding.name} at {where}"
    if row.state != "new":
        was, now = (version.frequency.per_step if version else 0.0 for version in (row.before, row.after))
        text += f", {rate(now, 'sync')} instead of {rate(was, 'sync')}"
    return f"{text}: {line.code}" if line and line.code else text


def _kind_of_name(name: str) -> Kind:
    """Return the kind of `name`; a file that Gapless did not write counts as a trace."""
    if script_words(name):
        return "script"
    kind = kind_of(name) if os.path.isfile(name) else "trace"
    if kind in ("session", "profile"):
        return kind  # type: ignore[return-value]  # one of the two
    if kind in ("trace", "snapshot", ""):
        return "trace"
    raise UsageError(f"{name} is a saved {kind}: {_ACCEPTED}")


def _compare_scripts(before: str, after: str, gpu: str | None) -> Comparison:
    from gapless.capture.target import Target

    words = script_words(before), script_words(after)
    for name, *arguments in words:
        Target(name, tuple(arguments)).check()
    return _compare_line_reports(
        (before, after), [record_script(script, _STEPS_PER_SCRIPT, gpu) for script in words]
    )


def _compare_sessions(before: str, after: str) -> Comparison:
    from gapless.model.session import load

    sessions = load(before), load(after)
    comparison = _compare_line_reports((before, after), sessions)
    if not all(session.memory for session in sessions):
        return comparison
    memory = _memory_compare.compare(sessions[0].memory, sessions[1].memory, before, after)
    return msgspec.structs.replace(comparison, memory=memory)


def _compare_line_reports(names: tuple[str, str], sessions: Sequence[Session]) -> Comparison:
    from gapless.analyze.compare import compare_reports

    before, after = (
        (name, report(session, by_line=True)) for name, session in zip(names, sessions, strict=True)
    )
    return compare_reports(before, after)


def _load_subject(name: str, kind: Kind, quiet: bool) -> ComparisonSide:
    from gapless.analyze.compare import subject
    from gapless.analyze.profile.profile_findings import find_in_profiles
    from gapless.model.profile import load

    if kind == "trace":
        profiles, notes = _read_profiles(name, quiet)
    else:
        profiles, notes = load(name), ()
    return subject(name, profiles, find_in_profiles, notes)


def _read_profiles(name: str, quiet: bool) -> tuple[Sequence[Profile], tuple[str, ...]]:
    """Return the profiles of all traces that `name` matches, and notes on those that could not be read.

    Raises:
        UnreadableInput: none could be read.
    """
    from gapless.analyze.profile.building import profile_file
    from gapless.trace.find import find_traces

    profiles, failures = read_profiles(find_traces([name]), profile_file, quiet=quiet)
    if not profiles:
        raise failures[0]
    return profiles, tuple(f"a trace was skipped: {failure}" for failure in failures)


class ScriptFailed(GaplessError):
    """A script ended with an error; the exit status is the script's."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.exit_code = status


def record_script(words: tuple[str, ...], steps: str, gpu: str | None = None) -> Session:
    """Return the session of ``gapless check`` for the script and arguments `words` over `steps` steady steps.

    The script's output and traceback go to standard error.

    Raises:
        ScriptFailed: the script's exit status was not 0.
    """
    with tempfile.TemporaryDirectory(prefix="gapless-") as folder:
        path = os.path.join(folder, "run.gapless.json")
        options = ["--steps", steps, "-q", "-f", "json", "-o", path, *(("--gpu", gpu) if gpu else ())]
        command = [sys.executable, "-m", "gapless", "check", *options, *words]
        # Its report is in the session; the script's own output must not mix with the comparison.
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=None, stdin=subprocess.DEVNULL)
        sys.stderr.flush()
        printed = done.stdout.rsplit(b"\n", 2)[0] if done.stdout.endswith(b"}\n") else done.stdout
        if printed.strip():
            sys.stderr.write(printed.decode(errors="backslashreplace").rstrip() + "\n")
        if done.returncode or not os.path.exists(path):
            status = done.returncode if done.returncode > 0 else 128 - done.returncode
            raise ScriptFailed(f"{' '.join(words)} ended with status {status}: nothing to compare", status)
        return load(path)

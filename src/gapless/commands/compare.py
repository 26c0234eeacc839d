"""``gapless compare``: what changed from one run to another."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import click

from gapless.commands import _output
from gapless.commands._reading import read_profiles
from gapless.commands._saved import kind_of
from gapless.errors import EXIT_FINDINGS, EXIT_OK, UnreadableInput, UsageError
from gapless.model import Profile
from gapless.model.comparison import Comparison, percents
from gapless.render import _comparison

if TYPE_CHECKING:
    from gapless.analyze.compare import Subject

Kind = Literal["trace", "session", "profile"]

_ACCEPTED = (
    "compare takes two traces (or folders or patterns of the ranks of a run), two saved profiles, "
    "or two sessions of `gapless check -o`"
)


@click.command("compare")
@click.option(
    "-f", "--format", "form", type=click.Choice(("json", "text")), default="text", show_default=True
)
@click.option("--all", "unfold", is_flag=True, help="Every row of every list.")
@click.option(
    "--fail-on-regression",
    "bound",
    metavar="PERCENT",
    type=click.FloatRange(0),
    help="Exit with 1 if AFTER takes over PERCENT % more time (sessions: has as many more waits).",
)
@click.option("--no-color", is_flag=True, help="Plain text; so does the variable NO_COLOR.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on standard error.")
@click.argument("before", metavar="BEFORE")
@click.argument("after", metavar="AFTER")
def command(
    before: str,
    after: str,
    form: str,
    unfold: bool,
    bound: float | None,
    no_color: bool,
    quiet: bool,
) -> int:
    """Tell what changed from BEFORE to AFTER: the step, its phases, kernels, lines and findings.

    Both are traces, or both sessions that `gapless check -o` has saved. A folder or a pattern in quotes
    stands for the ranks of one run, of which the slowest is compared.

    \b
    Examples:
      gapless compare before.pt.trace.json.gz after.pt.trace.json.gz
      gapless compare 'old/rank*.json' 'new/rank*.json'
      gapless compare --fail-on-regression 5 main.json.gz branch.json.gz
      gapless compare before.gapless.json after.gapless.json

    Exit status: 0; 1 a regression over the bound; 2 usage; 3 a file could not be read.
    """
    made = compare(before, after, quiet)
    style = _output.style_for(sys.stdout, color=not no_color, unfold=unfold, folder=os.getcwd())
    text = _comparison.as_json(made, style) if form == "json" else _comparison.as_text(made, style)
    _output.write(sys.stdout, text)
    reason = regression(made, bound) if bound is not None else ""
    if reason:
        click.echo(f"gapless: {reason}", err=True)
    return EXIT_FINDINGS if reason else EXIT_OK


def compare(before: str, after: str, quiet: bool = True) -> Comparison:
    """What changed from what `before` names to what `after` names; progress is told unless `quiet`.

    Raises:
        UsageError: they are of different kinds.
        UnreadableInput: one of them cannot be read.
    """
    kinds = _kind(before), _kind(after)
    if kinds == ("session", "session"):
        return _sessions(before, after)
    if "session" in kinds:
        trace, session = (before, after) if kinds[1] == "session" else (after, before)
        raise UsageError(f"{session} is a session and {trace} is not: {_ACCEPTED}")
    from gapless.analyze.compare import compare_profiles

    return compare_profiles(_subject(before, kinds[0], quiet), _subject(after, kinds[1], quiet))


def regression(made: Comparison, bound: float) -> str:
    """Why `made` is a regression over `bound` percent; "" where it is none.

    A change within the spread of the steps is none.
    """
    length = made.length
    if length.change <= 0 or made.within_spread:
        return ""
    if length.percent is not None and length.percent <= bound:
        return ""
    more = f"{percents(length.percent)} more" if length.percent is not None else "more"
    what = "waits" if made.of == "sessions" else "time"
    return f"{more} {what} than before, over the bound of {percents(bound)} (--fail-on-regression)"


def _kind(name: str) -> Kind:
    """What `name` is. What Gapless did not write itself is taken for a trace."""
    kind = kind_of(name) if os.path.isfile(name) else "trace"
    if kind in ("session", "profile"):
        return kind  # type: ignore[return-value]  # one of the two
    if kind in ("trace", ""):
        return "trace"
    raise UsageError(f"{name} is a saved {kind}: {_ACCEPTED}")


def _sessions(before: str, after: str) -> Comparison:
    from gapless.analyze import report
    from gapless.analyze.compare import compare_reports
    from gapless.model.session import load

    return compare_reports((before, report(load(before))), (after, report(load(after))))


def _subject(name: str, kind: Kind, quiet: bool) -> Subject:
    from gapless.analyze.compare import subject
    from gapless.analyze.profile.findings import findings
    from gapless.model.profile import load

    if kind == "trace":
        profiles, notes = _profiles(name, quiet)
    else:
        profiles, notes = load(name), ()
    if not profiles:
        raise UnreadableInput(f"{name} holds no profile: save it again")
    return subject(name, profiles, findings, notes)


def _profiles(name: str, quiet: bool) -> tuple[Sequence[Profile], tuple[str, ...]]:
    """The profiles of all traces that `name` means, and which of them could not be read.

    Raises:
        UnreadableInput: none of them can.
    """
    from gapless.analyze.profile.profile import of_file
    from gapless.trace.find import find

    profiles, failures = read_profiles(find([name]), of_file, quiet=quiet)
    if not profiles:
        raise failures[0]
    return profiles, tuple(f"a trace is left out: {failure}" for failure in failures)

"""``gapless show``: report a saved run again."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click
import msgspec

from gapless.commands import _output
from gapless.commands._saved import kind_of, nearby
from gapless.errors import UnreadableInput
from gapless.model import Report
from gapless.render import together


@click.command("show")
@_output.report_options
@click.argument("saved", metavar="SESSION...", nargs=-1, required=True)
def command(saved: tuple[str, ...], form: str, unfold: bool, verbose: bool, no_color: bool) -> int:
    """Report again what `gapless check -o` or `gapless trace -o` has saved, in any format, on any machine.

    Several are reported one after the other; as a page they are one, with a list of them.

    \b
    Examples:
      gapless show --all run.gapless.json
      gapless show -f html run.gapless.json > report.html
      gapless show -f html monday.json tuesday.json > both.html
      gapless show -f json run.gapless.json | jq .steps.waits_per_step
    """
    _output.refuse_terminal(form, sys.stdout, f"gapless show -f html {' '.join(saved)}")
    style = _output.style_for(
        sys.stdout, color=not no_color, unfold=unfold, frames=verbose, folder=os.getcwd()
    )
    _output.write(sys.stdout, together(form, [one for file in saved for one in reports(file, form)], style))
    return 0


def reports(saved: str, form: str = "text") -> Sequence[Report]:
    """What the file `saved` holds: a report for a session, and one for each run of saved profiles.

    Raises:
        UnreadableInput: it cannot be read, or is something that another command reports.
    """
    kind = kind_of(saved)
    if kind == "profile":
        from gapless.analyze.profile.report import report as explain
        from gapless.analyze.ranks import group
        from gapless.model.profile import load as load_profiles

        grouping = group(load_profiles(saved))
        return [explain(run, () if n else grouping.notes, nearby) for n, run in enumerate(grouping.runs)]
    if kind == "trace":
        raise UnreadableInput(f"{saved} is a profile of PyTorch's own: gapless trace {saved}")
    if kind == "memory":
        raise UnreadableInput(f"{saved} is a saved memory run: gapless memory {saved}")
    if kind == "loader":
        raise UnreadableInput(f"{saved} is a saved diagnosis of a loader: gapless loader {saved}")
    from gapless.analyze import report
    from gapless.model.session import load

    session = load(saved)
    return [msgspec.structs.replace(report(session, drawn=form == "html"), path=saved)]

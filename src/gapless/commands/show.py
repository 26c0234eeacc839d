"""``gapless show``: report a saved session again."""

from __future__ import annotations

import os
import sys

import click

from gapless.analyze import report
from gapless.commands import _output
from gapless.model.session import load
from gapless.render import renderer


@click.command("show")
@_output.report_options
@click.argument("session", metavar="SESSION")
def command(session: str, form: str, unfold: bool, verbose: bool, no_color: bool) -> int:
    """Report a session that `gapless check -o SESSION` has saved, in any format, on any machine.

    \b
    Examples:
      gapless show --all run.gapless.json
      gapless show -f json run.gapless.json | jq .steps.waits_per_step
    """
    style = _output.style_for(
        sys.stdout, color=not no_color, unfold=unfold, frames=verbose, folder=os.getcwd()
    )
    _output.write(sys.stdout, renderer(form)(report(load(session)), style))
    return 0

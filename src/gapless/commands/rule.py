"""``gapless rule``: what a rule means."""

from __future__ import annotations

import sys

import click

from gapless.commands import _output
from gapless.render import _explanation as explanation
from gapless.rules import all_rules, rule


@click.command("rule")
@click.option("--no-color", is_flag=True, help="Plain text; so does the variable NO_COLOR.")
@click.argument("code", required=False)
def command(code: str | None, no_color: bool) -> int:
    """Explain the rule CODE (or name), or list the rules whose codes begin so.

    \b
    Examples:
      gapless rule
      gapless rule GAP12
      gapless rule GAP112
    """
    style = _output.style_for(sys.stdout, color=not no_color)
    begun = [one for one in all_rules() if one.code.startswith((code or "").upper())]
    if code is None or len(begun) > 1:
        text = explanation.listing(begun, style)
    else:
        text = explanation.render(begun[0] if begun else rule(code), style)
    _output.write(sys.stdout, text)
    return 0

"""``gapless rule``: what a rule means."""

from __future__ import annotations

import sys

import click

from gapless.commands import _output
from gapless.emulation.waits.table import waits_table
from gapless.model import Rule
from gapless.render import _explanation as explanation
from gapless.rules import all_rules, match_rule, rule


@click.command("rule")
@click.option("--no-color", is_flag=True, help="Plain text; the NO_COLOR variable does the same.")
@click.argument("code", required=False)
def command(code: str | None, no_color: bool) -> int:
    """Explain the rule CODE (or name), or list the rules whose codes start with CODE.

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
        one = begun[0] if begun else rule(code)
        text = explanation.render(one, style, rests_on(one))
    _output.write(sys.stdout, text)
    return 0


def rests_on(rule: Rule) -> list[str]:
    """Where the waits that the rule is about are known from: an item each, what real GPUs show first."""
    names: dict[str, dict[str, None]] = {}
    for row in sorted(waits_table().rows, key=lambda row: bool(row.basis)):
        if row.waits and match_rule(row.site()).code == rule.code:
            names.setdefault(row.known_from, {}).setdefault(row.name)
    return [f"{', '.join(of)}: {known}" for known, of in names.items()]

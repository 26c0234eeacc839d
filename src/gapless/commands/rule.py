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
    begun = [candidate for candidate in all_rules() if candidate.code.startswith((code or "").upper())]
    if code is None or len(begun) > 1:
        text = explanation.listing(begun, style)
    else:
        chosen = begun[0] if begun else rule(code)
        text = explanation.render(chosen, style, list_sources(chosen))
    _output.write(sys.stdout, text)
    return 0


def list_sources(rule: Rule) -> list[str]:
    """Return where the rule's waits are known from: a line per source, evidence from real GPUs first."""
    names: dict[str, dict[str, None]] = {}
    for row in sorted(waits_table().rows, key=lambda row: bool(row.basis)):
        if row.waits and match_rule(row.site()).code == rule.code:
            names.setdefault(row.known_from, {}).setdefault(row.name)
    return [f"{', '.join(of)}: {source}" for source, of in names.items()]

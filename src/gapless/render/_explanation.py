"""Render a rule's documentation, and the list of all rules, for a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.text import Text

from gapless.model import Rule
from gapless.render._canvas import Canvas
from gapless.render._style import Style

_FENCE = re.compile(r"```(?:python)?\n(.*?)```", re.DOTALL)


def render(rule: Rule, style: Style, rests_on: Sequence[str] = ()) -> str:
    """Render the documentation of `rule`, and `rests_on`: the sources of what it knows about waits."""
    canvas = Canvas(style)
    canvas.line(Text.assemble((rule.code, "bold cyan"), " ", (rule.name, "bold")))
    canvas.wrap(Text(rule.summary()))
    for title, text in rule.sections().items():
        canvas.blank()
        canvas.line(Text(title, style="bold"))
        _section(canvas, text)
    if rests_on:
        canvas.blank()
        canvas.line(Text("Known from", style="bold"))
        for item in rests_on:
            canvas.hang(Text("  - "), Text(item))
    return canvas.text()


def _section(canvas: Canvas, text: str) -> None:
    """Write a section: paragraphs wrapped to the width, code unchanged."""
    for position, part in enumerate(_FENCE.split(text)):
        if position % 2:
            for line in part.rstrip("\n").split("\n"):
                canvas.line(Text("    ") + canvas.code(line))
            continue
        for paragraph in filter(None, (block.strip() for block in part.split("\n\n"))):
            if paragraph.startswith("- "):
                for item in re.split(r"\n(?=- )", paragraph):
                    canvas.hang(Text("  - "), Text(" ".join(item[2:].split())))
            else:
                canvas.wrap(Text(" ".join(paragraph.split())))


def listing(rules: Sequence[Rule], style: Style) -> str:
    """Render one line for each of `rules`."""
    canvas = Canvas(style)
    widest = max((len(rule.name) for rule in rules), default=0)
    for rule in rules:
        lead = Text.assemble((rule.code, "bold cyan"), f" {rule.name:<{widest}}  ")
        canvas.clip(lead + Text(rule.summary(), style="dim"))
    return canvas.text()

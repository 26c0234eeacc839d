"""Compiled code to findings and notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gapless.analyze.findings.finding import finding
from gapless.model import Compiled, CompiledRule, Finding, Frequency
from gapless.model.wording import count
from gapless.rules import rules_of_kind


def findings(compiled: Sequence[Compiled]) -> list[Finding]:
    """What the rules say of each callable that was compiled."""
    often = Frequency(when="no-steps", waits=0.0)
    return [
        finding(rule, hit, often, place=f"in {one.name}", backward=False)
        for one in compiled
        for rule in rules_of_kind(CompiledRule)
        for hit in rule.of_compiled(one)
    ]


def notes(compiled: Sequence[Compiled]) -> Iterator[str]:
    """What could not be told of compiled code, what is not compiled, and values that graphs read."""
    for one in compiled:
        where = f" ({one.line.short})" if one.line is not None else ""
        if one.failed:
            yield f"{one.name}{where} could not be compiled after the run: {one.failed}"
        if one.compiled and not (one.graphs or one.breaks or one.failed):
            yield f"{one.name}{where} produced no graph: the compiler skips it, and it runs eagerly"
        if one.scalars:
            values = count(one.scalars, "value")
            yield f"{one.name}{where}: {values} read inside a graph: compiled code syncs there too"

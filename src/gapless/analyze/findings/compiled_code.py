"""Findings and notes about compiled code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gapless.analyze.findings.finding import finding
from gapless.model import Compiled, CompiledRule, Finding, Frequency
from gapless.model.wording import count
from gapless.rules import rules_of_kind


def findings(compiled: Sequence[Compiled]) -> list[Finding]:
    """Return what the rules find in each compiled callable."""
    timing = Frequency(when="no-steps", waits=0.0)
    return [
        finding(rule, hit, timing, place=f"in {code.name}", backward=False)
        for code in compiled
        for rule in rules_of_kind(CompiledRule)
        for hit in rule.of_compiled(code)
    ]


def notes(compiled: Sequence[Compiled]) -> Iterator[str]:
    """Yield what could not be determined, what is not compiled, and which values graphs read."""
    for code in compiled:
        where = f" ({code.line.short})" if code.line is not None else ""
        if code.failed:
            yield f"{code.name}{where} could not be compiled after the run: {code.failed}"
        if code.compiled and not (code.graphs or code.breaks or code.failed):
            yield f"{code.name}{where} produced no graph: the compiler skips it, and it runs eagerly"
        if code.scalars:
            values = count(code.scalars, "value")
            yield f"{code.name}{where}: {values} read inside a graph: compiled code syncs there too"

"""Findings about mistakes with CUDA graphs, one for each place."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gapless.analyze.findings.finding import finding
from gapless.model import Finding, Frequency, GraphRule
from gapless.model.graph_fault import GraphFault
from gapless.model.wording import count
from gapless.rules import rules_of_kind


def findings(faults: Sequence[GraphFault]) -> list[Finding]:
    """Return what the rules find in `faults`, in the order they happened."""
    return [finding for fault in faults for finding in _fault_findings(fault)]


def _fault_findings(fault: GraphFault) -> list[Finding]:
    """Return a finding for each rule that applies to `fault`."""
    results = []
    for rule in rules_of_kind(GraphRule):
        hit = rule.of_graph(fault)
        if hit is not None:
            met = (f"met {count(fault.times, 'time')}",) if fault.times > 1 else ()
            hit = msgspec.structs.replace(hit, evidence=(*hit.evidence, *met))
            timing = Frequency(when="no-steps", waits=0.0)
            results.append(finding(rule, hit, timing, place="not known", backward=False))
    return results

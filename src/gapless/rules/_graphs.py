"""Shared by the rules of CUDA graphs."""

from __future__ import annotations

from typing import ClassVar

from gapless.model import GraphRule, Hit, Site
from gapless.model.graph_fault import FaultKind, GraphFault


class FaultRule(GraphRule):
    """A rule for each graph fault of some kinds."""

    kinds: ClassVar[tuple[FaultKind, ...]] = ()

    def of_graph(self, fault: GraphFault) -> Hit | None:
        if fault.kind not in self.kinds:
            return None
        site = fault.site
        if site is None and fault.stack:
            site = Site(operator=fault.what, mechanism="none", stack=fault.stack)
        return Hit(
            evidence=(*self.evidence(fault), *capture_place(fault)),
            remedy=self.remedy(fault),
            change=self.known_change(fault),
            site=site,
            calls=fault.times,
        )

    def evidence(self, fault: GraphFault) -> tuple[str, ...]:
        """Return the evidence for the fault."""
        return fault.told

    def remedy(self, fault: GraphFault) -> str:
        """Return what to write instead."""
        return self.advice

    def known_change(self, fault: GraphFault) -> str:
        """Return the remedy in a few words, where it is more specific than `change`."""
        return ""


def capture_place(fault: GraphFault) -> tuple[str, ...]:
    """Return where the capture began, if not on the line of the fault."""
    line, at = fault.captured_at, fault.line
    if line is None or (at is not None and (at.file, at.line) == (line.file, line.line)):
        return ()
    return (f"the graph is captured at {line.short}",)

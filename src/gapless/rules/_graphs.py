"""What the rules of CUDA graphs have in common."""

from __future__ import annotations

from typing import ClassVar

from gapless.model import GraphRule, Hit, Site
from gapless.model.graph_fault import FaultKind, GraphFault


class FaultRule(GraphRule):
    """Each fault of some kinds."""

    kinds: ClassVar[tuple[FaultKind, ...]] = ()

    def of_graph(self, fault: GraphFault) -> Hit | None:
        if fault.kind not in self.kinds:
            return None
        site = fault.site
        if site is None and fault.stack:
            site = Site(operator=fault.what, mechanism="none", stack=fault.stack)
        return Hit(
            evidence=(*self.told(fault), *where(fault)),
            remedy=self.remedy(fault),
            change=self.known_change(fault),
            site=site,
            calls=fault.times,
        )

    def told(self, fault: GraphFault) -> tuple[str, ...]:
        """What was seen."""
        return fault.told

    def remedy(self, fault: GraphFault) -> str:
        """What to write instead."""
        return self.advice

    def known_change(self, fault: GraphFault) -> str:
        """The same in a few words, where more is known than `change` says."""
        return ""


def where(fault: GraphFault) -> tuple[str, ...]:
    """Where the capture began, if it is not the line of the fault."""
    line, at = fault.captured_at, fault.line
    if line is None or (at is not None and (at.file, at.line) == (line.file, line.line)):
        return ()
    return (f"the graph is captured at {line.short}",)

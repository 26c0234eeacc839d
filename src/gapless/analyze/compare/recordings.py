"""Two recordings of memory as a `Comparison`."""

from __future__ import annotations

from gapless.model.comparison import Comparison, Measure, Side
from gapless.model.memory_comparison import MemoryComparison


def of_memory(comparison: MemoryComparison) -> Comparison:
    """What the allocators of two runs hold; the number compared is the peak reserved."""
    before, after = (
        Side(name=one.name, path=one.name, device=one.gpu, steps=one.steps)
        for one in (comparison.before, comparison.after)
    )
    return Comparison(
        sentence=comparison.sentence,
        of="memory",
        per="run",
        before=before,
        after=after,
        length=Measure(
            name="reserved", before=comparison.before.reserved, after=comparison.after.reserved, unit="bytes"
        ),
        memory=comparison,
    )

"""Two recordings of memory as a `Comparison`."""

from __future__ import annotations

from gapless.model.comparison import Comparison, Measure, Side
from gapless.model.memory_comparison import MemoryComparison


def of_memory(made: MemoryComparison) -> Comparison:
    """What the allocators of two runs hold; the number compared is the peak reserved."""
    before, after = (
        Side(name=one.name, path=one.name, device=one.gpu, steps=one.steps)
        for one in (made.before, made.after)
    )
    return Comparison(
        sentence=made.sentence,
        of="memory",
        per="run",
        before=before,
        after=after,
        length=Measure(name="reserved", before=made.before.reserved, after=made.after.reserved, unit="bytes"),
        memory=made,
    )

"""Two recordings of memory as a `Comparison`."""

from __future__ import annotations

from gapless.model.comparison import Comparison, Measure, Side
from gapless.model.memory_comparison import MemoryComparison


def compare_memory(comparison: MemoryComparison) -> Comparison:
    """Wrap a comparison of two memory recordings; the compared number is the peak reserved."""
    before, after = (
        Side(name=recording.name, path=recording.name, device=recording.gpu, steps=recording.steps)
        for recording in (comparison.before, comparison.after)
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

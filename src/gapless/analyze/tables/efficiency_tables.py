"""Tables of how much of the GPU operators use, and of what an estimate would have predicted."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Profile, Table
from gapless.model.efficiency import Efficiency, Rate
from gapless.model.programme import Shape
from gapless.model.table import Row, row, table
from gapless.model.wording import duration, percent, three_digits

_MAX_ROWS = 30
"""Operators shown at most."""
_MAX_SHAPES = 3
"""Shapes of an operator's tensors shown."""


def efficiencies(profile: Profile, per: int) -> Iterator[Table]:
    """Yield a table by family and one by operator and shapes; none if no shapes were recorded."""
    efficiency = profile.efficiency
    if efficiency is None:
        return
    columns = "GPU time | calls | TFLOP/s | GB/s | FLOP/byte"
    if efficiency.card:
        columns += " | of the roofline"
    if efficiency.estimated:
        columns += " | estimated"
    families = (_row(rate.name, rate, per, efficiency) for rate in efficiency.families)
    yield table("GPU time by family", columns, families, shown=0, notes=tuple(_notes(efficiency)))
    operators = (
        _row(_operator_name(rate), rate, per, efficiency) for rate in efficiency.operators[:_MAX_ROWS]
    )
    yield table("Operators furthest below the roofline", columns, operators, shown=0)


def _row(name: str, rate: Rate, per: int, efficiency: Efficiency) -> Row:
    """Return the row of one family or operator; times and calls are per step."""
    extra = [percent(rate.share)] if efficiency.card else []
    extra += [f"× {rate.estimated / rate.time:.2f}"] if efficiency.estimated else []
    arithmetic = [three_digits(rate.tflops), three_digits(rate.intensity)] if rate.flops else ["", ""]
    return row(
        name,
        duration(rate.time / per),
        three_digits(rate.calls / per),
        arithmetic[0],
        three_digits(rate.bandwidth),
        arithmetic[1],
        *extra,
    )


def _operator_name(rate: Rate) -> str:
    """Return name, shapes and dtype: ``aten::mm 512×512 · 512×64 float32``."""
    shapes = " · ".join(map(_shape, rate.shapes[:_MAX_SHAPES]))
    return f"{rate.name} {shapes}{' · …' if len(rate.shapes) > _MAX_SHAPES else ''} {rate.dtype}"


def _shape(shape: Shape) -> str:
    return "×".join(map(str, shape)) or "scalar"


def _notes(efficiency: Efficiency) -> Iterator[str]:
    """Yield what share of the time is covered, and where the roofline comes from."""
    share = percent(efficiency.covered / efficiency.time) if efficiency.time else "none"
    yield f"Operators whose recorded shapes show how many bytes they move: {share} of the GPU's time"
    if efficiency.card:
        yield (
            f"The roofline is from the data sheet of the {efficiency.card}: the time that the arithmetic, or "
            "reading and writing the minimum number of bytes, would take at peak rates"
        )
    else:
        yield "Gapless has no data for this GPU: no roofline, and no estimate"

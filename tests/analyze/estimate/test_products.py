"""The fastest way to cut a product is found without trying every way."""

from __future__ import annotations

import math
from itertools import product as every

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.analyze.kernel_times import products
from gapless.analyze.kernel_times.products import (
    FP32,
    HALF,
    MAX_SKINNY_ROWS,
    SPLITS,
    Product,
    Rates,
    TileCosts,
    arithmetic_time,
)


def way(product: Product, form: TileCosts, rates: Rates, tile: tuple[int, int], split: int) -> float:
    """Nanoseconds of one way to cut it, in the words of `Form`."""
    batch, rows, columns, inner = product
    side = tile[0] * tile[1] / sum(tile)
    efficiency = side / (side + form.half_speed_edge) * (64 + form.half_speed_edge) / 64
    step = 2 * tile[0] * tile[1] * rates.processors / rates.flops / efficiency
    parts = batch * math.ceil(rows / tile[0]) * math.ceil(columns / tile[1]) * split
    full = parts / rates.processors
    waves = form.wave_rounding * math.ceil(full) + (1 - form.wave_rounding) * max(full, 1)
    adding = form.split_ns + 8 * batch * rows * columns / rates.memory * split if split > 1 else 0
    return waves * step * (inner / split + form.overhead_steps) + adding


sides = st.one_of(st.integers(1, 100), st.integers(1, 20_000))


@given(
    st.tuples(st.integers(1, 300), sides, sides, sides),
    st.sampled_from([FP32, HALF, FP32._replace(split_ns=3_000.0)]),
    st.sampled_from([20, 108, 132]),
    st.booleans(),
)
def test_no_way_that_is_left_out_is_faster(
    product: Product, form: TileCosts, processors: int, single: bool
) -> None:
    rates = Rates(processors * 140.0, processors, 2_000.0, single)
    batch, rows, columns, inner = product
    alone = single and batch > 1 and form.fp32 and rows > MAX_SKINNY_ROWS
    tiles = products.BATCHED if alone else products.TILES
    splits = [1] if alone else [split for split in SPLITS if split == 1 or inner >= 64 * split]
    times = arithmetic_time(product, form, rates)
    ways = [
        way(product, form, rates, tile, split)
        for tile, split in every(tiles, splits)
        # More parts than eight for each multiprocessor are not made where half as many are that.
        if split == 1 or batch * -(-rows // tile[0]) * -(-columns // tile[1]) * split < 16 * processors
    ]
    assert times == pytest.approx(min(ways), rel=1e-9)

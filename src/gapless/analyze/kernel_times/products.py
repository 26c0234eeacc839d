"""Estimate how long matrix products take: tiles, waves of tiles over the multiprocessors, memory traffic.

A library cuts a product into tiles and gives each to a multiprocessor. Small tiles read their factors more
often for each multiplication; large ones leave multiprocessors idle in the last wave. A long contraction can
be split among several multiprocessors, whose parts are then added. The fastest way counts, as libraries
search for it. Convolutions and attention are treated as products.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

Product = tuple[int, int, int, int]
"""Number of products, rows and columns of the output, and length of the contraction."""


class TileCosts(NamedTuple):
    """Constants of the product kernels for one width of numbers."""

    half_speed_edge: float
    """Side of a tile at which reading its factors halves its speed."""
    wave_rounding: float
    """How far a partly filled last wave costs a full one: 0 for its share of tiles, 1 for all of it."""
    overhead_steps: float
    """Time to begin and end a tile, as a length of its contraction."""
    split_ns: float
    """Nanoseconds for adding the parts of a split contraction."""
    unhidden_share: float
    """Share of the shorter of memory and arithmetic time that the other does not hide."""
    memory: float
    """Bandwidth that these kernels reach, relative to others'."""
    fp32: bool = False
    """Whether these are the kernels in fp32 without tensor cores."""


class Rates(NamedTuple):
    """What one GPU sustains.

    `flops` and `memory` (bytes) are per nanosecond, `processors` counts multiprocessors. `one_tile` says that
    its library has a single tile for batches of products in fp32.
    """

    flops: float
    processors: int
    memory: float
    one_tile: bool = False


FP32 = TileCosts(
    half_speed_edge=11.0,
    wave_rounding=0.9,
    overhead_steps=11.0,
    split_ns=100_000.0,
    unhidden_share=0.1,
    memory=0.61,
    fp32=True,
)
HALF = TileCosts(
    half_speed_edge=27.5,
    wave_rounding=0.0135,
    overhead_steps=94.0,
    split_ns=2_350.0,
    unhidden_share=0.28,
    memory=0.96,
)
"""Fitted by ``python benchmarks/kernel_times.py FOLDER --fit``."""

_SIDES = ((256, 128), (128, 128), (256, 64), (128, 64), (64, 64), (128, 32), (64, 32), (32, 32))
TILES = tuple(dict.fromkeys(pair for a, b in _SIDES for pair in ((a, b), (b, a))))
BATCHED = ((128, 128),)
"""``ampere_sgemm_128x128``, which batches take on an A100 whatever their sizes (NeuSight's tables)."""
MAX_SKINNY_ROWS = 8
"""Products of at most so many rows have a kernel of their own, with 128 columns per tile."""
SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Parts into which libraries split a contraction."""
_PARTIAL_BYTES = 8
"""Bytes written and read for each element of a part of a split contraction: four each way."""


@lru_cache(maxsize=16384)
def arithmetic_time(product: Product, form: TileCosts, rates: Rates) -> float:
    """Return the nanoseconds of the fastest way to cut `product` into tiles, without waiting for memory."""
    batch, rows, columns, inner = product
    processors, whole, ahead = rates.processors, form.wave_rounding, form.overhead_steps
    best = math.inf
    single = rates.one_tile and batch > 1 and form.fp32 and rows > MAX_SKINNY_ROWS
    partial = _PARTIAL_BYTES * batch * rows * columns / rates.memory
    share = batch * rows * columns * inner / processors
    for tall, wide, each, element in _tiles(form, rates, single):
        least = share * element  # no padding, full waves, no overhead
        if least >= best:
            break  # the tiles that follow are less efficient still
        tiles = batch * -(-rows // tall) * -(-columns // wide)
        for split in SPLITS:
            adding = form.split_ns + partial * split if split > 1 else 0.0
            if least + adding >= best or (split > 1 and (single or inner < 64 * split)):
                break
            parts = tiles * split
            # Tiles in sequence on the multiprocessor that has most of them.
            waves = whole * -(-parts // processors) + (1 - whole) * max(parts / processors, 1.0)
            time = waves * each * (inner / split + ahead) + adding
            if time < best:
                best = time
            if parts >= 8 * processors:
                break  # enough of them; more parts only cost
    return best


@lru_cache(maxsize=64)
def _tiles(form: TileCosts, rates: Rates, single: bool) -> tuple[tuple[int, int, float, float], ...]:
    """Return the sides of each tile and the nanoseconds per step of its contraction, in all and per element.

    Those that take least per element come first. None is faster than the peak.
    """
    tiles = []
    for tall, wide in BATCHED if single else TILES:
        side = tall * wide / (tall + wide)
        efficiency = side / (side + form.half_speed_edge) * (64 + form.half_speed_edge) / 64
        element = 2 * rates.processors / (rates.flops * efficiency)
        tiles.append((tall, wide, element * tall * wide, element))
    return tuple(sorted(tiles, key=lambda tile: tile[3]))


def overlap_times(arithmetic: float, memory: float, form: TileCosts) -> float:
    """Return the time of arithmetic and memory traffic together, which mostly overlap."""
    return max(arithmetic, memory) + form.unhidden_share * min(arithmetic, memory)

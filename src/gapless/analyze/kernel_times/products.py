"""How long matrix products take: tiles, waves of them over the multiprocessors, and the memory beside.

A library cuts a product into tiles and gives each to a multiprocessor. Small tiles read their factors more
often for each multiplication; large ones leave multiprocessors idle in the last wave. A long contraction can
be split among several multiprocessors, whose parts are then added. The fastest way counts, as libraries look
for it. Convolutions and attention are products with a shape of their own.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

Product = tuple[int, int, int, int]
"""How many products, rows and columns of the output, and the length of the contraction."""


class Form(NamedTuple):
    """What kernels of one width of numbers have in common.

    `edge` is the length of a tile's side at which reading its factors halves its speed; `whole` the part of a
    last wave that waits for the slowest of its tiles (1: it takes as long as a full one); `ahead` the length
    of contraction that a tile takes to begin and to end; `split` nanoseconds for adding the parts of a split
    contraction; `beside` the part of the shorter of memory and arithmetic that is not hidden behind the
    other; `memory` the share of the bandwidth that they reach of what others sustain.
    """

    edge: float
    whole: float
    ahead: float
    split: float
    beside: float
    memory: float
    fp32: bool = False


class Rates(NamedTuple):
    """What one GPU sustains: flops for each nanosecond, multiprocessors, bytes for each nanosecond.

    `one_tile` says that its library has a single tile for batches of products in fp32.
    """

    flops: float
    processors: int
    memory: float
    one_tile: bool = False


FP32 = Form(edge=11.0, whole=0.9, ahead=11.0, split=100_000.0, beside=0.1, memory=0.61, fp32=True)
HALF = Form(edge=27.5, whole=0.0135, ahead=94.0, split=2_350.0, beside=0.28, memory=0.96)
"""Fitted by ``python benchmarks/kernel_times.py FOLDER --fit``."""

_SIDES = ((256, 128), (128, 128), (256, 64), (128, 64), (64, 64), (128, 32), (64, 32), (32, 32))
TILES = tuple(dict.fromkeys(pair for a, b in _SIDES for pair in ((a, b), (b, a))))
BATCHED = ((128, 128),)
"""``ampere_sgemm_128x128``, which batches take on an A100 whatever their sizes (NeuSight's tables)."""
SKINNY = 8
"""Rows up to which there is a kernel of its own; of columns a tile has 128, however few are asked."""
SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)
_PARTIAL = 8
"""Bytes that one element of a part of a split contraction is written and read with."""


@lru_cache(maxsize=16384)
def arithmetic(product: Product, form: Form, rates: Rates) -> float:
    """Nanoseconds of the fastest way to cut `product`, were its factors there at once."""
    batch, rows, columns, inner = product
    processors, whole, ahead = rates.processors, form.whole, form.ahead
    best = math.inf
    single = rates.one_tile and batch > 1 and form.fp32 and rows > SKINNY
    partial = _PARTIAL * batch * rows * columns / rates.memory
    share = batch * rows * columns * inner / processors
    for tall, wide, each, element in _tiles(form, rates, single):
        least = share * element  # no padding, no wave that is not full, nothing ahead
        if least >= best:
            break  # the tiles that follow are less efficient still
        tiles = batch * -(-rows // tall) * -(-columns // wide)
        for split in SPLITS:
            adding = form.split + partial * split if split > 1 else 0.0
            if least + adding >= best or (split > 1 and (single or inner < 64 * split)):
                break
            parts = tiles * split
            # How many times as long as one tile it takes, with so many of them on each multiprocessor.
            waves = whole * -(-parts // processors) + (1 - whole) * max(parts / processors, 1.0)
            time = waves * each * (inner / split + ahead) + adding
            if time < best:
                best = time
            if parts >= 8 * processors:
                break  # enough of them; more parts only cost
    return best


@lru_cache(maxsize=64)
def _tiles(form: Form, rates: Rates, single: bool) -> tuple[tuple[int, int, float, float], ...]:
    """Sides of tiles, and the nanoseconds that one takes for each step along the contraction, whole and for
    each element of the output; those that take least for an element come first.

    Never below the product's own flops at the peak: a tile's padding only adds to them.
    """
    tiles = []
    for tall, wide in BATCHED if single else TILES:
        side = tall * wide / (tall + wide)
        efficiency = side / (side + form.edge) * (64 + form.edge) / 64
        element = 2 * rates.processors / (rates.flops * efficiency)
        tiles.append((tall, wide, element * tall * wide, element))
    return tuple(sorted(tiles, key=lambda tile: tile[3]))


def joined(arithmetic: float, memory: float, form: Form) -> float:
    """Combine both times, which mostly overlap."""
    return max(arithmetic, memory) + form.beside * min(arithmetic, memory)

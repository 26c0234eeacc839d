"""What a recurrent layer of cuDNN asks for: a chain of steps, each of which reads the weights again.

``benchmarks/recurrent_layers.py`` holds it against 106 measurements of layers on a V100 in DeepBench
(Apache-2.0; fp32 and fp16), to which the two constants are fitted. Nothing open was found of later GPUs and
versions of cuDNN: their intervals are wide.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from gapless.model.programme import Entry

STEP = 44_000.0
"""Nanoseconds of a step besides its products."""
SHARE = 0.8
"""What of the data sheet's bandwidth and peak a step's product reaches."""


class Chain(NamedTuple):
    """`steps` one after the other, each a product of so many flops with so many bytes of weights; `flops` of
    the products that wait for no step, and all of them together."""

    steps: int
    step_flops: float
    step_bytes: float
    flops: float


def chain(entry: Entry, backward: bool, size: int) -> Chain | None:
    """Return the call's chain of steps by its shapes; None if they do not determine it.

    Input, weights and states come in, and their gradients, or the output and the states, go out.
    """
    if len(entry.inputs) < 3 or len(entry.outputs) < 2:
        return None
    data, weight, again = entry.inputs[:3]
    output, state = entry.outputs[:2]
    if len(weight) != 2 or len(again) != 2 or len(state) != 3 or not data or not math.prod((*data, *state)):
        return None
    layers, batch, hidden = state
    rows, units = again
    taken = weight[1]
    both = output[-1] == 2 * hidden if not backward else entry.inputs[5:6] == (weight,) and layers % 2 == 0
    directions = 2 if both and layers % 2 == 0 else 1
    deep = layers // directions
    places = math.prod(data[:-1])
    wide = directions * hidden
    inward = 2.0 * places * rows * directions * (taken + (deep - 1) * wide)
    along = 2.0 * places * rows * units * layers
    steps = -(-places // batch) * deep
    passes = 2 if backward else 1  # gradients of what comes in step by step, those of weights afterwards
    return Chain(
        steps=steps,
        step_flops=along / steps,
        step_bytes=float(rows * units * directions * size),
        flops=passes * inward + (along if backward else 0.0),
    )

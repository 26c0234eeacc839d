"""The work of a recurrent layer of cuDNN: steps in sequence, each of which reads the weights again.

``benchmarks/recurrent_layers.py`` compares the model with 106 measurements of layers on a V100 in DeepBench
(Apache-2.0; fp32 and fp16), to which the two constants are fitted. No open data of later GPUs and
versions of cuDNN is known: their intervals are wide.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from gapless.model.programme import Entry

STEP_NS = 44_000.0
"""Duration of a step besides its products."""
PEAK_SHARE = 0.8
"""Share of the data sheet's bandwidth and peak that a step's product reaches."""


class RecurrentSteps(NamedTuple):
    """The steps of a call, which run in sequence, and the work outside them."""

    steps: int
    """Number of steps, over all layers."""
    step_flops: float
    """Flops of the product of one step."""
    step_bytes: float
    """Bytes of the weights that one step reads."""
    flops: float
    """Flops of the products that wait for no step."""

    @property
    def total_flops(self) -> float:
        """Flops of all products."""
        return self.flops + self.steps * self.step_flops


def recurrent_steps(entry: Entry, backward: bool, size: int) -> RecurrentSteps | None:
    """Return the steps of the call of a recurrent layer; None if its shapes do not determine them.

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
    return RecurrentSteps(
        steps=steps,
        step_flops=along / steps,
        step_bytes=float(rows * units * directions * size),
        flops=passes * inward + (along if backward else 0.0),
    )

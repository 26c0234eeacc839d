"""The samples of torch's own test catalogue, as its tests see them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.testing._internal.common_utils import SEED, set_rng_seed


def sample_inputs(op: Any, dtype: torch.dtype, requires_grad: bool = False) -> Iterator[Any]:
    """Yield the sample inputs of an entry of ``op_db`` on the CPU, the same in each run.

    ``op.sample_inputs`` yields the same, but first searches the stack for a test of torch's, which takes
    longer than making and running a sample.
    """
    samples = iter(op.sample_inputs_func(op, "cpu", dtype, requires_grad))
    while True:
        set_rng_seed(SEED)
        try:
            sample = next(samples)
        except StopIteration:
            return
        yield sample

"""Operators over lists of tensors: launches, blocks, and arithmetic in fp64.

As ATen goes about them (``MultiTensorApply.cuh``): a block of 512 threads goes through a chunk of 65,536
elements of one tensor, and a launch has at most 320 blocks, of few tensors. A kernel over one small tensor
has few blocks, however many multiprocessors are free. Fused optimizers take their settings in fp64, and so
compute with them (``fused_adam_utils.cuh``, ``FusedSgdKernel.cu``): GPUs with few units for that are slow.
"""

from __future__ import annotations

from typing import NamedTuple

from gapless.model.programme import Entry

CHUNK = 65_536
_BLOCKS_OF_A_LAUNCH = 320
_TENSORS_OF_A_LAUNCH = {1: 110, 2: 64, 3: 48, 4: 36}
_FEWEST_TENSORS_OF_A_LAUNCH = 30
"""Of a launch with five lists or more."""

_REDUCTIONS = ("_foreach_norm", "_foreach_max", "_foreach_powsum")
"""Operators that read one list and write a number for each of its tensors."""
_MOST_LISTS = 4
"""No operator but the fused optimizers reads more."""


class _Fused(NamedTuple):
    """Lists that a fused optimizer is given, those of them with an element for each of the parameters, and
    instructions in fp64: for an element, conversions counted, and for a block."""

    lists: int
    whole: int
    element: float
    block: float


_BLOCK = 512 * 2 * 110.0
"""Two powers for the bias corrections, by each thread of a block."""
_FUSED = {
    "_fused_adam_": _Fused(5, 4, 17.0, _BLOCK),
    "_fused_adamw_": _Fused(5, 4, 17.0, _BLOCK),
    "_fused_sgd_": _Fused(3, 3, 12.0, 0.0),
    "_fused_adagrad_": _Fused(4, 3, 12.0, 0.0),
}


class Listed(NamedTuple):
    """Launches, the blocks of all of them, instructions in fp64, and bytes that are in no cache."""

    kernels: int
    blocks: int
    doubles: float
    cold: float


FIRST = 0.4
"""The share of what an update's operators move that the ones before have not moved: AdamW's eight go through
parameters, gradients and both states, each of which is cold once."""


def listed(entry: Entry, stem: str) -> Listed:
    """Return what an operator over lists launches.

    >>> listed(Entry(name="aten::_fused_adamw_", tensors=5, elements=4 * 384 + 1), "_fused_adamw_")
    Listed(kernels=1, blocks=1, doubles=119168.0, cold=0.0)
    """
    fused = _FUSED.get(stem)
    lists = fused.lists if fused is not None else _lists(entry, stem)
    tensors = max(entry.tensors // lists, 1)
    elements = entry.elements // (fused.whole if fused is not None else lists)
    blocks = max(tensors, -(-elements // CHUNK))
    most = _TENSORS_OF_A_LAUNCH.get(lists, _FEWEST_TENSORS_OF_A_LAUNCH)
    launches = max(-(-tensors // most), -(-blocks // _BLOCKS_OF_A_LAUNCH), 1)
    doubles = fused.element * elements + fused.block * blocks if fused is not None else 0.0
    again = entry.optimizer and fused is None
    cold = float(entry.reads + entry.writes) * (FIRST if again else 1.0)
    return Listed(launches * (2 if stem == "_foreach_norm" else 1), blocks, doubles, cold)


def _lists(entry: Entry, stem: str) -> int:
    """Return how many lists are read for each one written; reductions write next to nothing."""
    if not entry.writes or stem in _REDUCTIONS:
        return 1
    return min(max(round(entry.reads / entry.writes), 1), _MOST_LISTS)

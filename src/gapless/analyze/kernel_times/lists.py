"""Operators over lists of tensors: launches, blocks, and arithmetic in fp64.

In ATen (``MultiTensorApply.cuh``) a block of 512 threads processes a chunk of 65,536 elements of one tensor,
and a launch has at most 320 blocks, of few tensors. A kernel over one small tensor has few blocks, however
many multiprocessors are free. Fused optimizers compute in fp64, the type of their settings
(``fused_adam_utils.cuh``, ``FusedSgdKernel.cu``): GPUs with few fp64 units are slow.
"""

from __future__ import annotations

from typing import NamedTuple

from gapless.model.programme import Entry

CHUNK_ELEMENTS = 65_536
"""Elements that a block processes (`kChunkSize` in ATen)."""
_MAX_BLOCKS_PER_LAUNCH = 320
"""Blocks of a launch (`depth_to_max_blocks` in ATen)."""
_MAX_TENSORS_BY_LISTS = {1: 110, 2: 64, 3: 48, 4: 36}
"""Tensors of each list that a launch takes, by its number of lists (`depth_to_max_tensors` in ATen)."""
_MAX_TENSORS_OF_MANY_LISTS = 30
"""The same with five lists or more."""

_REDUCTIONS = ("_foreach_norm", "_foreach_max", "_foreach_powsum")
"""Operators that read one list and write a number for each of its tensors."""
_MAX_LISTS = 4
"""No operator but the fused optimizers reads more."""


class _FusedOptimizer(NamedTuple):
    """The arguments of a fused optimizer and its instructions in fp64."""

    lists: int
    """Lists of tensors that it takes."""
    parameter_lists: int
    """Those of them with an element for each element of the parameters."""
    fp64_per_element: float
    """Instructions in fp64 for each element, conversions included."""
    fp64_per_block: float
    """Instructions in fp64 of each block besides."""


_ADAM_FP64_PER_BLOCK = 512 * 2 * 110.0
"""Each of 512 threads computes two powers for the bias corrections, at about 110 instructions."""
_FUSED = {
    "_fused_adam_": _FusedOptimizer(5, 4, 17.0, _ADAM_FP64_PER_BLOCK),
    "_fused_adamw_": _FusedOptimizer(5, 4, 17.0, _ADAM_FP64_PER_BLOCK),
    "_fused_sgd_": _FusedOptimizer(3, 3, 12.0, 0.0),
    "_fused_adagrad_": _FusedOptimizer(4, 3, 12.0, 0.0),
}


class ListWork(NamedTuple):
    """The fields of `DeviceWork` that operators over lists determine."""

    kernels: int
    blocks: int
    fp64_instructions: float
    cold_bytes: float


_COLD_UPDATE_SHARE = 0.4
"""Share of an update's traffic that is in no cache: AdamW's eight operators go through parameters, gradients
and both states, each of which is cold once."""


def list_work(entry: Entry, stem: str) -> ListWork:
    """Return the launches of an operator over lists, their blocks and their work.

    >>> list_work(Entry(name="aten::_fused_adamw_", tensors=5, elements=4 * 384 + 1), "_fused_adamw_")
    ListWork(kernels=1, blocks=1, fp64_instructions=119168.0, cold_bytes=0.0)
    """
    fused = _FUSED.get(stem)
    lists = fused.lists if fused is not None else _lists_per_output(entry, stem)
    tensors = max(entry.tensors // lists, 1)
    elements = entry.elements // (fused.parameter_lists if fused is not None else lists)
    blocks = max(tensors, -(-elements // CHUNK_ELEMENTS))
    most = _MAX_TENSORS_BY_LISTS.get(lists, _MAX_TENSORS_OF_MANY_LISTS)
    launches = max(-(-tensors // most), -(-blocks // _MAX_BLOCKS_PER_LAUNCH), 1)
    doubles = fused.fp64_per_element * elements + fused.fp64_per_block * blocks if fused is not None else 0.0
    again = entry.optimizer and fused is None
    cold = float(entry.reads + entry.writes) * (_COLD_UPDATE_SHARE if again else 1.0)
    return ListWork(launches * (2 if stem == "_foreach_norm" else 1), blocks, doubles, cold)


def _lists_per_output(entry: Entry, stem: str) -> int:
    """Return how many lists are read for each list that is written; 1 for reductions, which write little."""
    if not entry.writes or stem in _REDUCTIONS:
        return 1
    return min(max(round(entry.reads / entry.writes), 1), _MAX_LISTS)

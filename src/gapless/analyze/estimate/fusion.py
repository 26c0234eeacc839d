"""Merge compiled operators that a compiler would turn into one kernel.

This is a model. Neighbouring compiled operators over equally many elements, element-wise or reducing rows,
become one kernel; intermediate results do not go through memory. Products, convolutions, attention, sorts and
scatters stay as they are, and so does eager code. PyTorch's code generator does this with chains; it also
fuses across them, and sometimes less. `benchmarks/fusion.py` compares the counts with the code it writes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from gapless.analyze.estimate.programme_steps import Step
from gapless.analyze.kernel_times.families import family_of
from gapless.analyze.kernel_times.operator_work import work
from gapless.model.programme import Entry

FUSED_NAME = "triton::fused"
"""The name of a kernel that stands for several operators."""
ASSUMPTION = (
    "compiled code makes one kernel of neighbouring element-wise operators and reductions of one size, each "
    "launched as an eager operator is; CUDA graphs are not counted"
)
COUNT_SPREAD = 0.25
"""Uncertainty of the number of kernels, as a standard deviation of ``ln(true / counted)``: more than small
models of eight kinds show (`benchmarks/sheets/fusion.md`), as others may fuse less well."""
_FUSIBLE_FAMILIES = frozenset(
    ["pointwise", "copy", "random", "reduction", "softmax", "layer norm", "batch norm", "gather", "foreach"]
)


def is_fusible(entry: Entry) -> bool:
    """Whether a compiler merges this operator with neighbours of its kind."""
    return entry.kind == "operator" and family_of(entry.name) in _FUSIBLE_FAMILIES


def fuse(step: Step) -> Step:
    """Return `step` with each chain of compiled operators merged into one kernel.

    >>> add = Entry(name="aten::add", outputs=((8,),), reads=64, writes=32, compiled=True)
    >>> [(kernel.name, kernel.reads, kernel.writes) for kernel in fuse((add, add))]
    [('triton::fused', 96, 32)]
    """
    kernels: list[Entry] = []
    chain: list[Entry] = []
    for entry in step:
        joins = entry.compiled and is_fusible(entry)
        if chain and not (joins and _extends_chain(chain, entry)):
            kernels.append(_merge(chain))
            chain = []
        if joins:
            chain.append(entry)
        else:
            kernels.append(entry)
    return tuple([*kernels, _merge(chain)] if chain else kernels)


def compile_step(step: Step) -> Step:
    """Return the step as if all of it but the optimizer were compiled."""
    return tuple(
        msgspec.structs.replace(entry, compiled=True) if _is_compilable(entry) else entry for entry in step
    )


def _is_compilable(entry: Entry) -> bool:
    return entry.kind == "operator" and not entry.optimizer


def count_kernels(order: Sequence[Step]) -> float:
    """Return the mean number of kernels per step."""
    kernels = sum(work(entry).kernels for step in order for entry in step if entry.kind == "operator")
    return kernels / max(len(order), 1)


def _extends_chain(chain: Sequence[Entry], other: Entry) -> bool:
    """Whether `other` belongs to the chain's pass and has equally many elements, or as many as a reduction of
    rows in the chain has left, with which norms compute before they return to the rows."""
    last = chain[-1]
    if (last.backward, last.optimizer, last.regraded) != (other.backward, other.optimizer, other.regraded):
        return False
    if last.optimizer:
        return True
    size, own = max(map(_elements, chain)), _elements(other)
    return own == size or (own > 1 and any(_reduced_elements(entry, size) == own for entry in chain))


def _reduced_elements(entry: Entry, size: int) -> int:
    """Return how many elements a reduction of `size` elements leaves; 0 for other operators."""
    reduces = family_of(entry.name) == "reduction" and _elements(entry) == size
    return max(map(math.prod, entry.outputs), default=0) if reduces else 0


def _elements(entry: Entry) -> int:
    if family_of(entry.name) == "gather":  # the table is not traversed
        return max(map(math.prod, entry.outputs), default=0)
    return max(map(math.prod, (*entry.inputs, *entry.outputs)), default=0)


def _merge(chain: list[Entry]) -> Entry:
    """Merge a chain into one kernel: what an operator passes to the next one stays on the chip."""
    if len(chain) == 1:
        return chain[0]
    first, last = chain[0], chain[-1]
    reads = first.reads + sum(max(later.reads - before.writes, 0) for before, later in pairwise(chain))
    return Entry(
        name=FUSED_NAME,
        dtype=first.dtype,
        inputs=first.inputs,
        outputs=last.outputs,
        tensors=first.tensors,
        elements=_elements(first),
        reads=reads,
        writes=last.writes,
        backward=first.backward,
        optimizer=first.optimizer,
        regraded=first.regraded,
        compiled=True,
    )

"""Compiled code in an estimate: operators that a compiler would make one kernel of, as one.

A model, and said to be one. Neighbouring operators of compiled code that go through equally many elements,
element by element or reducing rows, become one kernel; what lies between two of them does not go through
memory. Products, convolutions, attention, sorts and scatters stay as they are, and so does eager code. This
is what PyTorch's code generator does with chains; it also fuses across, and at times less.
`benchmarks/fusion.py` holds the counts against the code that it writes.
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

FUSED = "triton::fused"
"""The name of a kernel that stands for several operators."""
ASSUMED = (
    "compiled code makes one kernel of neighbouring element-wise operators and reductions of one size, each "
    "launched as an eager operator is; CUDA graphs are not counted"
)
DOUBT = 0.25
"""How uncertain the number of kernels is, as a standard deviation of ``ln(true / counted)``: more than
small models of eight kinds show (`benchmarks/sheets/fusion.md`), as others may fuse less well."""
_FUSES = frozenset(
    ["pointwise", "copy", "random", "reduction", "softmax", "layer norm", "batch norm", "gather", "foreach"]
)


def fuses(entry: Entry) -> bool:
    """Whether a compiler makes one kernel of this operator and its like."""
    return entry.kind == "operator" and family_of(entry.name) in _FUSES


def fused(step: Step) -> Step:
    """`step` with each chain of compiled operators as one kernel.

    >>> add = Entry(name="aten::add", outputs=((8,),), reads=64, writes=32, compiled=True)
    >>> [(one.name, one.reads, one.writes) for one in fused((add, add))]
    [('triton::fused', 96, 32)]
    """
    made: list[Entry] = []
    chain: list[Entry] = []
    for entry in step:
        joins = entry.compiled and fuses(entry)
        if chain and not (joins and _alike(chain, entry)):
            made.append(_kernel(chain))
            chain = []
        if joins:
            chain.append(entry)
        else:
            made.append(entry)
    return tuple([*made, _kernel(chain)] if chain else made)


def as_compiled(step: Step) -> Step:
    """The same step as if all of it but the optimizer were compiled."""
    return tuple(msgspec.structs.replace(one, compiled=True) if _could_be(one) else one for one in step)


def _could_be(entry: Entry) -> bool:
    return entry.kind == "operator" and not entry.optimizer


def launches(order: Sequence[Step]) -> float:
    """Kernels of a step, in the mean."""
    kernels = sum(work(one).kernels for step in order for one in step if one.kind == "operator")
    return kernels / max(len(order), 1)


def _alike(chain: Sequence[Entry], other: Entry) -> bool:
    """Whether all are in one pass and go through equally many elements, or `other` through as many as a
    reduction of rows in the chain has left, which norms compute with before they go back to the rows."""
    one = chain[-1]
    if (one.backward, one.optimizer, one.regraded) != (other.backward, other.optimizer, other.regraded):
        return False
    if one.optimizer:
        return True
    size, own = max(map(_elements, chain)), _elements(other)
    return own == size or (own > 1 and any(_left(each, size) == own for each in chain))


def _left(entry: Entry, size: int) -> int:
    """How many elements a reduction of `size` elements leaves; 0 for what is none."""
    reduces = family_of(entry.name) == "reduction" and _elements(entry) == size
    return max(map(math.prod, entry.outputs), default=0) if reduces else 0


def _elements(entry: Entry) -> int:
    if family_of(entry.name) == "gather":  # a table is looked up, not gone through
        return max(map(math.prod, entry.outputs), default=0)
    return max(map(math.prod, (*entry.inputs, *entry.outputs)), default=0)


def _kernel(chain: list[Entry]) -> Entry:
    """One kernel for a chain: what each operator makes for the next one stays on the chip."""
    if len(chain) == 1:
        return chain[0]
    first, last = chain[0], chain[-1]
    reads = first.reads + sum(max(later.reads - before.writes, 0) for before, later in pairwise(chain))
    return Entry(
        name=FUSED,
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

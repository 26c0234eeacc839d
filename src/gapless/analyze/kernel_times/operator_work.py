"""Derive the `DeviceWork` of an operator from its name and the shapes of its tensors."""

from __future__ import annotations

import math
from functools import lru_cache

from gapless.analyze.kernel_times.device_work import DeviceWork
from gapless.analyze.kernel_times.families import (
    ATTENTION,
    CONVOLUTION,
    DISTANCE,
    INDEXING,
    MATMUL,
    RECURRENT,
    TRITON,
    family_of,
    stem_of,
)
from gapless.analyze.kernel_times.indexing import indexing_work
from gapless.analyze.kernel_times.lists import list_work
from gapless.analyze.kernel_times.operator_traffic import (
    ACCESSES_PER_ROW,
    ELEMENT_BYTES,
    ONE_PASS_NORMS,
    element_bytes,
    kernel_count,
    output_element_bytes,
    traffic_bytes,
    widens_integers,
)
from gapless.analyze.kernel_times.product_work import (
    ATTENTION_BACKWARD,
    attention_work,
    convolution_work,
    matmul_work,
)
from gapless.analyze.kernel_times.recurrent import recurrent_steps
from gapless.model.programme import Entry

TRANSPOSED_FACTOR = 2.3
"""Time per element of a transposing copy relative to other copies one by one: neighbours in one tensor are
far apart in the other, so each is a memory access of its own."""
_OTHER_LAYOUTS = ("strided", "turned")
"""Values of `Entry.order` for tensors that are not contiguous."""
_SAME_TYPE_OPERATORS = frozenset(["where", "masked_fill", "masked_fill_", "native_dropout_backward"])
"""Operators with a mask, whose other tensors have one type."""
_WITH_NUMBERS = frozenset(["gt", "ge", "lt", "le", "add", "sub", "rsub", "mul", "div", "true_divide"])
"""Operators that turn bools into numbers if their other operand is a number."""
_NORM_VECTOR = 4
"""Layer norms of rows that are no multiple of so many elements launch two kernels, the first of which has
`durations.MISALIGNED_ROW_THREADS` times the threads for a row (ATen's ``layer_norm_kernel.cu``)."""
_POOL_FACTORS = {"max_pool2d_with_indices": 6.0, "max_pool2d_with_indices_backward": 4.1}
"""Elements moved one by one for each of the result, with channels first: a window of 3 by 3 is read for each,
or the windows that cover it. Equal in profiles of a V100 and of an H200."""
_LOOKUPS = ("embedding", "index_select", "index", "gather")
"""Operators that copy the elements at given indices."""


@lru_cache(maxsize=16384)
def work(entry: Entry) -> DeviceWork:  # noqa: C901 - one branch for each family
    """Return what the operator `entry` makes a GPU compute and move."""
    stem = stem_of(entry.name)
    family = family_of(entry.name)
    size = 1 if entry.dtype.startswith("float8") else ELEMENT_BYTES.get(entry.dtype, 4)
    plain = DeviceWork(
        family, 0.0, traffic_bytes(entry, stem, family), _unit(entry), kernel_count(entry, stem), size
    )
    if family == MATMUL:
        return matmul_work(entry, stem, plain)
    if family == CONVOLUTION:
        return convolution_work(entry, "backward" in stem, plain)
    if family == ATTENTION:
        return attention_work(entry, "backward" in stem, plain)
    if family == RECURRENT:
        return _recurrent_work(entry, stem, plain)
    if family == TRITON:
        return plain._replace(flops=float(entry.flops))
    if family in ("layer norm", "softmax"):
        return _norm_work(entry, stem, plain)
    if family == INDEXING or stem == "index":
        indexing = indexing_work(entry, stem, size)
        if indexing is not None:
            return plain._replace(**indexing._asdict())
    if family == "foreach":
        return plain._replace(**list_work(entry, stem)._asdict())
    if family == DISTANCE:
        return _distance_work(entry, "backward" in stem, plain)
    if family == "batch norm":
        return _batch_norm_work(entry, stem, plain)
    if widens_integers(entry, stem):
        elements = float(math.prod(entry.inputs[0]))
        bytes_each = element_bytes(entry.dtype) + output_element_bytes(entry)
        return plain._replace(first_bytes=elements * bytes_each, first_strided=elements)
    if stem in ACCESSES_PER_ROW:
        return plain._replace(chained_accesses=_chained_accesses(entry, stem))
    if family == "gather" and stem in _LOOKUPS and entry.outputs:
        return plain._replace(lookups=float(math.prod(entry.outputs[0])))
    if stem in _POOL_FACTORS and entry.outputs and not entry.channels_last:
        return plain._replace(strided_elements=_POOL_FACTORS[stem] * math.prod(entry.outputs[0]))
    if entry.outputs and _moves_single_elements(entry, stem, family):
        turned = TRANSPOSED_FACTOR if entry.order == "turned" else 1.0
        return plain._replace(strided_elements=turned * math.prod(entry.outputs[0]))
    return plain


def _norm_work(entry: Entry, stem: str, plain: DeviceWork) -> DeviceWork:
    """Return the work of a layer norm or a softmax over rows."""
    length = _row_length(entry, stem)
    is_misaligned = (
        plain.family == "softmax"
        and plain.element_bytes == 2
        and length > 64
        and length * plain.element_bytes % 16 > 0
    )
    has_moments = stem == "native_layer_norm" and length % _NORM_VECTOR > 0
    plain = _copy_layout_first(entry, plain) if entry.order in _OTHER_LAYOUTS else plain
    rows = max(map(math.prod, entry.inputs), default=0) / length
    return plain._replace(
        row_length=length,
        rows=rows,
        is_misaligned=is_misaligned or has_moments,
        kernels=plain.kernels + has_moments,
    )


def _batch_norm_work(entry: Entry, stem: str, plain: DeviceWork) -> DeviceWork:
    """Return the work of a batch norm; with channels first, cuDNN's kernels have a block for each channel."""
    if entry.channels_last or stem in ONE_PASS_NORMS:
        return plain._replace(has_native_layout=True)
    image = max(entry.inputs, key=math.prod, default=())
    return plain._replace(
        channel_blocks=image[1] if len(image) > 2 else 0,
        backward_passes=1.0 if stem.endswith("backward") else 0.0,
    )


def _recurrent_work(entry: Entry, stem: str, plain: DeviceWork) -> DeviceWork:
    recurrence = recurrent_steps(entry, stem.endswith("backward"), plain.element_bytes)
    flops = recurrence.total_flops if recurrence is not None else 0.0
    return plain._replace(flops=flops, recurrence=recurrence)


def _distance_work(entry: Entry, backward: bool, plain: DeviceWork) -> DeviceWork:
    """Return the work of distances between rows, each of which has a block (ATen's ``DistanceKernel.cu``).

    Backward each distance has a gradient per column, and a further kernel adds them up.
    """
    if not backward:
        return plain._replace(distances=float(math.prod(entry.outputs[0])) if entry.outputs else 0.0)
    if len(entry.inputs) < 2:
        return plain
    gradients = float(math.prod(entry.inputs[-1]) * entry.inputs[1][-1] * plain.element_bytes)
    return plain._replace(kernels=plain.kernels + 1, bytes_moved=plain.bytes_moved + 2 * gradients)


def _copy_layout_first(entry: Entry, plain: DeviceWork) -> DeviceWork:
    """Return `plain` preceded by a copy of its first input into the order that it needs."""
    elements = math.prod(entry.inputs[0])
    moved = 2.0 * elements * plain.element_bytes
    return plain._replace(
        kernels=plain.kernels + 1,
        bytes_moved=plain.bytes_moved + moved,
        first_bytes=moved,
        first_strided=elements * (TRANSPOSED_FACTOR if entry.order == "turned" else 1.0),
    )


def _moves_single_elements(entry: Entry, stem: str, family: str) -> bool:
    """Whether elements are moved one by one, not in vectors.

    So are broadcast tensors, other layouts (`contiguous` and `reshape` copy by `clone`), mixed types, and
    pixels that are computed from their neighbours.
    """
    if (
        entry.order in _OTHER_LAYOUTS
        or (stem == "clone" and not entry.order)
        or _converts_types(entry, stem, family)
    ):
        return True
    output = entry.outputs[0]
    if stem.startswith("upsample_"):
        return True
    return family == "pointwise" and any(math.prod(shape) > 1 and shape != output for shape in entry.inputs)


def _converts_types(entry: Entry, stem: str, family: str) -> bool:
    """Whether each element is converted as it is read and written, so that none is moved in vectors.

    Operators of several types have no vector kernels (ATen's ``CUDALoops.cuh``), but for copies of float32 to
    16 bits (``Copy.cu``) and those that take a mask.
    """
    if entry.compiled or not entry.dtype or not entry.inputs or stem in _SAME_TYPE_OPERATORS:
        return False
    size, output_size = element_bytes(entry.dtype), output_element_bytes(entry)
    if stem == "_to_copy":
        return output_size != size and (entry.dtype, output_size) != ("float32", 2)
    if family != "pointwise":
        return False
    if entry.dtype == "bool" and len(entry.inputs) == 1:
        return stem in _WITH_NUMBERS  # a number, and no bool
    several = [shape for shape in entry.inputs if math.prod(shape) > 1]
    # A number on the GPU takes up to 8 bytes more or less, whatever its type.
    return len(several) > 1 and abs(entry.reads - size * entry.elements) > 8 * len(entry.inputs)


def _chained_accesses(entry: Entry, stem: str) -> int:
    """Return how many accesses wait for each other in each thread of the only block.

    It is 0 for an unreduced loss, where every row has a thread of its own.
    """
    reduced = entry.outputs[:1] if stem.endswith("forward") else entry.inputs[:1]
    rows = next((shape[0] for shape in entry.inputs if len(shape) == 2), 0)
    if reduced != ((),) or not rows:
        return 0
    threads = entry.block or min(max(2 ** round(math.log2(max(rows // 16, 1))), 32), 1024)
    return ACCESSES_PER_ROW[stem] * -(-rows // threads)


def nominal_flops(entry: Entry) -> float:
    """Return the flops by the operator's definition, without those that attention recomputes or skips."""
    work_ = work(entry)
    if work_.family != ATTENTION:
        return work_.flops
    flops = work_.flops * (2.0 if work_.causal else 1.0)
    return flops * 2.0 / ATTENTION_BACKWARD if work_.backward_passes else flops


def _row_length(entry: Entry, stem: str) -> int:
    """Return how many elements are normalized together."""
    shape = max(entry.inputs, key=math.prod, default=())
    if "group_norm" in stem:
        return max(math.prod(shape[1:]) // 32, 1)  # the usual number of groups, which is not recorded
    return shape[-1] if shape and shape[-1] else 1


def _unit(entry: Entry) -> str:
    """Return the unit that multiplies elements of the operator's type."""
    kind = {"float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}.get(entry.dtype, "fp32")
    if entry.dtype.startswith("float8"):
        return "fp8"
    return "tf32" if kind == "fp32" and entry.tf32 else kind

"""Bytes that an operator reads and writes, and kernels that it launches."""

from __future__ import annotations

import math

from gapless.model.programme import Entry

ELEMENT_BYTES = {"float16": 2, "bfloat16": 2, "float64": 8, "int8": 1, "uint8": 1}
"""Bytes of an element of types that kernels compute in, where they are not four."""
_OTHER_ELEMENT_BYTES = {"bool": 1, "int64": 8, "complex64": 8, "complex128": 16}
"""Bytes of an element of the other types, where they are not four."""
_SECTOR_BYTES, _LABEL_BYTES = 32, 8
"""Bytes that are read for a single number, the smallest access of a GPU's memory; and those of a label."""
ACCESSES_PER_ROW = {"nll_loss_forward": 2, "nll_loss_backward": 1}
"""Losses over classes that one block sums up, and the accesses per row that wait for each other: the label,
and forward the logit that it names (ATen's ``Loss.cu``)."""
ONE_PASS_NORMS = frozenset(
    [
        "_native_batch_norm_legit_no_training",
        "batch_norm_stats",
        "batch_norm_elemt",
        "batch_norm_backward_reduce",
        "batch_norm_backward_elemt",
        "batch_norm_gather_stats_with_counts",
    ]
)
"""Batch norms that either compute statistics or use them, and read their input once."""
_TRAFFIC_FACTORS = {
    "native_dropout_backward": 2.6, "_softmax_backward_data": 1.6, "_log_softmax_backward_data": 1.6,
    "native_layer_norm_backward": 1.8, "native_group_norm_backward": 1.8, "_fused_rms_norm_backward": 1.8,
    "_unique2": 3.0, "unique_dim": 3.0,
}  # fmt: skip
"""Bytes moved by operators that go through their data in several kernels, or with a reduction between, as a
multiple of their inputs and outputs (from the operators of whole models in NeuSight's tables); distinct
values are sorted by eight bits of 64 at a time."""
_WRITE_ONLY = frozenset(
    [
        "fill",
        "fill_",
        "zero",
        "zero_",
        "zeros",
        "ones",
        "full",
        "zeros_like",
        "ones_like",
        "full_like",
        "new_zeros",
        "new_ones",
        "new_full",
        "uniform_",
        "normal_",
        "random_",
        "bernoulli_",
        "exponential_",
    ]
)
"""Operators that do not read the tensor that they write."""
_KERNELS_PER_CALL = {
    "_foreach_norm": 2, "sort": 5, "argsort": 5, "unique": 8, "_unique2": 8, "unique_dim": 10, "topk": 4,
    "unique_consecutive": 8, "nonzero": 3, "argwhere": 3, "masked_select": 4,
    "constant_pad_nd": 2, "slice_backward": 2, "select_backward": 2, "multinomial": 6,
    "binary_cross_entropy_with_logits": 2, "nll_loss_backward": 2, "nll_loss2d_backward": 2, "randperm": 5,
    "native_layer_norm_backward": 2, "_fused_rms_norm_backward": 2, "embedding_dense_backward": 3,
    "masked_fill": 2, "index_fill": 2,
    "max_pool2d_with_indices_backward": 2, "native_group_norm": 2, "native_group_norm_backward": 4,
    "convolution_backward": 2, "cudnn_convolution_backward": 2, "batch_norm_backward_reduce": 1,
    "_embedding_bag_dense_backward": 4, "scatter_reduce": 2, "median": 3, "kthvalue": 2, "bincount": 4,
}  # fmt: skip
"""Kernels of a call, where there are several, as profiles of these operators show."""
_INTEGER_TYPES = frozenset(["bool", "uint8", "int8", "int16", "int32"])
"""Types whose sums have another type: 64 bits, unless it is given."""


def traffic_bytes(entry: Entry, stem: str, family: str) -> float:
    """Return the bytes read and written; lookups read no more than they write."""
    reads, writes = entry.reads, entry.writes
    if family == "gather" and not stem.startswith(
        ("max_pool", "avg_pool", "_adaptive", "nonzero", "argwhere")
    ):
        reads = min(reads, 2 * writes)
    if family == "scatter" and stem.startswith(("scatter", "index_add", "index_copy")):
        values = [math.prod(shape) for shape in entry.inputs[1:]]
        size = writes / max(math.prod(entry.outputs[0]) if entry.outputs else 1, 1)
        if entry.name.endswith("_") and values:
            return min(float(reads + writes), 3 * max(values) * max(size, 1))
    if stem in ACCESSES_PER_ROW and len(entry.inputs) > 1:  # of each row of scores, one is looked at
        rows = max(math.prod(shape[:-1]) for shape in entry.inputs)
        reads = min(reads, rows * (_SECTOR_BYTES + _LABEL_BYTES))
    if family == "batch norm" and stem not in ONE_PASS_NORMS:
        reads *= 2  # once for the statistics, once to use them
    if family in ("copy", "random") and entry.writes and stem in _WRITE_ONLY:
        reads = 0
    if widens_integers(entry, stem):
        # All elements are written in the type of the result first (ATen's `ReduceOpsUtils.h`).
        reads += 2 * math.prod(entry.inputs[0]) * output_element_bytes(entry)
    return float(reads + writes) * _TRAFFIC_FACTORS.get(stem, 1.0)


def kernel_count(entry: Entry, stem: str) -> int:
    """Return how many kernels a call launches."""
    return _KERNELS_PER_CALL.get(stem, 1) + widens_integers(entry, stem)


def widens_integers(entry: Entry, stem: str) -> bool:
    """Whether integers are converted to the wider type of their sum first, in a kernel of their own."""
    sums = stem in ("sum", "nansum", "prod", "cumsum", "cumprod")
    return sums and entry.dtype in _INTEGER_TYPES and bool(entry.inputs) and bool(entry.outputs)


def element_bytes(dtype: str) -> int:
    return ELEMENT_BYTES.get(dtype) or _OTHER_ELEMENT_BYTES.get(dtype, 4)


def output_element_bytes(entry: Entry) -> int:
    """Return the bytes of an element of the first output."""
    return entry.writes // max(math.prod(entry.outputs[0]), 1)

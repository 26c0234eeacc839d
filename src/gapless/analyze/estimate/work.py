"""What an operator asks of the device: its family, how much it computes, how much it moves.

From its name and the shapes of its tensors alone. Flops count a multiplication and an addition as two.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from gapless.analyze.estimate.families import ATTENTION, CONVOLUTION, MATMUL, TRITON, family_of, stem_of
from gapless.model.programme import Entry, Shape

_TILE = 128
_ATTENTION_BACKWARD = 2.5
"""Products of attention's backward pass for each of its forward pass: four, and one that is made again."""


class Work(NamedTuple):
    """What one call asks for.

    `flops` of the unit `unit` (``fp32``, ``tf32``, ``fp16``, ``bf16``, ``fp64``) and `moved` bytes of memory,
    in `kernels` kernels. `tiles` are the parts that matrix work is cut into, each for one multiprocessor; 0
    elsewhere. `ragged` says that rows do not begin at multiples of 16 bytes, which spoils wide accesses.
    """

    family: str
    flops: float
    moved: float
    unit: str
    kernels: int
    tiles: int = 0
    ragged: bool = False


@lru_cache(maxsize=16384)
def work(entry: Entry) -> Work:
    """What the operator `entry` asks for."""
    stem = stem_of(entry.name)
    family = family_of(entry.name)
    unit = _unit(entry)
    flops, tiles = 0.0, 0
    if family == MATMUL:
        flops, tiles = _matmul(entry)
    elif family == CONVOLUTION:
        flops, tiles = _convolution(entry, "backward" in stem)
    elif family == ATTENTION:
        flops, tiles = _attention(entry, "backward" in stem)
    elif family == TRITON:
        flops = float(entry.flops)
    kernels = _kernels(entry, stem, family)
    return Work(family, flops, _moved(entry, stem, family), unit, kernels, tiles, _ragged(entry, family))


def products(entry: Entry) -> float:
    """Flops of a product, a convolution or an attention by its definition, whatever an algorithm needs."""
    asked = work(entry)
    if asked.family == ATTENTION and "backward" in stem_of(entry.name):
        return asked.flops * 2.0 / _ATTENTION_BACKWARD  # what flash attention computes again is no more work
    if asked.family != CONVOLUTION or not asked.flops:
        return asked.flops
    shapes = [shape for shape in entry.inputs if len(shape) >= 3]
    backward = "backward" in stem_of(entry.name)
    outputs = [shape for shape in entry.outputs if len(shape) >= 3]
    made, source, weight = shapes[:3] if backward else (outputs[0], *shapes[:2])
    return asked.flops * _fewer(entry, made, source, weight)


def _ragged(entry: Entry, family: str) -> bool:
    if family not in (MATMUL, "softmax"):
        return False
    size = 2 if entry.dtype in ("float16", "bfloat16") else 4
    return any(len(shape) > 1 and shape[-1] > 64 and shape[-1] * size % 16 for shape in entry.inputs)


def _unit(entry: Entry) -> str:
    kind = {"float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}.get(entry.dtype, "fp32")
    if entry.dtype.startswith("float8"):
        return "fp8"
    return "tf32" if kind == "fp32" and entry.tf32 else kind


def _matmul(entry: Entry) -> tuple[float, int]:
    factors = [shape for shape in entry.inputs if len(shape) >= 1][-2:]
    if len(factors) < 2:
        return 0.0, 0
    a, b = factors
    rows = math.prod(a[:-1])
    columns = b[-1] if len(b) > 1 else 1
    inner = a[-1]
    batch = math.prod(a[:-2]) if len(a) > 2 else 1
    if len(b) > 2 or len(a) <= 2:
        tiles = batch * _parts(rows // max(batch, 1)) * _parts(columns)
    else:
        tiles = _parts(rows) * _parts(columns)
    return 2.0 * rows * columns * inner, tiles


def _parts(size: int) -> int:
    return max(-(-size // _TILE), 1)


def _convolution(entry: Entry, backward: bool) -> tuple[float, int]:
    shapes = [shape for shape in entry.inputs if len(shape) >= 3]
    if backward:
        if len(shapes) < 3:
            return 0.0, 0
        gradient, source, weight = shapes[:3]
        made = sum(len(shape) >= 3 for shape in entry.outputs) or 2
        pixels = math.prod(gradient) // max(gradient[1], 1)
        flops = 2.0 * math.prod(gradient) * math.prod(weight[1:]) * min(made, 2)
        flops /= _fewer(entry, gradient, source, weight)
        return flops, _parts(pixels) * _parts(weight[0])
    outputs = [shape for shape in entry.outputs if len(shape) >= 3]
    if len(shapes) < 2 or not outputs:
        return 0.0, 0
    source, weight = shapes[:2]
    made_of = outputs[0]
    transposed = math.prod(made_of[2:]) > math.prod(source[2:]) and source[1] == weight[0]
    over = source if transposed else made_of
    pixels = math.prod(over) // max(over[1], 1)
    flops = 2.0 * math.prod(over) * math.prod(weight[1:]) / _fewer(entry, made_of, source, weight)
    return flops, _parts(pixels) * _parts(weight[0])


def _fewer(entry: Entry, made: Shape, source: Shape, weight: Shape) -> float:
    """How many times fewer multiplications a 3×3 convolution in fp32 needs by Winograd's algorithm."""
    plain = entry.dtype == "float32" and not entry.tf32
    return 2.25 if plain and weight[2:] == (3, 3) and made[2:] == source[2:] else 1.0


def _attention(entry: Entry, backward: bool) -> tuple[float, int]:
    shapes = [shape for shape in entry.inputs if len(shape) == 4]
    if backward:
        shapes = shapes[1:]
    if len(shapes) < 3:
        return 0.0, 0
    query, key, value = shapes[:3]
    flops = 2.0 * math.prod(query[:3]) * key[2] * (query[3] + value[3])
    return flops * (_ATTENTION_BACKWARD if backward else 1.0), query[0] * query[1] * _parts(query[2])


def _moved(entry: Entry, stem: str, family: str) -> float:
    """Bytes read and written; an operator that picks elements reads no more than it writes."""
    reads, writes = entry.reads, entry.writes
    if family == "gather" and not stem.startswith(
        ("max_pool", "avg_pool", "_adaptive", "nonzero", "argwhere")
    ):
        reads = min(reads, 2 * writes)
    if family == "scatter" and stem.startswith(
        ("index_put", "_index_put", "scatter", "index_add", "index_copy")
    ):
        values = [math.prod(shape) for shape in entry.inputs[1:]]
        size = writes / max(math.prod(entry.outputs[0]) if entry.outputs else 1, 1)
        if entry.name.endswith("_") and values:
            return min(float(reads + writes), 3 * max(values) * max(size, 1))
    if family == "batch norm":
        reads *= 2  # once for the statistics, once to use them
    if family in ("copy", "random") and entry.writes and stem in _MADE:
        reads = 0
    return float(reads + writes)


_MADE = frozenset(
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
"""Operators that write what they do not read."""

_KERNELS = {
    "_foreach_norm": 2, "sort": 5, "argsort": 5, "unique": 8, "_unique2": 8, "unique_dim": 10, "topk": 4,
    "unique_consecutive": 8, "nonzero": 3, "argwhere": 3, "masked_select": 4, "index_put": 6, "index_put_": 6,
    "_index_put_impl_": 6, "constant_pad_nd": 2, "slice_backward": 2, "select_backward": 2, "multinomial": 6,
    "binary_cross_entropy_with_logits": 2, "nll_loss_backward": 2, "nll_loss2d_backward": 2, "randperm": 5,
    "native_layer_norm_backward": 2, "embedding_dense_backward": 3, "masked_fill": 2, "index_fill": 2,
    "max_pool2d_with_indices_backward": 2, "native_group_norm": 2, "native_group_norm_backward": 4,
    "convolution_backward": 2, "cudnn_convolution_backward": 2, "batch_norm_backward_reduce": 1,
    "_embedding_bag_dense_backward": 4, "scatter_reduce": 2, "median": 3, "kthvalue": 2, "bincount": 4,
}  # fmt: skip
"""Kernels of a call, where they are not one."""

_CHUNK = 320 * 65_536
_PER_LAUNCH = 36
"""A launch of a multi-tensor kernel takes so many tensors (ATen: 110 with one list, 64, 48, 36 with four) and
so many elements: 320 blocks of 65,536 (``MultiTensorApply.cuh``)."""


def _kernels(entry: Entry, stem: str, family: str) -> int:
    if family == "foreach":
        lists = 2 if stem.endswith("_") else 1
        tensors = max(entry.tensors // lists, 1)
        return max(-(-tensors // _PER_LAUNCH), -(-entry.elements // lists // _CHUNK), 1)
    if stem in ("index_put", "index_put_", "_index_put_impl_") and not entry.backward:
        return 1
    return _KERNELS.get(stem, 1)

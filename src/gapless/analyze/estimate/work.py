"""What an operator asks of the device: its family, how much it computes, how much it moves.

From its name and the shapes of its tensors alone. Flops count a multiplication and an addition as two.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from gapless.analyze.estimate.families import ATTENTION, CONVOLUTION, MATMUL, TRITON, family_of, stem_of
from gapless.analyze.estimate.products import Product
from gapless.model.programme import Entry

_ATTENTION_BACKWARD = 2.5
"""Products of attention's backward pass for each of its forward pass: four, and one that is made again."""
_WINOGRAD = 4
"""Pixels of a side of what one step of Winograd's algorithm makes of a 3×3 convolution, in 6×6 products."""


class Work(NamedTuple):
    """What one call asks for.

    `flops` of the unit `unit` (``fp32``, ``tf32``, ``fp16``, ``bf16``, ``fp64``) and `moved` bytes of memory,
    in `kernels` kernels. `size` are the bytes of an element.

    `products` are the matrix products that it is made of: how many, rows, columns, contraction; `winograd`
    what replaces them where Winograd's algorithm can. Of attention the heads, queries, keys and a head's
    size; `causal` that a query meets only the keys before it, `backward` how many times the forward pass it
    does.
    `depthwise` convolutions are no products. `columns` are normalized together; `picked` elements are looked
    up. `ragged` says that rows do not begin at multiples of 16 bytes, which spoils wide accesses.
    """

    family: str
    flops: float
    moved: float
    unit: str
    kernels: int
    size: int = 4
    products: tuple[Product, ...] = ()
    winograd: tuple[Product, ...] = ()
    causal: bool = False
    backward: float = 0.0
    depthwise: bool = False
    columns: int = 0
    picked: float = 0.0
    ragged: bool = False


@lru_cache(maxsize=16384)
def work(entry: Entry) -> Work:
    """What the operator `entry` asks for."""
    stem = stem_of(entry.name)
    family = family_of(entry.name)
    size = 1 if entry.dtype.startswith("float8") else _SIZES.get(entry.dtype, 4)
    plain = Work(family, 0.0, _moved(entry, stem, family), _unit(entry), _kernels(entry, stem, family), size)
    if family == MATMUL:
        return _matmul(entry, stem, plain)
    if family == CONVOLUTION:
        return _convolution(entry, "backward" in stem, plain)
    if family == ATTENTION:
        return _attention(entry, "backward" in stem, plain)
    if family == TRITON:
        return plain._replace(flops=float(entry.flops))
    if family in ("layer norm", "softmax"):
        columns = _columns(entry, stem)
        narrow = family == "softmax" and size == 2 and columns > 64 and columns * size % 16 > 0
        return plain._replace(columns=columns, ragged=narrow)
    if family == "gather" and stem in _LOOKUPS and entry.outputs:
        return plain._replace(picked=float(math.prod(entry.outputs[0])))
    return plain


_SIZES = {"float16": 2, "bfloat16": 2, "float64": 8, "int8": 1, "uint8": 1}
_LOOKUPS = ("embedding", "index_select", "index", "gather")


def products(entry: Entry) -> float:
    """Flops of a product, a convolution or an attention by its definition, whatever an algorithm needs."""
    asked = work(entry)
    if asked.family != ATTENTION:
        return asked.flops
    flops = asked.flops * (2.0 if asked.causal else 1.0)
    # What flash attention computes again is no more work.
    return flops * 2.0 / _ATTENTION_BACKWARD if asked.backward else flops


def _columns(entry: Entry, stem: str) -> int:
    """How many elements are normalized together."""
    shape = max(entry.inputs, key=math.prod, default=())
    if "group_norm" in stem:
        return max(math.prod(shape[1:]) // 32, 1)  # the usual number of groups; shapes do not tell
    return shape[-1] if shape and shape[-1] else 1


def _unit(entry: Entry) -> str:
    kind = {"float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}.get(entry.dtype, "fp32")
    if entry.dtype.startswith("float8"):
        return "fp8"
    return "tf32" if kind == "fp32" and entry.tf32 else kind


def _matmul(entry: Entry, stem: str, plain: Work) -> Work:
    factors = [shape for shape in entry.inputs if len(shape) >= 1]
    first = stem in _FACTORS_FIRST
    factors = factors[:2] if first else factors[-2:]
    if len(factors) < 2:
        return plain
    a, b = factors
    if stem == "linear":  # its weight is transposed
        b = b[::-1]
    elif stem in ("ger", "addr"):
        a, b = (*a, 1), (1, *b)
    inner = a[-1]
    batch = math.prod(a[:-2]) if len(b) > 2 else 1
    rows = math.prod(a[:-1]) // max(batch, 1)
    columns = b[-1] if len(b) > 1 else 1
    ragged = any(len(shape) > 1 and shape[-1] > 64 and shape[-1] * plain.size % 16 for shape in factors)
    return plain._replace(
        flops=2.0 * batch * rows * columns * inner,
        products=((batch, rows, columns, inner),) if batch and rows and columns else (),
        ragged=ragged,
    )


_FACTORS_FIRST = (
    "mm",
    "bmm",
    "mv",
    "dot",
    "vdot",
    "matmul",
    "linear",
    "_scaled_mm",
    "_int_mm",
    "ger",
    "_grouped_mm",
)
"""Their factors come first, and what scales or is added afterwards."""


def _convolution(entry: Entry, backward: bool, plain: Work) -> Work:
    shapes = [shape for shape in entry.inputs if len(shape) >= 3]
    outputs = [shape for shape in entry.outputs if len(shape) >= 3]
    if len(shapes) < (3 if backward else 2) or not (outputs or backward):
        return plain
    made, source, weight = shapes[:3] if backward else (outputs[0], *shapes[:2])
    if not all(map(math.prod, (made, source, weight))):
        return plain
    transposed = math.prod(made[2:]) > math.prod(source[2:]) and source[1] == weight[0]
    over, other = (source, made) if transposed else (made, source)
    groups = max(other[1] // weight[1], 1)
    window = math.prod(weight[2:])
    out, taken = weight[0] // groups or 1, weight[1]
    pixels = math.prod(over) // over[1]
    times = min(len(outputs) or 2, 2) if backward else 1
    found = [(groups, pixels, out, taken * window)]
    if backward:
        # To the input, from the gradient; to the weight, over all pixels. Which of them one asks for alone
        # is not told; both cost about the same.
        every = math.prod(other) // other[1]
        strided = every > pixels
        found = [(groups, pixels, taken * window, out) if strided else (groups, every, taken, out * window)]
        found += [(groups, out, taken * window, pixels)] * (times - 1)
    fast: tuple[Product, ...] = ()
    if plain.unit in ("fp32", "tf32") and weight[2:] == (3, 3) and made[2:] == source[2:] and groups == 1:
        steps = over[0] * math.prod(-(-side // _WINOGRAD) for side in over[2:])
        many = (_WINOGRAD + 2) ** 2
        fast = tuple([(many, steps, out, taken)] + [(many, out, taken, steps)] * (times - 1))
    return plain._replace(
        flops=2.0 * times * math.prod(over) * math.prod(weight[1:]),
        products=tuple(found),
        winograd=fast,
        depthwise=groups > 1 and taken == 1,
    )


def _attention(entry: Entry, backward: bool, plain: Work) -> Work:
    shapes = [shape for shape in entry.inputs if len(shape) == 4]
    if backward:
        shapes = shapes[1:]
    if len(shapes) < 3:
        return plain
    query, key, value = shapes[:3]
    flops = 2.0 * math.prod(query[:3]) * key[2] * (query[3] + value[3])
    passes = _ATTENTION_BACKWARD if backward else 1.0
    return plain._replace(
        flops=flops * passes / (2.0 if entry.causal else 1.0),
        products=((query[0] * query[1], query[2], key[2], (query[3] + value[3]) // 2),),
        causal=entry.causal,
        backward=_ATTENTION_BACKWARD if backward else 0.0,
    )


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
    return float(reads + writes) * _AGAIN.get(stem, 1.0)


_AGAIN = {
    "native_dropout_backward": 2.6, "_softmax_backward_data": 1.6, "_log_softmax_backward_data": 1.6,
    "native_layer_norm_backward": 1.8, "native_group_norm_backward": 1.8,
}  # fmt: skip
"""How many times their bytes backward passes move that go through them more than once, in several kernels or
with a reduction between (from the operators of whole models in NeuSight's tables)."""


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

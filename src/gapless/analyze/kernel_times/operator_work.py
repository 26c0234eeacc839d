"""What an operator asks of the device: its family, how much it computes, how much it moves.

From its name and the shapes of its tensors alone. Flops count a multiplication and an addition as two.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

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
from gapless.analyze.kernel_times.indexing import indexed
from gapless.analyze.kernel_times.lists import listed
from gapless.analyze.kernel_times.products import Product
from gapless.analyze.kernel_times.recurrent import Chain, chain
from gapless.model.programme import Entry, Shape

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
    does, as of convolutions.
    `depthwise` convolutions are no products; others go over so many `channels`, of which tensor cores take
    `least` at once; `ready` ones, and batch norms, lie in memory as those want them. `columns` are normalized
    together, in so many `rows`; `picked` elements are looked up, `strided` ones moved one by one; of
    `chained` accesses of memory each waits for the one before. `ragged` says that rows do not begin at
    multiples of 16 bytes, which spoils wide accesses. Of the bytes `first` are moved by a kernel of its own
    before, in `first_strided` elements one by one. `cold` bytes are in no cache. `steps` are those of a
    recurrent layer. `blocks` are those of a kernel that has fewer of them than a GPU has multiprocessors
    (0: there are enough), `doubles` instructions in fp64 that come to work in other units. `pairs` of rows
    have a block of threads each.
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
    rows: float = 0.0
    picked: float = 0.0
    strided: float = 0.0
    chained: int = 0
    channels: int = 0
    least: int = 0
    ready: bool = False
    ragged: bool = False
    first: float = 0.0
    first_strided: float = 0.0
    cold: float = 0.0
    steps: Chain | None = None
    blocks: int = 0
    doubles: float = 0.0
    pairs: float = 0.0


@lru_cache(maxsize=16384)
def work(entry: Entry) -> Work:  # noqa: C901 - one branch for each family
    """Return the device work of the operator `entry`."""
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
    if family == RECURRENT:
        return _recurrent(entry, stem, plain)
    if family == TRITON:
        return plain._replace(flops=float(entry.flops))
    if family in ("layer norm", "softmax"):
        return _normalized(entry, stem, plain)
    if family == INDEXING or stem == "index":
        indexing = indexed(entry, stem, size)
        if indexing is not None:
            return plain._replace(**indexing._asdict())
    if family == "foreach":
        return plain._replace(**listed(entry, stem)._asdict())
    if family == DISTANCE:
        return _distances(entry, "backward" in stem, plain)
    if family == "batch norm":
        return plain._replace(ready=entry.channels_last or stem in _ONE_PASS)
    if _widened(entry, stem):
        elements = float(math.prod(entry.inputs[0]))
        element_bytes = _each(entry.dtype) + _each_made(entry)
        return plain._replace(first=elements * element_bytes, first_strided=elements)
    if stem in _ONE_BLOCK:
        return plain._replace(chained=_chained(entry, stem))
    if family == "gather" and stem in _LOOKUPS and entry.outputs:
        return plain._replace(picked=float(math.prod(entry.outputs[0])))
    if entry.outputs and _strided(entry, stem, family):
        turned = TURNED if entry.order == "turned" else 1.0
        return plain._replace(strided=turned * math.prod(entry.outputs[0]))
    return plain


def _normalized(entry: Entry, stem: str, plain: Work) -> Work:
    """Layer norms and softmaxes, over rows."""
    columns = _columns(entry, stem)
    narrow = plain.family == "softmax" and plain.size == 2 and columns > 64 and columns * plain.size % 16 > 0
    single = stem == "native_layer_norm" and columns % _VECTOR > 0
    plain = _laid_anew(entry, plain) if entry.order in _LAID else plain
    rows = max(map(math.prod, entry.inputs), default=0) / columns
    return plain._replace(columns=columns, rows=rows, ragged=narrow or single, kernels=plain.kernels + single)


def _recurrent(entry: Entry, stem: str, plain: Work) -> Work:
    steps = chain(entry, stem.endswith("backward"), plain.size)
    flops = steps.flops + steps.steps * steps.step_flops if steps is not None else 0.0
    return plain._replace(flops=flops, steps=steps)


def _distances(entry: Entry, backward: bool, plain: Work) -> Work:
    """Distances between rows: each is a block's; backward each has a gradient for each column, which are
    summed up by a kernel of their own (ATen's ``DistanceKernel.cu``)."""
    if not backward:
        return plain._replace(pairs=float(math.prod(entry.outputs[0])) if entry.outputs else 0.0)
    if len(entry.inputs) < 2:
        return plain
    gradients = float(math.prod(entry.inputs[-1]) * entry.inputs[1][-1] * plain.size)
    return plain._replace(kernels=plain.kernels + 1, moved=plain.moved + 2 * gradients)


TURNED = 2.3
"""Elements that are neighbours in one tensor and none in the other take so many times as long as others that
are moved one by one: each is a piece of memory of its own, however few bytes of it are wanted."""
_LAID = ("strided", "turned")


def _laid_anew(entry: Entry, plain: Work) -> Work:
    """`plain` behind a copy of what it is given, which it wants in another order."""
    elements = math.prod(entry.inputs[0])
    moved = 2.0 * elements * plain.size
    return plain._replace(
        kernels=plain.kernels + 1,
        moved=plain.moved + moved,
        first=moved,
        first_strided=elements * (TURNED if entry.order == "turned" else 1.0),
    )


def _strided(entry: Entry, stem: str, family: str) -> bool:
    """Whether elements are moved one by one and not in whole vectors: where one tensor is broadcast, or laid
    out otherwise (`contiguous` and `reshape` copy by `clone` what they cannot give as it is), where types
    are mixed, or where each pixel is made of its neighbours."""
    if entry.order in _LAID or (stem == "clone" and not entry.order) or _cast(entry, stem, family):
        return True
    output = entry.outputs[0]
    if stem.startswith("upsample_"):
        return True
    return family == "pointwise" and any(math.prod(shape) > 1 and shape != output for shape in entry.inputs)


def _cast(entry: Entry, stem: str, family: str) -> bool:
    """Whether each element's type is looked up as it is read and written: operators of several types have no
    kernels that move whole vectors (ATen's ``CUDALoops.cuh``), but for copies of float32 to 16 bits
    (``Copy.cu``) and those that take a mask."""
    if entry.compiled or not entry.dtype or not entry.inputs or stem in _OWN_TYPES:
        return False
    size, output_size = _each(entry.dtype), _each_made(entry)
    if stem == "_to_copy":
        return output_size != size and (entry.dtype, output_size) != ("float32", 2)
    if family != "pointwise":
        return False
    if entry.dtype == "bool" and len(entry.inputs) == 1:
        return stem in _WITH_NUMBERS  # which are no truth values
    several = [shape for shape in entry.inputs if math.prod(shape) > 1]
    # A number on the GPU takes up to 8 bytes more or less, whatever its type.
    return len(several) > 1 and abs(entry.reads - size * entry.elements) > 8 * len(entry.inputs)


_OWN_TYPES = frozenset(["where", "masked_fill", "masked_fill_", "native_dropout_backward"])
_WITH_NUMBERS = frozenset(["gt", "ge", "lt", "le", "add", "sub", "rsub", "mul", "div", "true_divide"])
"""Operators that turn truth values into numbers where the other of two is a number."""


def _each_made(entry: Entry) -> int:
    """Bytes of an element of the first output."""
    return entry.writes // max(math.prod(entry.outputs[0]), 1)


def _each(dtype: str) -> int:
    """Bytes of an element."""
    return _SIZES.get(dtype) or {"bool": 1, "int64": 8, "complex64": 8, "complex128": 16}.get(dtype, 4)


_VECTOR = 4
"""Layer norms of rows that are no multiple of so many elements go through two kernels, the first of which
has `kernels.WIDE_BLOCKS` times the threads for a row (ATen's ``layer_norm_kernel.cu``)."""

_SECTOR, _LABEL = 32, 8
"""Bytes that are read where one number is wanted, and of a label."""
_ONE_BLOCK = {"nll_loss_forward": 2, "nll_loss_backward": 1}
"""Losses over classes whose rows are all summed up by one block, and the accesses of memory of each row that
wait for each other: the label, and forward the logit that it names (ATen's ``Loss.cu``)."""


def _chained(entry: Entry, stem: str) -> int:
    """Accesses that wait for each other in each thread of the only block; none where nothing is summed up, as
    every row has a thread of its own there."""
    summed = entry.outputs[:1] if stem.endswith("forward") else entry.inputs[:1]
    rows = next((shape[0] for shape in entry.inputs if len(shape) == 2), 0)
    if summed != ((),) or not rows:
        return 0
    threads = entry.block or min(max(2 ** round(math.log2(max(rows // 16, 1))), 32), 1024)
    return _ONE_BLOCK[stem] * -(-rows // threads)


_SIZES = {"float16": 2, "bfloat16": 2, "float64": 8, "int8": 1, "uint8": 1}
_LOOKUPS = ("embedding", "index_select", "index", "gather")


def products(entry: Entry) -> float:
    """Flops of a product, a convolution or an attention by its definition, whatever an algorithm needs."""
    work_ = work(entry)
    if work_.family != ATTENTION:
        return work_.flops
    flops = work_.flops * (2.0 if work_.causal else 1.0)
    # What flash attention computes again is no more work.
    return flops * 2.0 / _ATTENTION_BACKWARD if work_.backward else flops


def _columns(entry: Entry, stem: str) -> int:
    """Return how many elements are normalized together."""
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
    if _copied(entry, stem, columns, inner):
        plain = _after_copy(plain, entry.inputs[0], batch * rows * columns)
    return plain._replace(
        flops=2.0 * batch * rows * columns * inner,
        products=((batch, rows, columns, inner),) if batch and rows and columns else (),
        ragged=ragged,
        # A layer's weight was last used a step ago, and so was what its gradient is made of.
        cold=float(inner * columns * plain.size) if batch == 1 else 0.0,
    )


def _copied(entry: Entry, stem: str, columns: int, inner: int) -> bool:
    """Whether what is added is copied into the result first, to which the product is then added: all but a
    vector of a layer's columns is, and that too where one side is 1 (ATen's ``Blas.cpp``)."""
    if stem not in ("addmm", "baddbmm"):
        return False
    sides = [side for side in entry.inputs[0] if side != 1]
    return stem == "baddbmm" or sides != [columns] or 1 in (columns, inner)


def _after_copy(plain: Work, added: Shape, result_elements: int) -> Work:
    """Put a copy of `added` to the `result_elements` before `plain`, which then reads them as well."""
    added_elements = math.prod(added)
    return plain._replace(
        kernels=plain.kernels + 1,
        moved=plain.moved + 2.0 * result_elements * plain.size,
        first=float(added_elements + result_elements) * plain.size,
        first_strided=float(result_elements) if added_elements != result_elements else 0.0,
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
    output, source, weight = shapes[:3] if backward else (outputs[0], *shapes[:2])
    if not all(map(math.prod, (output, source, weight))):
        return plain
    transposed = math.prod(output[2:]) > math.prod(source[2:]) and source[1] == weight[0]
    over, other = (source, output) if transposed else (output, source)
    groups = max(other[1] // weight[1], 1)
    window = math.prod(weight[2:])
    out, taken = weight[0] // groups or 1, weight[1]
    pixels = math.prod(over) // over[1]
    times = min(len(outputs) or 2, 2) if backward else 1
    products_ = [(groups, pixels, out, taken * window)]
    if backward:
        # To the input, from the gradient; to the weight, over all pixels. Which of them one asks for alone
        # is not told; both cost about the same.
        every = math.prod(other) // other[1]
        strided = every > pixels
        products_ = [
            (groups, pixels, taken * window, out) if strided else (groups, every, taken, out * window)
        ]
        products_ += [(groups, out, taken * window, pixels)] * (times - 1)
    fast: tuple[Product, ...] = ()
    if plain.unit in ("fp32", "tf32") and weight[2:] == (3, 3) and output[2:] == source[2:] and groups == 1:
        steps = over[0] * math.prod(-(-side // _WINOGRAD) for side in over[2:])
        many = (_WINOGRAD + 2) ** 2
        fast = tuple([(many, steps, out, taken)] + [(many, out, taken, steps)] * (times - 1))
    bias = not backward and entry.inputs[2:3] == ((output[1],),)
    return plain._replace(
        channels=0 if backward else taken,
        backward=float(times) if backward else 0.0,
        least=_IMAGES if round(source[2] / output[2]) == 2 else _SLICE // plain.size,
        ready=entry.channels_last
        or (window == 1 and not transposed and _whole_images(output, source, plain)),
        strided=float(math.prod(output)) if bias else 0.0,
        kernels=plain.kernels + bias,
        moved=plain.moved + (times - 1) * math.prod(output) * plain.size,  # each of both kernels reads it
        flops=2.0 * times * math.prod(over) * math.prod(weight[1:]),
        products=tuple(products_),
        winograd=fast,
        depthwise=groups > 1 and taken == 1,
    )


_SLICE, _IMAGES = 64, 8
"""Bytes of channels that tensor cores take at each place of a convolution's window, however few there are
(CUTLASS's iterators, of which cuDNN's kernels of that name are made); and channels where it goes two pixels
at a time: such first layers of images have kernels of their own (NVIDIA's guide to convolutions)."""


def _whole_images(output: Shape, source: Shape, plain: Work) -> bool:
    """Whether all pixels of an image are whole vectors, and a window of one goes over each: with channels
    first, an image is then a product as it lies, for which cuDNN takes kernels of products."""
    return output[2:] == source[2:] and math.prod(output[2:]) * plain.size % 16 == 0


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
    if family == "scatter" and stem.startswith(("scatter", "index_add", "index_copy")):
        values = [math.prod(shape) for shape in entry.inputs[1:]]
        size = writes / max(math.prod(entry.outputs[0]) if entry.outputs else 1, 1)
        if entry.name.endswith("_") and values:
            return min(float(reads + writes), 3 * max(values) * max(size, 1))
    if stem in _ONE_BLOCK and len(entry.inputs) > 1:  # of each row of scores, one is looked at
        rows = max(math.prod(shape[:-1]) for shape in entry.inputs)
        reads = min(reads, rows * (_SECTOR + _LABEL))
    if family == "batch norm" and stem not in _ONE_PASS:
        reads *= 2  # once for the statistics, once to use them
    if family in ("copy", "random") and entry.writes and stem in _MADE:
        reads = 0
    if _widened(entry, stem):
        # All elements are written in the type of the result first (ATen's `ReduceOpsUtils.h`).
        reads += 2 * math.prod(entry.inputs[0]) * _each_made(entry)
    return float(reads + writes) * _AGAIN.get(stem, 1.0)


_ONE_PASS = frozenset(
    [
        "_native_batch_norm_legit_no_training",
        "batch_norm_stats",
        "batch_norm_elemt",
        "batch_norm_backward_reduce",
        "batch_norm_backward_elemt",
        "batch_norm_gather_stats_with_counts",
    ]
)
"""Batch norms that take statistics or use them, and not both."""

_AGAIN = {
    "native_dropout_backward": 2.6, "_softmax_backward_data": 1.6, "_log_softmax_backward_data": 1.6,
    "native_layer_norm_backward": 1.8, "native_group_norm_backward": 1.8, "_fused_rms_norm_backward": 1.8,
    "_unique2": 3.0, "unique_dim": 3.0,
}  # fmt: skip
"""How many times their bytes backward passes move that go through them more than once, in several kernels or
with a reduction between (from the operators of whole models in NeuSight's tables); distinct values are sorted
by eight bits of 64 at a time."""


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
    "unique_consecutive": 8, "nonzero": 3, "argwhere": 3, "masked_select": 4,
    "constant_pad_nd": 2, "slice_backward": 2, "select_backward": 2, "multinomial": 6,
    "binary_cross_entropy_with_logits": 2, "nll_loss_backward": 2, "nll_loss2d_backward": 2, "randperm": 5,
    "native_layer_norm_backward": 2, "_fused_rms_norm_backward": 2, "embedding_dense_backward": 3,
    "masked_fill": 2, "index_fill": 2,
    "max_pool2d_with_indices_backward": 2, "native_group_norm": 2, "native_group_norm_backward": 4,
    "convolution_backward": 2, "cudnn_convolution_backward": 2, "batch_norm_backward_reduce": 1,
    "_embedding_bag_dense_backward": 4, "scatter_reduce": 2, "median": 3, "kthvalue": 2, "bincount": 4,
}  # fmt: skip
"""Kernels of a call, where they are not one."""

_WHOLE = frozenset(["bool", "uint8", "int8", "int16", "int32"])
"""Types whose sums are of another type, 64 bits unless it is said."""


def _widened(entry: Entry, stem: str) -> bool:
    """Whether elements are converted to another type before they are summed."""
    sums = stem in ("sum", "nansum", "prod", "cumsum", "cumprod")
    return sums and entry.dtype in _WHOLE and bool(entry.inputs) and bool(entry.outputs)


def _kernels(entry: Entry, stem: str, family: str) -> int:
    return _KERNELS.get(stem, 1) + _widened(entry, stem)

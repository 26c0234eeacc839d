"""The work of matrix products, convolutions and attention."""

from __future__ import annotations

import math

from gapless.analyze.kernel_times.device_work import DeviceWork
from gapless.analyze.kernel_times.products import Product
from gapless.model.programme import Entry, Shape

ATTENTION_BACKWARD = 2.5
"""Flops of attention's backward pass relative to its forward pass: five products, one recomputed, to two."""
_WINOGRAD_SIDE = 4
"""Side of the square of output pixels that a step of Winograd's algorithm for 3×3 windows computes, with 6×6
products."""
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
"""Products whose factors come first, and what scales or is added afterwards."""
_CHANNEL_BYTES = 64
"""Bytes of channels that tensor cores take at each place of a convolution's window, however few there are
(CUTLASS's iterators, of which cuDNN's kernels of that name consist)."""
_IMAGE_CHANNELS = 8
"""Channels that they take if the window moves two pixels at a time: first layers of images have kernels of
their own (NVIDIA's guide to convolutions)."""


def matmul_work(entry: Entry, stem: str, plain: DeviceWork) -> DeviceWork:
    """Return the work of a matrix product; `plain` if its factors are unknown."""
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
    ragged = any(
        len(shape) > 1 and shape[-1] > 64 and shape[-1] * plain.element_bytes % 16 for shape in factors
    )
    if _copies_addend(entry, stem, columns, inner):
        plain = _copy_addend_first(plain, entry.inputs[0], batch * rows * columns)
    return plain._replace(
        flops=2.0 * batch * rows * columns * inner,
        products=((batch, rows, columns, inner),) if batch and rows and columns else (),
        is_misaligned=ragged,
        # A layer's weight was last used a step ago, as were the factors of its gradient.
        cold_bytes=float(inner * columns * plain.element_bytes) if batch == 1 else 0.0,
    )


def _copies_addend(entry: Entry, stem: str, columns: int, inner: int) -> bool:
    """Whether the addend is copied into the result before the product is added to it (ATen's ``Blas.cpp``).

    All are but a bias of one number per column, and that too if a side of the product is 1.
    """
    if stem not in ("addmm", "baddbmm"):
        return False
    sides = [side for side in entry.inputs[0] if side != 1]
    return stem == "baddbmm" or sides != [columns] or 1 in (columns, inner)


def _copy_addend_first(plain: DeviceWork, added: Shape, result_elements: int) -> DeviceWork:
    """Return `plain` preceded by a copy of `added` into the result, which `plain` then reads as well."""
    added_elements = math.prod(added)
    return plain._replace(
        kernels=plain.kernels + 1,
        bytes_moved=plain.bytes_moved + 2.0 * result_elements * plain.element_bytes,
        first_bytes=float(added_elements + result_elements) * plain.element_bytes,
        first_strided=float(result_elements) if added_elements != result_elements else 0.0,
    )


def convolution_work(entry: Entry, backward: bool, plain: DeviceWork) -> DeviceWork:
    """Return the work of a convolution or of its gradients; `plain` if its shapes do not determine it."""
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
        # The input's gradient, then the weight's, which sums over all pixels. If only one is wanted, which
        # is not recorded; both cost about the same.
        every = math.prod(other) // other[1]
        strided = every > pixels
        products_ = [
            (groups, pixels, taken * window, out) if strided else (groups, every, taken, out * window)
        ]
        products_ += [(groups, out, taken * window, pixels)] * (times - 1)
    fast: tuple[Product, ...] = ()
    if plain.unit in ("fp32", "tf32") and weight[2:] == (3, 3) and output[2:] == source[2:] and groups == 1:
        steps = over[0] * math.prod(-(-side // _WINOGRAD_SIDE) for side in over[2:])
        many = (_WINOGRAD_SIDE + 2) ** 2
        fast = tuple([(many, steps, out, taken)] + [(many, out, taken, steps)] * (times - 1))
    bias = not backward and entry.inputs[2:3] == ((output[1],),)
    return plain._replace(
        channels=0 if backward else taken,
        backward_passes=float(times) if backward else 0.0,
        min_channels=_IMAGE_CHANNELS
        if round(source[2] / output[2]) == 2
        else _CHANNEL_BYTES // plain.element_bytes,
        has_native_layout=entry.channels_last
        or (window == 1 and not transposed and _has_vector_images(output, source, plain)),
        strided_elements=float(math.prod(output)) if bias else 0.0,
        kernels=plain.kernels + bias,
        bytes_moved=plain.bytes_moved
        + (times - 1) * math.prod(output) * plain.element_bytes,  # each of both kernels reads it
        flops=2.0 * times * math.prod(over) * math.prod(weight[1:]),
        products=tuple(products_),
        winograd_products=fast,
        depthwise=groups > 1 and taken == 1,
    )


def _has_vector_images(output: Shape, source: Shape, plain: DeviceWork) -> bool:
    """Whether each pixel is convolved alone, and a channel of an image is a whole number of 16-byte vectors.

    With channels first such a convolution is a matrix product without a copy, and cuDNN uses product kernels.
    """
    return output[2:] == source[2:] and math.prod(output[2:]) * plain.element_bytes % 16 == 0


def attention_work(entry: Entry, backward: bool, plain: DeviceWork) -> DeviceWork:
    """Return the work of attention or of its backward pass; `plain` if its shapes do not determine it."""
    shapes = [shape for shape in entry.inputs if len(shape) == 4]
    if backward:
        shapes = shapes[1:]
    if len(shapes) < 3:
        return plain
    query, key, value = shapes[:3]
    flops = 2.0 * math.prod(query[:3]) * key[2] * (query[3] + value[3])
    passes = ATTENTION_BACKWARD if backward else 1.0
    return plain._replace(
        flops=flops * passes / (2.0 if entry.causal else 1.0),
        products=((query[0] * query[1], query[2], key[2], (query[3] + value[3]) // 2),),
        causal=entry.causal,
        backward_passes=ATTENTION_BACKWARD if backward else 0.0,
    )

"""`DeviceWork`: what one call of an operator makes a GPU compute and move."""

from __future__ import annotations

from typing import NamedTuple

from gapless.analyze.kernel_times.products import Product
from gapless.analyze.kernel_times.recurrent import RecurrentSteps


class DeviceWork(NamedTuple):
    """What one call makes a GPU compute and move, in all its kernels. Zero and empty fields do not apply."""

    family: str
    """The operator's family, as `families.family_of` returns it."""
    flops: float
    """Floating-point operations; a multiplication and an addition are two."""
    bytes_moved: float
    """Bytes read and written."""
    unit: str
    """The arithmetic: ``fp32``, ``tf32``, ``fp16``, ``bf16``, ``fp8`` or ``fp64``."""
    kernels: int
    """Kernels launched."""
    element_bytes: int = 4
    """Bytes of an element of the first input if kernels compute in its type, else 4."""
    products: tuple[Product, ...] = ()
    """The matrix products that it consists of; of attention heads, queries, keys and a head's size."""
    winograd_products: tuple[Product, ...] = ()
    """The products that replace `products` if Winograd's algorithm is used."""
    causal: bool = False
    """Whether a query of attention meets only the keys before it."""
    backward_passes: float = 0.0
    """Work of a backward pass of attention, a convolution or a batch norm, in forward passes."""
    depthwise: bool = False
    """Whether each channel is convolved alone, which is no matrix product."""
    row_length: int = 0
    """Elements that are normalized together."""
    rows: float = 0.0
    """Rows of that length."""
    lookups: float = 0.0
    """Elements that are looked up."""
    strided_elements: float = 0.0
    """Elements that are moved one by one, not in vectors."""
    chained_accesses: int = 0
    """Memory accesses each of which waits for the one before."""
    channels: int = 0
    """Input channels that a convolution sums over."""
    min_channels: int = 0
    """Channels that tensor cores take at once; fewer are padded."""
    has_native_layout: bool = False
    """Whether a convolution's or batch norm's tensors lie in memory as its kernels want them."""
    is_misaligned: bool = False
    """Whether rows do not begin at multiples of 16 bytes, which rules out wide accesses."""
    first_bytes: float = 0.0
    """Bytes, of `bytes_moved`, that a preceding kernel moves."""
    first_strided: float = 0.0
    """Elements that the preceding kernel moves one by one."""
    cold_bytes: float = 0.0
    """Bytes, of `bytes_moved`, that are in no cache."""
    recurrence: RecurrentSteps | None = None
    """The steps of a recurrent layer."""
    blocks: int = 0
    """Blocks of a kernel that may have fewer than the GPU has multiprocessors; 0 for enough."""
    channel_blocks: int = 0
    """Blocks of a batch norm that has one for each channel."""
    fp64_instructions: float = 0.0
    """Instructions in fp64 of work in another `unit`."""
    distances: float = 0.0
    """Distances between two rows; each has a block of threads."""

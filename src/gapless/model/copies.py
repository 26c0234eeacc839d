"""Copies between host and device: what the CPU waits for, and how long they take.

One account of it serves the emulated device, the replay of profiles and the estimate.

What is asked of the driver is from PyTorch's ``aten/src/ATen/native/cuda/Copy.cu``: a blocking copy ends in
a stream synchronization whatever its memory; a side on the host whose elements do not lie in order goes
through a new contiguous tensor on the host, which is pageable. What the driver does then is from NVIDIA's
documents: a copy from or to pinned memory returns at once, one of at most 64 KB to the device as well (CUDA
C++ Programming Guide, "Concurrent Execution between Host and Device"), any other between pageable memory and
the device may wait (CUDA Runtime API, "API synchronization behavior"). What it does in fact is from profiles:
a call that returned before its copy began did not wait for it.

    pageable to device, at most 128 KiB  H100, A100: the call returned before the copy began (of 153 calls on
                                         an H100 that could tell, all); V100: up to 32 KiB, larger not seen
    pageable to device, 1.2 MB and more  V100, RTX 2080 Ti, A100, H100: the call returned while the last part
                                         was on its way, or later (154 MB on an A100: 10 of 10)
    device to pageable, from 1 byte on   V100, A100, H100: the call returned behind the copy's end
    blocking, pinned or not              all waited (22,103 of 22,103)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

Memory = Literal["pageable", "pinned", "managed", "unknown"]
"""The host's memory. Managed memory migrates by itself, and no document says what copying it waits for."""

IMMEDIATE = 64 << 10
"""Bytes that the call itself copies from pageable memory, on every NVIDIA GPU."""
STAGED = 128 << 10
"""The same limit on `MEASURED` GPUs; sizes from here to 1.2 MB were in no profile and count as waits."""
MEASURED = ((8, 0), (9, 0))
"""Compute capabilities of GPUs seen to copy up to `STAGED` bytes in the call."""

PAGEABLE, PINNED = 0.3, 0.78
"""Shares of a link's bandwidth that copies from and to pageable and pinned memory reach.

Pinned: what users publish of NVIDIA's bandwidthTest, 12 to 13 GB/s over 16 lanes of PCIe 3.0, 24 to 26 over
4.0; pageable: profiles of a V100, an RTX 2080 Ti, an A100 and an H100, which differ by a factor of two.
"""
START = 2_000
"""Nanoseconds of the smallest copy on the device."""


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """A copy between host and device, as requested of PyTorch.

    `strided`: the host's side needs a temporary contiguous tensor (see the function `strided`).
    """

    to_device: bool
    memory: Memory
    nbytes: int
    non_blocking: bool
    strided: bool = False


def waits(copy: Copy, capability: tuple[int, int] | None = None) -> bool | None:
    """Whether the CPU waits for `copy` on a GPU of that compute capability; None if unknown.

    It waits for the work of the copy's own stream and the copy, never for other streams.

    >>> waits(Copy(to_device=True, memory="pageable", nbytes=8 << 20, non_blocking=True))
    True
    >>> waits(Copy(to_device=True, memory="pageable", nbytes=100_000, non_blocking=True), (9, 0))
    False
    """
    if not copy.nbytes:
        return False
    if not copy.non_blocking:
        return True
    return call_blocks("pageable" if copy.strided else copy.memory, copy.to_device, copy.nbytes, capability)


def call_blocks(
    memory: Memory, to_device: bool, nbytes: int, capability: tuple[int, int] | None = None
) -> bool | None:
    """Whether the driver's call (``cudaMemcpyAsync``) itself blocks the CPU; None if unknown."""
    if memory == "pinned":
        return False
    if memory != "pageable":
        return None
    if not to_device or nbytes > STAGED:
        return True
    return False if nbytes <= IMMEDIATE or capability in MEASURED else None


def strided(
    shape: Sequence[int], host: Sequence[int], device: Sequence[int], *, same_dtype: bool = True
) -> bool:
    """Whether a copy needs a temporary host tensor, given the strides of both sides.

    It does not if the host's side is contiguous (a temporary is then made on the device), nor if both sides
    have the same order without holes and the same type: such memory is copied directly.

    Args:
        shape: of both sides, broadcast.
        host: strides of the host's side in elements, 0 where it is broadcast.
        device: strides of the device's side.
        same_dtype: with another type the elements are converted on the device, and arrive in order.

    >>> strided((4, 4), host=(8, 1), device=(4, 1))  # out.copy_(pinned[:, :4])
    True
    >>> strided((4, 8), host=(1, 4), device=(1, 4))  # pinned.t().to("cuda")
    False
    """
    dims = [(size, step, other) for size, step, other in zip(shape, host, device, strict=True) if size != 1]
    if not dims or any(size == 0 for size, _, _ in dims) or _in_order(dims):
        return False
    alike = same_dtype and all(step == other for _, step, other in dims)
    return not (alike and _in_order(sorted(dims, key=lambda dim: -dim[1])))


def _in_order(dims: Sequence[tuple[int, int, int]]) -> bool:
    """Whether the strides are those of contiguous memory."""
    length = 1
    for size, step, _ in reversed(dims):
        if step != length:
            return False
        length *= size
    return True


def duration(nbytes: int, memory: Memory, bandwidth: float) -> float:
    """Return the nanoseconds of a copy over a link of `bandwidth` GB/s one way.

    >>> duration(12_480_000, "pinned", 16.0)
    1002000.0
    """
    return START + nbytes / (bandwidth * (PINNED if memory == "pinned" else PAGEABLE))

"""Kernels in Gluon: tiles go through shared memory, the next one while this one is worked on; what Hopper has."""

from __future__ import annotations

from typing import Any

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernel_cases.cases import Case

# As Triton 3.9 calls them, and 3.6.
copy = getattr(async_copy, "async_load", async_copy.async_copy_global_to_shared)
copy_in = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
copy_out = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier


@gluon.jit
def turned_kernel(x, y, rows, cols, BLOCK: gl.constexpr):
    """``y = x.T + 1``: a program takes `BLOCK` columns and walks down their rows."""
    layout: gl.constexpr = gl.BlockedLayout([1, 1], [4, 8], [4, 1], [1, 0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    row = gl.arange(0, BLOCK, layout=gl.SliceLayout(1, layout))
    col = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=gl.SliceLayout(0, layout))
    out = gl.program_id(0) * BLOCK + row
    inner = gl.arange(0, BLOCK, layout=gl.SliceLayout(0, layout))
    tiles = gl.allocate_shared_memory(gl.float32, [2, BLOCK, BLOCK], shared)
    copy(
        tiles.index(0),
        x + row[:, None] * cols + col[None, :],
        mask=(row[:, None] < rows) & (col[None, :] < cols),
    )
    async_copy.commit_group()
    count = gl.cdiv(rows, BLOCK)
    for step in range(count):
        after = (step + 1) * BLOCK + row
        inside = (after[:, None] < rows) & (col[None, :] < cols)
        copy(tiles.index((step + 1) % 2), x + after[:, None] * cols + col[None, :], mask=inside)
        async_copy.commit_group()
        async_copy.wait_group(1)
        barrier()
        tile = tiles.index(step % 2).permute([1, 0]).load(layout)
        here = step * BLOCK + inner
        gl.store(
            y + out[:, None] * rows + here[None, :],
            tile + 1.0,
            mask=(out[:, None] < cols) & (here[None, :] < rows),
        )
        barrier()


def turned(x: Any) -> torch.Tensor:
    rows, cols = x.x.shape
    out = torch.empty(cols, rows, device=x.x.device)
    turned_kernel[((cols + 15) // 16,)](x.x, out, rows, cols, BLOCK=16)
    return out


@gluon.jit
def product_kernel(a, b, c, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    """``c = a @ b`` in fp16, by descriptors and `warpgroup_mma`."""
    left = gl.allocate_shared_memory(gl.float16, [BM, BK], a.layout)
    right = gl.allocate_shared_memory(gl.float16, [BK, BN], b.layout)
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16]
    )
    total = gl.zeros((BM, BN), dtype=gl.float32, layout=layout)
    row, col = gl.program_id(0) * BM, gl.program_id(1) * BN
    phase = 0
    for at in range(0, K, BK):
        mbarrier.expect(bar, a.block_type.nbytes + b.block_type.nbytes)
        copy_in(a, [row, at], bar, left)
        copy_in(b, [at, col], bar, right)
        mbarrier.wait(bar, phase=phase)
        phase ^= 1
        total = warpgroup_mma(left, right, total, is_async=True)
        total = warpgroup_mma_wait(0, deps=(total,))
    mbarrier.invalidate(bar)
    out = gl.allocate_shared_memory(gl.float16, [BM, BN], c.layout)
    out.store(total.to(gl.float16))
    fence_async_shared()
    copy_out(c, [row, col], out)
    tma.store_wait(0)


def product(x: Any) -> torch.Tensor:
    out = torch.empty(x.a.shape[0], x.b.shape[1], device=x.a.device, dtype=torch.float16)
    described = [
        TensorDescriptor.from_tensor(tensor, block, gl.NVMMASharedLayout.get_default_for(block, gl.float16))
        for tensor, block in ((x.a, [64, 32]), (x.b, [32, 64]), (out, [64, 64]))
    ]
    product_kernel[(2, 2)](*described, x.a.shape[1], BM=64, BN=64, BK=32)
    return out


CASES = [
    Case(
        "a transpose through shared memory, in Gluon", turned, "x=80,77", lambda x: x.x.T + 1, backward=False
    ),
    Case(
        "a product as Hopper makes it, in Gluon",
        product,
        "a=80,72 b=72,80",
        lambda x: x.a @ x.b,
        backward=False,
        dtype=torch.float16,
    ),
]

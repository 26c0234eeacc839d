"""A kernel in Gluon: tiles go through shared memory, the next one while this one is worked on."""

from __future__ import annotations

from typing import Any

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from kernel_cases.cases import Case

# As Triton 3.9 calls them, and 3.6.
copy = getattr(async_copy, "async_load", async_copy.async_copy_global_to_shared)
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
        there = (after[:, None] < rows) & (col[None, :] < cols)
        copy(tiles.index((step + 1) % 2), x + after[:, None] * cols + col[None, :], mask=there)
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


CASES = [
    Case(
        "a transpose through shared memory, in Gluon", turned, "x=80,77", lambda x: x.x.T + 1, backward=False
    )
]

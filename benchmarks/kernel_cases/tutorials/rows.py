"""Kernels of rows: softmax, norms, scans, sorting, quantization."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from triton.language.extra import libdevice

from kernel_cases.cases import Case


@triton.jit
def softmax_kernel(out, x, x_stride, out_stride, rows, columns, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    at = tl.arange(0, BLOCK)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        mask = at < columns
        value = tl.load(x + row * x_stride + at, mask=mask, other=-float("inf"))
        top = tl.exp(value - tl.max(value, axis=0))
        tl.store(out + row * out_stride + at, top / tl.sum(top, axis=0), mask=mask)


def softmax(x: Any) -> torch.Tensor:
    """As the tutorial does: the kernel is compiled first, and asked how many of it fit."""
    rows, columns = x.a.shape
    out = torch.empty_like(x.a)
    properties = triton.runtime.driver.active.utils.get_device_properties(0)
    block = triton.next_power_of_2(columns)
    kernel = softmax_kernel.warmup(
        out, x.a, x.a.stride(0), out.stride(0), rows, columns, BLOCK=block, STAGES=2, num_warps=8, grid=(1,)
    )
    kernel._init_handles()
    occupancy = properties["max_num_regs"] // (kernel.n_regs * properties["warpSize"] * 8)
    occupancy = min(occupancy, properties["max_shared_mem"] // kernel.metadata.shared)
    programs = min(properties["multiprocessor_count"] * occupancy, rows)
    kernel[(programs, 1, 1)](out, x.a, x.a.stride(0), out.stride(0), rows, columns, block, 2)
    return out


@triton.jit
def norm_backward_kernel(
    dx, dy, dw, x, w, rstd, lock, stride, columns, GROUP: tl.constexpr, BLOCK: tl.constexpr
):
    """Partial sums of weights' gradients behind a lock, as the tutorial on layer norm has them."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    mask = at < columns
    value = tl.load(x + row * stride + at, mask=mask, other=0.0)
    gradient = tl.load(dy + row * stride + at, mask=mask, other=0.0)
    weight = tl.load(w + at, mask=mask, other=0.0)
    inverse = tl.load(rstd + row)
    hat = value * inverse
    wdy = weight * gradient
    shared = tl.sum(hat * wdy, axis=0) / columns
    tl.store(dx + row * stride + at, (wdy - hat * shared) * inverse, mask=mask)
    place = row % GROUP
    count = lock + GROUP + place
    partial = gradient * hat
    while tl.atomic_cas(lock + place, 0, 1) == 1:
        pass
    counter = tl.load(count)
    if counter == 0:
        tl.atomic_xchg(count, 1)
    else:
        partial += tl.load(dw + place * columns + at, mask=mask)
    tl.store(dw + place * columns + at, partial, mask=mask)
    tl.debug_barrier()
    tl.atomic_xchg(lock + place, 0)


def norm_backward(x: Any) -> tuple[torch.Tensor, torch.Tensor]:
    rows, columns = x.a.shape
    rstd = torch.rsqrt(x.a.square().mean(-1) + 1e-6)
    dx, dw = torch.empty_like(x.a), torch.empty(4, columns, device=x.a.device)
    lock = torch.zeros(8, dtype=torch.int32, device=x.a.device)
    norm_backward_kernel[(rows,)](dx, x.dy, dw, x.a, x.w, rstd, lock, columns, columns, GROUP=4, BLOCK=64)
    return dx, dw.sum(0)


def norm_backward_plain(x: Any) -> tuple[torch.Tensor, torch.Tensor]:
    a, w = x.a.detach().requires_grad_(), x.w.detach().requires_grad_()
    out = F.rms_norm(a, (a.shape[1],), w, 1e-6)
    return torch.autograd.grad(out, (a, w), x.dy)


@triton.jit
def first_order(d1, h1, d2, h2):
    return d1 * d2, h1 * d2 + h2


@triton.jit
def scan_kernel(decay, x, out, T: tl.constexpr):
    row = tl.program_id(0)
    at = row * T + tl.arange(0, T)
    _, state = tl.associative_scan((tl.load(decay + at), tl.load(x + at)), 0, first_order)
    tl.store(out + at, state)


def scan(x: Any) -> torch.Tensor:
    out = torch.empty_like(x.a)
    scan_kernel[(x.a.shape[0],)](x.d, x.a, out, T=x.a.shape[1])
    return out


def scan_plain(x: Any) -> torch.Tensor:
    state, out = torch.zeros_like(x.a[:, 0]), []
    for t in range(x.a.shape[1]):
        state = state * x.d[:, t] + x.a[:, t]
        out.append(state)
    return torch.stack(out, 1)


@triton.jit
def order_kernel(x, ordered, best, where, flipped, T: tl.constexpr):
    row = tl.program_id(0)
    at = row * T + tl.arange(0, T)
    value = tl.load(x + at)
    tl.store(ordered + at, tl.sort(value, descending=True))
    tl.store(flipped + at, tl.flip(value, 0))
    top, place = tl.max(value, 0, return_indices=True)
    tl.store(best + row, top + tl.min(value, 0))
    tl.store(where + row, place.to(tl.float32) * 1000 + tl.argmin(value, 0).to(tl.float32))


def order(x: Any) -> tuple[torch.Tensor, ...]:
    rows, length = x.a.shape
    ordered, flipped = torch.empty_like(x.a), torch.empty_like(x.a)
    best, where = torch.empty(rows, device=x.a.device), torch.empty(rows, device=x.a.device)
    order_kernel[(rows,)](x.a, ordered, best, where, flipped, T=length)
    return ordered, best, where, flipped


def order_plain(x: Any) -> tuple[torch.Tensor, ...]:
    a = x.a
    where = a.argmax(1).float() * 1000 + a.argmin(1).float()
    return a.sort(1, descending=True)[0], a.amax(1) + a.amin(1), where, a.flip(1)


@triton.jit
def quantize_kernel(x, out, scale, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + at, mask=at < columns, other=0.0)
    top = tl.max(tl.abs(value), 0)
    tl.store(scale + row, top / 127.0)
    tl.store(out + row * columns + at, libdevice.rint(value * (127.0 / top)).to(tl.int8), mask=at < columns)


def quantize(x: Any) -> tuple[torch.Tensor, ...]:
    out = torch.empty_like(x.a, dtype=torch.int8)
    scale = torch.empty(x.a.shape[0], device=x.a.device)
    quantize_kernel[(x.a.shape[0],)](
        x.a, out, scale, x.a.shape[1], BLOCK=triton.next_power_of_2(x.a.shape[1])
    )
    return out.float() * scale[:, None], scale


def quantize_plain(x: Any) -> tuple[torch.Tensor, ...]:
    top = x.a.abs().amax(1)
    return torch.round(x.a * (127.0 / top)[:, None]) * (top / 127.0)[:, None], top / 127.0


CASES = [
    Case("persistent softmax", softmax, "a=TD", lambda x: x.a.softmax(1), backward=False),
    Case("norm, backward behind locks", norm_backward, "a=TD dy=TD w=D", norm_backward_plain, backward=False),
    Case("associative scan", scan, "a=TD d=TD/sig", scan_plain, backward=False),
    Case("sorting, extremes and where", order, "a=TD", order_plain, backward=False),
    Case("quantization to bytes", quantize, "a=TD", quantize_plain, backward=False),
]

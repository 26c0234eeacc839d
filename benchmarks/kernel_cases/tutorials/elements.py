"""Kernels that go through numbers one by one: additions, draws, optimizers, functions of libdevice."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from kernel_cases.cases import Case


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out + at, tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)


def add(x: Any) -> torch.Tensor:
    out = torch.empty_like(x.a)
    n = out.numel()
    add_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x.a, x.b, out, n, BLOCK=256)
    return out


@triton.jit
def dropout_kernel(x, out, n, p, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = tl.rand(seed, at) > p
    tl.store(out + at, tl.where(keep, tl.load(x + at, mask=at < n) / (1 - p), 0.0), mask=at < n)


def dropout(x: Any) -> torch.Tensor:
    """How much is left of ones: the draws are Philox's, which torch's CPU does not make."""
    out = torch.empty_like(x.ones)
    dropout_kernel[(triton.cdiv(out.numel(), 256),)](x.ones, out, out.numel(), 0.25, 123, BLOCK=256)
    return (out > 0).float().mean()


@triton.jit
def mixed_kernel(x, out, counts, T: tl.constexpr):
    """Functions of libdevice, interleaving, a histogram, a gather and one instruction of PTX."""
    at = tl.arange(0, T)
    value = tl.load(x + at)
    value = libdevice.asin(tl.sin(value)) + libdevice.tanh(value) + libdevice.pow(tl.abs(value), 1.5)
    value += tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=r,r", [value], tl.float32, True, 1)
    first, two = tl.split(tl.reshape(value, (T // 2, 2)))
    value = tl.interleave(two, first)
    value = tl.gather(value, T - 1 - at, axis=0)
    tl.store(out + at, value)
    bins = tl.histogram((tl.abs(value) * 4).to(tl.int32) % 16, 16)
    tl.store(counts + tl.arange(0, 16), bins.to(tl.float32))


def mixed(x: Any) -> tuple[torch.Tensor, ...]:
    out, counts = torch.empty_like(x.a), torch.empty(16, device=x.a.device)
    mixed_kernel[(1,)](x.a, out, counts, T=x.a.numel())
    return out, counts


def mixed_plain(x: Any) -> tuple[torch.Tensor, ...]:
    a = x.a
    value = torch.asin(torch.sin(a)) + torch.tanh(a) + torch.abs(a) ** 1.5
    value = value + torch.tanh(value)
    value = value.view(-1, 2).flip(1).reshape(-1).flip(0)
    return value, torch.bincount((value.abs() * 4).int() % 16, minlength=16).float()


@triton.jit(noinline=True)
def collatz(n):
    steps = 0
    while n != 1:
        n = tl.where(n % 2 == 0, n // 2, 3 * n + 1)
        steps += 1
    return steps


@triton.jit
def steps_kernel(out, n):
    pid = tl.program_id(0)
    if pid >= n:
        return
    tl.store(out + pid, collatz(pid + 1).to(tl.float32))


def steps(x: Any) -> torch.Tensor:
    out = torch.zeros(40, device=x.a.device)
    steps_kernel[(40,)](out, 30)
    return out


def steps_plain(x: Any) -> torch.Tensor:
    def count(n: int) -> int:
        return 0 if n == 1 else 1 + count(n // 2 if n % 2 == 0 else 3 * n + 1)

    return torch.tensor([float(count(n)) for n in range(1, 31)] + [0.0] * 10)


@torch.library.triton_op("kernel_cases::scaled", mutates_args={})
def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
    out = torch.empty_like(x)
    torch.library.wrap_triton(scale_kernel)[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), by, BLOCK=128)
    return out


@triton.jit
def scale_kernel(x, out, n, by, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * by, mask=at < n)


scaled.register_autograd(
    lambda ctx, grad: (scaled(grad.contiguous(), ctx.by), None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "by", inputs[1]),
)


@triton.jit
def adam_kernel(p, g, m, v, step, lr, b1, b2, eps, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    grad = tl.load(g + at, mask=mask)
    first = b1 * tl.load(m + at, mask=mask) + (1 - b1) * grad
    second = b2 * tl.load(v + at, mask=mask) + (1 - b2) * grad * grad
    tl.store(m + at, first, mask=mask)
    tl.store(v + at, second, mask=mask)
    count = tl.load(step)
    hat = first / (1 - libdevice.pow(b1, count))
    root = tl.sqrt(second / (1 - libdevice.pow(b2, count)))
    tl.store(p + at, tl.load(p + at, mask=mask) - lr * hat / (root + eps), mask=mask)


def adam(x: Any) -> torch.Tensor:
    p, m, v = x.p.detach().clone(), torch.zeros_like(x.p), torch.zeros_like(x.p)
    step = torch.zeros(1, device=p.device)
    for _ in range(3):
        step += 1
        adam_kernel[(triton.cdiv(p.numel(), 128),)](
            p, x.g, m, v, step, 1e-2, 0.9, 0.999, 1e-8, p.numel(), BLOCK=128
        )
    return p


def adam_plain(x: Any) -> torch.Tensor:
    p = x.p.detach().clone().requires_grad_()
    optimizer = torch.optim.Adam([p], lr=1e-2)
    for _ in range(3):
        p.grad = x.g.detach().clone()
        optimizer.step()
    return p.detach()


CASES = [
    Case("addition", add, "a=BTHK b=BTHK", lambda x: x.a + x.b, backward=False),
    Case(
        "dropout by seed",
        dropout,
        "",
        lambda x: torch.tensor(0.75),
        fixed={"ones": lambda: torch.ones(40_000)},
        backward=False,
        tolerance=0.02,
    ),
    Case("libdevice, histogram, gather, PTX", mixed, "a=D", mixed_plain, backward=False),
    Case("loops as long as they take, not inlined", steps, "a=D", steps_plain, backward=False),
    Case("an operator of torch.library", lambda x: scaled(x.a, 3.0), "a=TD", lambda x: x.a * 3.0),
    Case("Adam", adam, "p=TD g=TD", adam_plain, backward=False),
]

"""Kernels in the manner of Triton's tutorials and of what other libraries write, made for this."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.tools.tensor_descriptor import TensorDescriptor

from kernel_cases.cases import Case, attention

PACKAGE, DISTRIBUTION = "kernel_cases.tutorials", ""


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


def _configurations() -> list[triton.Config]:
    return [
        triton.Config({"BM": m, "BN": n, "BK": 32, "GROUP": 4}, num_stages=3, num_warps=4)
        for m, n in ((32, 64), (64, 64))
    ]


@triton.autotune(configs=_configurations(), key=["M", "N", "K"])
@triton.heuristics({"EVEN": lambda args: args["K"] % args["BK"] == 0})
@triton.jit
def matmul_kernel(
    a, b, c, M, N, K, sam, sak, sbk, sbn, scm, scn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, EVEN: tl.constexpr,
    ACTIVATION: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    wide = GROUP * columns
    first = pid // wide * GROUP
    size = min(rows - first, GROUP)
    pm, pn = first + pid % wide % size, pid % wide // size
    am = (pm * BM + tl.arange(0, BM)) % M
    bn = (pn * BN + tl.arange(0, BN)) % N
    k = tl.arange(0, BK)
    ap = a + am[:, None] * sam + k[None, :] * sak
    bp = b + k[:, None] * sbk + bn[None, :] * sbn
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(tl.cdiv(K, BK)):
        if EVEN:
            total = tl.dot(tl.load(ap), tl.load(bp), total)
        else:
            left = K - step * BK
            total = tl.dot(
                tl.load(ap, mask=k[None, :] < left, other=0.0),
                tl.load(bp, mask=k[:, None] < left, other=0.0),
                total,
            )
        ap += BK * sak
        bp += BK * sbk
    if ACTIVATION == "leaky":
        total = leaky(total)
    cm, cn = pm * BM + tl.arange(0, BM), pn * BN + tl.arange(0, BN)
    mask = (cm[:, None] < M) & (cn[None, :] < N)
    tl.store(c + cm[:, None] * scm + cn[None, :] * scn, total.to(c.dtype.element_ty), mask=mask)


@triton.jit
def leaky(x):
    return tl.where(x >= 0, x, 0.01 * x)


def matmul(x: Any) -> torch.Tensor:
    (M, K), N = x.a.shape, x.b.shape[1]
    c = torch.empty(M, N, device=x.a.device, dtype=x.a.dtype)

    def grid(meta: Any) -> tuple[int]:
        return (triton.cdiv(M, meta["BM"]) * triton.cdiv(N, meta["BN"]),)

    matmul_kernel[grid](x.a, x.b, c, M, N, K, *x.a.stride(), *x.b.stride(), *c.stride(), ACTIVATION="leaky")
    return c


@triton.jit
def described_matmul_kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Persistent, with descriptors made on the host and on the device."""
    columns = tl.cdiv(N, BN)
    out = tl.make_tensor_descriptor(c, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BM) * columns, tl.num_programs(0), flatten=True):
        m, n = tile // columns * BM, tile % columns * BN
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(0, K, BK):
            total = tl.dot(a.load([m, k]), b.load([n, k]).T, total)
        out.store([m, n], total)


def described_matmul(x: Any) -> torch.Tensor:
    M, K = x.a.shape
    N = x.b.shape[0]
    c = torch.empty(M, N, device=x.a.device)
    a = TensorDescriptor.from_tensor(x.a.contiguous(), [32, 16])
    b = TensorDescriptor.from_tensor(x.b.contiguous(), [32, 16])
    described_matmul_kernel[(3,)](a, b, c, M, N, K, BM=32, BN=32, BK=16)
    return c


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
def norm_backward_kernel(
    dx, dy, dw, x, w, rstd, lock, stride, columns, GROUP: tl.constexpr, BLOCK: tl.constexpr
):
    """Partial sums of weights' gradients behind a lock, as the tutorial on layer norm has them."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    mask = at < columns
    value = tl.load(x + row * stride + at, mask=mask, other=0.0)
    given = tl.load(dy + row * stride + at, mask=mask, other=0.0)
    weight = tl.load(w + at, mask=mask, other=0.0)
    inverse = tl.load(rstd + row)
    hat = value * inverse
    wdy = weight * given
    shared = tl.sum(hat * wdy, axis=0) / columns
    tl.store(dx + row * stride + at, (wdy - hat * shared) * inverse, mask=mask)
    place = row % GROUP
    count = lock + GROUP + place
    partial = given * hat
    while tl.atomic_cas(lock + place, 0, 1) == 1:
        pass
    seen = tl.load(count)
    if seen == 0:
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
def attention_kernel(
    q, k, v, out, scale, sb, sh, st, heads, length,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    start, both = tl.program_id(0), tl.program_id(1)
    base = (both // heads).to(tl.int64) * sb + (both % heads).to(tl.int64) * sh
    rows, d = start * BM + tl.arange(0, BM), tl.arange(0, D)
    query = tl.load(q + base + rows[:, None] * st + d[None, :], mask=rows[:, None] < length, other=0.0)
    top = tl.full([BM], -float("inf"), tl.float32)
    norm = tl.zeros([BM], tl.float32)
    total = tl.zeros([BM, D], tl.float32)
    for at in range(0, tl.minimum((start + 1) * BM, length), BN):
        columns = at + tl.arange(0, BN)
        inside = columns[:, None] < length
        key = tl.load(k + base + columns[:, None] * st + d[None, :], mask=inside, other=0.0)
        value = tl.load(v + base + columns[:, None] * st + d[None, :], mask=inside, other=0.0)
        score = tl.dot(query, tl.trans(key)) * (scale * 1.44269504)
        score = tl.where(rows[:, None] >= columns[None, :], score, -float("inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        weight = tl.exp2(score - higher[:, None])
        fall = tl.exp2(top - higher)
        norm = norm * fall + tl.sum(weight, 1)
        total = tl.dot(weight.to(value.dtype), value, total * fall[:, None])
        top = higher
    tl.store(out + base + rows[:, None] * st + d[None, :], total / norm[:, None], mask=rows[:, None] < length)


def flash(x: Any) -> torch.Tensor:
    out = torch.empty_like(x.q)
    batch, length, heads, d = x.q.shape
    attention_kernel[(triton.cdiv(length, 32), batch * heads)](
        x.q, x.k, x.v, out, d**-0.5, x.q.stride(0), x.q.stride(2), x.q.stride(1), heads, length, d, 32, 16
    )
    return out


@triton.jit
def grouped_kernel(a_table, b_table, c_table, sizes, count, BLOCK: tl.constexpr):
    """Several products in one launch: addresses of matrices as numbers."""
    for group in range(count):
        n = tl.load(sizes + group)
        a = tl.load(a_table + group).to(tl.pointer_type(tl.float32))
        b = tl.load(b_table + group).to(tl.pointer_type(tl.float32))
        c = tl.load(c_table + group).to(tl.pointer_type(tl.float32))
        i, j = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
        mask = (i < n) & (j < n)
        product = tl.dot(
            tl.load(a + i * n + j, mask=mask, other=0.0), tl.load(b + i * n + j, mask=mask, other=0.0)
        )
        tl.store(c + i * n + j, product, mask=mask)


def grouped(x: Any) -> tuple[torch.Tensor, ...]:
    device = x.a.device
    sizes = (16, 24, 32)
    a = [x.a[:n, :n].contiguous() for n in sizes]
    b = [x.b[:n, :n].contiguous() for n in sizes]
    c = [torch.empty_like(one) for one in a]
    tables = [torch.tensor([one.data_ptr() for one in some], device=device) for some in (a, b, c)]
    grouped_kernel[(1,)](*tables, torch.tensor(sizes, device=device, dtype=torch.int32), 3, BLOCK=32)
    return tuple(c)


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
    tl.store(flipped + at, tl.flip(value))
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
def mixed_kernel(x, out, counts, T: tl.constexpr):
    """Functions of libdevice, interleaving, a histogram, a gather and one instruction of PTX."""
    at = tl.arange(0, T)
    value = tl.load(x + at)
    value = libdevice.asin(tl.sin(value)) + libdevice.tanh(value) + libdevice.pow(tl.abs(value), 1.5)
    value += tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=r,r", [value], tl.float32, True, 1)
    one, two = tl.split(tl.reshape(value, (T // 2, 2)))
    value = tl.interleave(two, one)
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


@triton.autotune(
    configs=[triton.Config({"SPLIT": 4, "BLOCK": 16}), triton.Config({"SPLIT": 2, "BLOCK": 32})],
    key=["K"],
    reset_to_zero=["c"],
)
@triton.jit
def split_kernel(a, b, c, M, N, K, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    i, j, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    m, n, k = i * BLOCK + tl.arange(0, BLOCK), j * BLOCK + tl.arange(0, BLOCK), tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(part * BLOCK, K, SPLIT * BLOCK):
        at = start + k
        left = tl.load(a + m[:, None] * K + at[None, :], mask=(m[:, None] < M) & (at[None, :] < K), other=0.0)
        right = tl.load(
            b + at[:, None] * N + n[None, :], mask=(at[:, None] < K) & (n[None, :] < N), other=0.0
        )
        total += tl.dot(left, right)
    tl.atomic_add(c + m[:, None] * N + n[None, :], total, mask=(m[:, None] < M) & (n[None, :] < N))


def split(x: Any) -> torch.Tensor:
    (M, K), N = x.a.shape, x.b.shape[1]
    c = torch.zeros(M, N, device=x.a.device)

    def grid(meta: Any) -> tuple[int, int, int]:
        return triton.cdiv(M, meta["BLOCK"]), triton.cdiv(N, meta["BLOCK"]), meta["SPLIT"]

    split_kernel[grid](x.a.contiguous(), x.b.contiguous(), c, M, N, K)
    return c


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
    Case("addition", add, "a=BTHK b=BTHK", lambda x: x.a + x.b, backward=False),
    Case("persistent softmax", softmax, "a=TD", lambda x: x.a.softmax(1), backward=False),
    Case(
        "matmul, tuned, wrapped around",
        matmul,
        "a=TD b=DK",
        lambda x: F.leaky_relu(x.a @ x.b),
        backward=False,
    ),
    Case(
        "matmul of a length that does not divide",
        matmul,
        "a=80,77 b=77,45",
        lambda x: F.leaky_relu(x.a @ x.b),
        backward=False,
    ),
    Case("matmul through descriptors", described_matmul, "a=TD b=KD", lambda x: x.a @ x.b.T, backward=False),
    Case("matmul with split sums", split, "a=TD b=DK", lambda x: x.a @ x.b, backward=False),
    Case(
        "dropout by seed",
        dropout,
        "",
        lambda x: torch.tensor(0.75),
        fixed={"ones": lambda: torch.ones(40_000)},
        backward=False,
        tolerance=0.02,
    ),
    Case("norm, backward behind locks", norm_backward, "a=TD dy=TD w=D", norm_backward_plain, backward=False),
    Case("attention", flash, "q=BTHK k=BTHK v=BTHK", lambda x: attention(x.q, x.k, x.v), backward=False),
    Case(
        "grouped products by address",
        grouped,
        "a=KK b=KK",
        lambda x: tuple(x.a[:n, :n] @ x.b[:n, :n] for n in (16, 24, 32)),
        backward=False,
    ),
    Case("associative scan", scan, "a=TD d=TD/sig", scan_plain, backward=False),
    Case("sorting, extremes and where", order, "a=TD", order_plain, backward=False),
    Case("libdevice, histogram, gather, PTX", mixed, "a=D", mixed_plain, backward=False),
    Case("loops as long as they take, not inlined", steps, "a=D", steps_plain, backward=False),
    Case("an operator of torch.library", lambda x: scaled(x.a, 3.0), "a=TD", lambda x: x.a * 3.0),
    Case("Adam", adam, "p=TD g=TD", adam_plain, backward=False),
    Case("quantization to bytes", quantize, "a=TD", quantize_plain, backward=False),
]

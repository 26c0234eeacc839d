"""Matrix products: tuned, through descriptors, split, by address; and attention, which is two of them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernel_cases.cases import Case, attention


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
    c = [torch.empty_like(tensor) for tensor in a]
    tables = [torch.tensor([tensor.data_ptr() for tensor in some], device=device) for some in (a, b, c)]
    grouped_kernel[(1,)](*tables, torch.tensor(sizes, device=device, dtype=torch.int32), 3, BLOCK=32)
    return tuple(c)


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


CASES = [
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
    Case("attention", flash, "q=BTHK k=BTHK v=BTHK", lambda x: attention(x.q, x.k, x.v), backward=False),
    Case(
        "grouped products by address",
        grouped,
        "a=KK b=KK",
        lambda x: tuple(x.a[:n, :n] @ x.b[:n, :n] for n in (16, 24, 32)),
        backward=False,
    ),
]

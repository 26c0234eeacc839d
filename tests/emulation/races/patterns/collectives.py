"""Asynchronous collectives."""

from __future__ import annotations

import torch
import torch.distributed as dist
from emulation.races.patterns.scaffold import N, beside, gpu, ranks


@ranks
def reduced_and_used_wrong_805() -> None:
    x = gpu()
    work = dist.all_reduce(x, async_op=True)
    x.sum()
    work.wait()


@ranks
def reduced_and_waited_for() -> None:
    x = gpu()
    dist.all_reduce(x, async_op=True).wait()
    x.sum()
    dist.all_reduce(x)
    x.sum()


@ranks
def gathered_and_used_wrong_805() -> None:
    parts = [torch.empty(N, device="cuda") for _ in range(2)]
    work = dist.all_gather(parts, gpu(), async_op=True)
    torch.cat(parts)
    work.wait()


@ranks
def gathered_into_tensor_given_overwritten_wrong_805() -> None:
    x, out = gpu(), torch.empty(2 * N, device="cuda")
    work = dist.all_gather_into_tensor(out, x, async_op=True)
    x.zero_()
    work.wait()
    out.sum()


@ranks
def gathered_into_tensor_given_read() -> None:
    x, out = gpu(), torch.empty(2 * N, device="cuda")
    work = dist.all_gather_into_tensor(out, x, async_op=True)
    x.sum()
    work.wait()
    out.sum()


@ranks
def scattered_waited_for_on_another_stream_wrong_805() -> None:
    x, out, side = gpu(2 * N), torch.empty(N, device="cuda"), torch.cuda.Stream()
    work = dist.reduce_scatter_tensor(out, x, async_op=True)
    with torch.cuda.stream(side):
        work.wait()
    out.sum()


@ranks
def reduced_on_a_stream_of_its_own() -> None:
    x = gpu()
    with beside(joins=True):
        dist.all_reduce(x)
    x.sum()


@ranks
def reduced_on_a_stream_of_its_own_wrong_803() -> None:
    x = gpu()
    with beside():
        dist.all_reduce(x)
    x.sum()


@ranks
def buckets_waited_for_at_the_end() -> None:
    grads = [gpu() for _ in range(3)]
    works = [dist.all_reduce(grad, async_op=True) for grad in grads]
    for work in works:
        work.wait()
    torch.cat(grads).norm()

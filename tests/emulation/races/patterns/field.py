"""From the field: what other projects have found in their own code, rebuilt small."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
import torch.distributed as dist
from emulation.races.patterns.scaffold import N, current, gpu, pattern, pinned, ranks, versions

from gapless import loading, ops


@versions(
    gradient_buckets_in_turn=(True,),
    gradient_buckets_in_turn_wrong_803=(False,),
)
def buckets(waits: bool) -> None:
    """Two buckets for gradients in turn, reduced on a stream beside backward."""
    side, model = torch.cuda.Stream(), torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(4)]).cuda()
    bucket = [torch.empty(64, device="cuda") for _ in range(2)]
    filled = 0

    def hook(parameter: Any) -> None:
        nonlocal filled
        if parameter.dim() < 2:
            return
        own = bucket[filled % 2]
        filled += 1
        if waits:
            current().wait_stream(side)
        own.copy_(parameter.grad.view(-1))
        side.wait_stream(current())
        with torch.cuda.stream(side):
            own.div_(2)
            parameter.grad.copy_(own.view(8, 8))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)
    model(gpu(4, 8)).sum().backward()
    current().wait_stream(side)


@versions(
    weights_stashed_recorded=(True,),
    weights_stashed_wrong_804=(False,),
)
def weights_stashed(records: bool) -> None:
    """Weights go to pinned memory on a stream, and their memory on the GPU is given up."""
    weights, side, host = gpu(), torch.cuda.Stream(), pinned()
    side.wait_stream(current())
    with torch.cuda.stream(side):
        host.copy_(weights, non_blocking=True)
    if records:
        weights.record_stream(side)
    weights.untyped_storage().resize_(0)
    gpu().sum()
    torch.cuda.synchronize()


@versions(
    batch_buffer_given_back_behind_its_copy=(True,),
    batch_buffer_given_back_too_early_wrong_803=(False,),
)
def batch_buffers_on_the_gpu(returns: bool) -> None:
    """A thread fills buffers on the GPU; the loop copies a buffer, and gives it back at once."""
    side, out = torch.cuda.Stream(), torch.empty(N, device="cuda")
    buffer, free = torch.empty(N, device="cuda"), torch.cuda.Event()
    side.wait_stream(current())
    for _ in range(3):
        with torch.cuda.stream(side):
            if returns:
                side.wait_event(free)
            buffer.copy_(torch.randn(N).pin_memory(), non_blocking=True)
        current().wait_stream(side)
        out.copy_(buffer)
        free.record()


@versions(
    cache_backed_up=(True,),
    cache_backed_up_too_early_wrong_803=(False,),
)
def cache_written_back(waits: bool) -> None:
    """Keys and values are backed up on a stream, in pages, while the next ones are written."""
    side, cache, backup = torch.cuda.Stream(), torch.zeros(4, N, device="cuda"), pinned(4, N)
    side.wait_stream(current())
    for page in range(4):
        cache[page].copy_(gpu())
        if waits:
            side.wait_stream(current())
        with torch.cuda.stream(side):
            backup[page].copy_(cache[page], non_blocking=True)
    torch.cuda.synchronize()
    backup.sum()


@versions(
    layer_prefetched_for_the_stream_that_computes=(lambda compute: compute,),
    layer_prefetched_for_the_default_stream_wrong_803=(lambda compute: torch.cuda.default_stream(),),
)
def layers_prefetched(stream: Any) -> None:
    """The next layer's cache comes back on a stream; who uses it waits for another one."""
    side, compute = torch.cuda.Stream(), torch.cuda.Stream()
    host = torch.randn(N).pin_memory()
    with torch.cuda.stream(compute):
        with torch.cuda.stream(side):
            layer = host.to("cuda", non_blocking=True)
        stream(compute).wait_stream(side)
        layer.record_stream(compute)
        layer.sum()


@versions(
    tokens_read_behind_their_event=(True,),
    tokens_read_without_their_event_wrong_801=(False,),
)
def tokens_of_the_last_step(waits: bool) -> None:
    """The scheduler reads a step's tokens while the next step runs."""
    copied, before = torch.cuda.Event(), None
    for _ in range(3):
        tokens = gpu(4, 8).argmax(-1)
        if before is not None:
            if waits:
                copied.synchronize()
            before.tolist()
        before = tokens.to("cpu", non_blocking=True)
        copied.record()


@versions(
    inputs_prepared_in_two_buffers=(2,),
    inputs_prepared_in_one_buffer_wrong_802=(1,),
)
def inputs_prepared(buffers: int) -> None:
    """Positions are written through NumPy into pinned memory, step after step, and sent."""
    kept = [torch.zeros(8, dtype=torch.int64).pin_memory() for _ in range(buffers)]
    sent: deque[Any] = deque(maxlen=buffers)
    for step in range(4):
        own = kept[step % buffers]
        if len(sent) == buffers and buffers > 1:
            sent[0].synchronize()
        own.numpy()[:4] = step
        own.to("cuda", non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        sent.append(event)


@ranks
def gradients_reduced_in_hooks_wrong_805() -> None:
    model, works = torch.nn.Linear(8, 8).cuda(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda parameter: works.append(dist.all_reduce(parameter.grad, async_op=True))
        )
    model(gpu(4, 8)).sum().backward()
    optimizer.step()
    for work in works:
        work.wait()


@ranks
def gradients_reduced_in_hooks() -> None:
    model, works = torch.nn.Linear(8, 8).cuda(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda parameter: works.append(dist.all_reduce(parameter.grad, async_op=True))
        )
    for _ in range(2):
        model(gpu(4, 8)).sum().backward()
        for work in works:
            work.wait()
        works.clear()
        optimizer.step()
        optimizer.zero_grad()


@ranks
def sent_and_let_go() -> None:
    """What is sent is kept until somebody has waited."""
    works = [dist.isend(gpu() * 2, dst=1) for _ in range(3)]
    works.append(dist.all_reduce(gpu() + 1, async_op=True))
    gpu()
    for work in works:
        work.wait()


@ranks
def wrapped_by_ddp() -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    side = torch.cuda.Stream()
    for _ in range(2):
        with torch.cuda.stream(side):
            x = torch.randn(4, 8).pin_memory().to("cuda", non_blocking=True)
        current().wait_stream(side)
        x.record_stream(current())
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@ranks
def received_and_used_wrong_805() -> None:
    x = torch.zeros(N, device="cuda")
    work = dist.irecv(x, src=1)
    x.sum()
    work.wait()


@ranks
def received_and_waited_for() -> None:
    x = torch.zeros(N, device="cuda")
    sent = dist.isend(gpu(), dst=1)
    dist.irecv(x, src=1).wait()
    x.sum()
    sent.wait()


@pattern
def own_tools() -> None:
    log, pending = ops.LogBuffer(), []
    batches = [torch.randn(4, 8) for _ in range(3)]
    for batch in loading.DevicePrefetcher(batches, "cuda"):
        log.add(loss=batch.mean())
        pending.append(ops.read_later(loss=batch.sum()))
        ops.to_device(torch.randn(4), "cuda", stream=torch.cuda.Stream()).sum()
    log.read().result()
    for work in pending:
        if work.ready():
            work.result()["loss"].item()

"""Races that public threads tell of, rebuilt small: each with the wait that mends it, and without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from emulation.races.patterns.scaffold import (
    N,
    beside,
    current,
    gpu,
    pattern,
    pinned,
    ranks,
    two_devices,
    versions,
)

THREADS = {
    "reduced_behind_the_default_stream_wrong_803": "deepspeedai/DeepSpeed#7898",
    "bucket_of_two_streams_wrong_803": "deepspeedai/DeepSpeed#8061",
    "buckets_begun_again_wrong_803": "deepspeedai/DeepSpeed#7805",
    "gradients_divided_before_they_are_reduced_wrong_805": "OpenNMT/OpenNMT-py#2295",
    "pages_stored_while_they_are_written_wrong_803": "vllm-project/vllm#45704",
    "positions_of_the_next_step_wrong_802": "vllm-project/vllm-ascend#12079",
    "pool_gathered_while_it_is_read_wrong_803": "vllm-project/vllm-ascend#10694",
    "weights_rebuilt_on_the_cpu_wrong_801": "stepfun-ai/SteptronOss#38",
    "event_of_another_device_wrong_801": "meta-pytorch/torchrec#3813",
    "keys_and_values_through_one_buffer_wrong_802": "1bit-MONSTER/1bit-MONSTER#2344",
    "arena_used_again_wrong_804": "microsoft/onnxruntime#4829",
}
"""Where each of them was told of; what runs in C++ there is told in torch's terms here."""


@versions(
    reduced_behind_the_default_stream_wrong_803=(torch.cuda.default_stream,),
    reduced_behind_the_current_stream=(lambda: current(),),
)
def reduced_behind(stream: Callable[[], Any]) -> None:
    """A gradient is made where its forward ran; the stream that reduces it waits for the default one."""
    reducing, grad = torch.cuda.Stream(), torch.zeros(N, device="cuda")
    with beside(joins=True):
        grad.add_(gpu())
        reducing.wait_stream(stream())
        with beside(reducing, waits=False, joins=True):
            grad.div_(2)


@versions(bucket_of_two_streams_wrong_803=(False,), bucket_of_two_streams=(True,))
def bucket_of_two_streams(waits: bool) -> None:
    """Hooks on two streams fill one bucket, and what reduces it waits for the one that is current then."""
    bucket, other, reducing = torch.zeros(2, N, device="cuda"), torch.cuda.Stream(), torch.cuda.Stream()
    with beside(other):
        bucket[0].copy_(gpu())
    bucket[1].copy_(gpu())
    if waits:
        reducing.wait_stream(other)
    with beside(reducing, joins=True):
        bucket.div_(2)
    current().wait_stream(other)


@versions(buckets_begun_again_wrong_803=(True,), buckets_in_turn=(False,))
def buckets_begun_again(again: bool) -> None:
    """Two buckets, each waited for in its turn; clearing one begins with the first again."""
    buckets, reducing = [torch.zeros(N, device="cuda") for _ in range(2)], torch.cuda.Stream()
    done = [torch.cuda.Event() for _ in buckets]
    slot = 0
    for step in range(4):
        current().wait_event(done[step % 2])
        buckets[slot].copy_(gpu())
        with beside(reducing):
            buckets[slot].div_(2)
            done[slot].record()
        slot = 0 if again else 1 - slot
    current().wait_stream(reducing)


def reduced_and_divided(waits: bool) -> None:
    grads = [gpu() for _ in range(2)]
    flat = torch.cat(grads)
    work = dist.all_reduce(flat, async_op=True)
    if waits:
        work.wait()
    flat.div_(2)
    for grad, part in zip(grads, flat.split(N), strict=True):
        grad.copy_(part)


@ranks
def gradients_divided_before_they_are_reduced_wrong_805() -> None:
    reduced_and_divided(False)


@ranks
def gradients_divided_behind_the_reduction() -> None:
    reduced_and_divided(True)


@versions(pages_stored_while_they_are_written_wrong_803=(False,), pages_stored_behind_an_event=(True,))
def pages_stored(waits: bool) -> None:
    """Pages of a cache are stored on a stream, a step later than the CPU has asked for them to be written."""
    cache, store, storing = torch.zeros(4, N, device="cuda"), pinned(4, N), torch.cuda.Stream()
    storing.wait_stream(current())
    written = torch.cuda.Event()
    for page in range(4):
        cache[page].copy_(gpu())
        written.record()
        with torch.cuda.stream(storing):
            if waits:
                storing.wait_event(written)
            if page:
                store[page - 1].copy_(cache[page - 1], non_blocking=True)
    torch.cuda.synchronize()


@versions(
    positions_of_the_next_step_wrong_802=(lambda own: own,),
    positions_sent_from_a_copy=(lambda own: own.clone().pin_memory(),),
)
def positions_of_the_next_step(taken: Any) -> None:
    own = torch.zeros(8, dtype=torch.int64).pin_memory()
    for step in range(3):
        own[: step + 1] += 1
        taken(own).to("cuda", non_blocking=True)


@ranks
def pool_gathered_while_it_is_read_wrong_803() -> None:
    gathered(False)


@ranks
def pool_gathered_behind_its_last_use() -> None:
    gathered(True)


def gathered(waits: bool) -> None:
    """Layers share the memory that their weights are gathered in, on a stream."""
    pool, shard, gathering = torch.zeros(2 * N, device="cuda"), gpu(), torch.cuda.Stream()
    gathering.wait_stream(current())
    for _ in range(2):
        with beside(gathering, waits=waits, joins=True):
            dist.all_gather_into_tensor(pool, shard)
        pool.sum()


@versions(weights_rebuilt_on_the_cpu_wrong_801=(False,), weights_rebuilt_behind_a_wait=(True,))
def weights_rebuilt_on_the_cpu(waits: bool) -> None:
    """A buffer of bytes comes from the GPU, and tensors are cut out of it."""
    weights = torch.empty(N)
    received = gpu().view(torch.uint8).to("cpu", non_blocking=True)
    if waits:
        torch.cuda.synchronize()
    weights.copy_(received.view(torch.float32))


@two_devices
def event_of_another_device_wrong_801() -> None:
    metrics_of_the_second_device(torch.device("cuda", 0))


@two_devices
def event_of_the_device_that_copies() -> None:
    metrics_of_the_second_device(torch.device("cuda", 1))


def metrics_of_the_second_device(recorded: torch.device) -> None:
    """The event behind a copy is recorded on the process's current device."""
    host = torch.ones(N, device="cuda:1").to("cpu", non_blocking=True)
    with torch.cuda.device(recorded):
        copied = torch.cuda.Event()
        copied.record()
    copied.synchronize()
    host.sum()


@versions(keys_and_values_through_one_buffer_wrong_802=(1,), keys_and_values_through_two_buffers=(2,))
def keys_and_values(buffers: int) -> None:
    staging = [pinned() for _ in range(buffers)]
    caches = torch.empty(2, N, device="cuda")
    for cache, number in zip(caches, range(2), strict=True):
        staging[number % buffers].fill_(number)
        cache.copy_(staging[number % buffers], non_blocking=True)


@versions(arena_used_again_wrong_804=(False,), arena_used_again_behind_the_copy=(True,))
def arena_used_again(waits: bool) -> None:
    """A result is copied out on a stream; its memory is what the next kernel works in."""
    copying, host = torch.cuda.Stream(), pinned()
    for _ in range(2):
        result = gpu() * 2
        with beside(copying):
            host.copy_(result, non_blocking=True)
        if waits:
            current().wait_stream(copying)
        del result
        gpu().sum()
    torch.cuda.synchronize()


@pattern
def source_let_go_of_on_the_stream_that_copies() -> None:
    """Held against PrimeIntellect-ai/prime-rl#3312, and none: its memory is used again behind the copy."""
    hosts = []
    for _ in range(3):
        whole = gpu() * 2
        hosts.append(pinned().copy_(whole, non_blocking=True))
        del whole
    torch.cuda.synchronize()
    torch.stack(hosts).sum()

"""More races that public threads tell of: written down before any of them was tried here."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from emulation.races.patterns.scaffold import N, beside, current, gpu, pattern, pinned, ranks, versions

THREADS = {
    "layer_from_a_courier_wrong_804": "sgl-project/sglang#37963",
    "row_given_to_the_next_wrong_803": "sgl-project/sglang#18746",
    "tokens_filtered_while_they_are_written_wrong_803": "sgl-project/sglang#35198",
    "output_of_a_replay_overwritten_wrong_803": "sgl-project/sglang-omni#1369",
    "weights_moved_by_a_thread_wrong_803": "vllm-project/vllm#32881",
    "batch_given_back_to_its_thread_wrong_803": "BVLC/caffe#2998",
    "sampling_buffer_refilled_wrong_802": "lightseekorg/tokenspeed#376",
    "view_outlives_what_was_brought_back_wrong_804": "meta-pytorch/torchtune#1867",
    "zeroed_behind_the_probe_wrong_803": "FlashML-org/FreeToken#414",
    "threads_with_a_stream_each_wrong_803": "pytorch/pytorch#2398",
    "ingress_of_a_launched_round_wrong_802": "invergent-ai/surogate#124",
}
"""Where each of them was told of; what runs in C++ there is told in torch's terms here."""


@versions(layer_from_a_courier_wrong_804=(False,), layer_from_a_courier_recorded=(True,))
def layer_from_a_courier(records: bool) -> None:
    """Weights come on a stream; who computes waits for the copy, and lets go of them behind the layer."""
    courier, host = torch.cuda.Stream(), pinned()
    for _ in range(3):
        with torch.cuda.stream(courier):
            weights = host.to("cuda", non_blocking=True)
            copied = courier.record_event()
        current().wait_event(copied)
        if records:
            weights.record_stream(current())
        weights.sum()
        del weights


@versions(row_given_to_the_next_wrong_803=(False,), row_given_to_the_next_behind_its_use=(True,))
def row_given_to_the_next(waits: bool) -> None:
    """The row of a request that has ended is filled for the next one, while the step before still runs."""
    rows, forward = torch.zeros(2, N, device="cuda"), torch.cuda.Stream()
    for step in range(3):
        if waits:
            current().wait_stream(forward)
        rows[0].fill_(step)
        with beside(forward):
            rows[0].sum()
    current().wait_stream(forward)


@versions(
    tokens_filtered_while_they_are_written_wrong_803=(lambda forward: current(),),
    tokens_filtered_on_the_stream_that_writes=(lambda forward: forward,),
)
def tokens_filtered(chosen: Callable[[Any], Any]) -> None:
    forward, tokens = torch.cuda.Stream(), torch.zeros(4, 8, device="cuda")
    kept = torch.tensor([0, 2], device="cuda")
    with beside(forward):
        tokens.copy_(torch.randn(4, 8, device="cuda"))
    with torch.cuda.stream(chosen(forward)):
        tokens[kept].sum()
    current().wait_stream(forward)


@versions(output_of_a_replay_overwritten_wrong_803=(False,), output_of_a_replay_copied_before=(True,))
def output_of_a_replay(waits: bool) -> None:
    """Two streams take turns with one captured graph, each with a copy of its output."""
    source, graph, copied = torch.zeros(N, device="cuda"), torch.cuda.CUDAGraph(), torch.cuda.Event()
    with torch.cuda.graph(graph):
        result = source * 2
    torch.cuda.synchronize()
    kept = []
    for stream in (torch.cuda.Stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            if waits:
                stream.wait_event(copied)
            source.copy_(gpu())
            graph.replay()
            kept.append(result.clone())
            copied.record()
    torch.cuda.synchronize()


@versions(weights_moved_by_a_thread_wrong_803=(False,), weights_moved_by_a_thread_behind_the_copy=(True,))
def weights_moved_by_a_thread(waits: bool) -> None:
    """A thread fills a buffer on its stream; the loop copies it, and says that it has on the CPU alone."""
    buffer, weights = torch.zeros(N, device="cuda"), torch.zeros(3, N, device="cuda")
    torch.cuda.synchronize()
    wanted, filled, consumed = queue.Queue[Any](), queue.Queue[Any](), torch.cuda.Event()

    def move() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for layer in range(3):
                wanted.get()
                if waits:
                    current().wait_event(consumed)
                buffer.fill_(layer)
                filled.put(current().record_event())

    mover = threading.Thread(target=move)
    mover.start()
    for layer in range(3):
        wanted.put(None)
        current().wait_event(filled.get())
        weights[layer].copy_(buffer)
        consumed.record()
    mover.join()


@versions(batch_given_back_to_its_thread_wrong_803=(False,), batch_given_back_behind_its_copy=(True,))
def batch_given_back(waits: bool) -> None:
    """A thread fills batches and waits for its own stream; the loop gives a batch back at once."""
    top, free, full = torch.zeros(N, device="cuda"), queue.Queue[Any](), queue.Queue[Any]()
    free.put(torch.zeros(N, device="cuda"))
    torch.cuda.synchronize()

    def prefetch() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(3):
                batch = free.get()
                batch.copy_(torch.randn(N).pin_memory(), non_blocking=True)
                current().synchronize()
                full.put(batch)

    prefetcher = threading.Thread(target=prefetch)
    prefetcher.start()
    for _ in range(3):
        batch = full.get()
        top.copy_(batch)
        if waits:
            current().synchronize()
        free.put(batch)
    prefetcher.join()


@versions(
    sampling_buffer_refilled_wrong_802=(lambda kept: kept,),
    sampling_buffer_made_anew=(lambda kept: torch.empty_like(kept, pin_memory=True),),
)
def sampling_buffer(taken: Callable[[Any], Any]) -> None:
    kept, temperatures = pinned(4), torch.ones(4, device="cuda")
    for step in range(3):
        own = taken(kept)
        own.fill_(1 + step)
        temperatures.copy_(own, non_blocking=True)
        (torch.randn(4, 8, device="cuda") / temperatures[:, None]).argmax(-1)


@versions(view_outlives_what_was_brought_back_wrong_804=(False,), view_outlives_and_is_recorded=(True,))
def view_of_what_was_brought_back(records: bool) -> None:
    """The stream that brings values back waits until they have been used; a view of them is used again."""
    bringing, host = torch.cuda.Stream(), pinned()
    for _ in range(3):
        with torch.cuda.stream(bringing):
            back = host.to("cuda", non_blocking=True)
        current().wait_stream(bringing)
        if records:
            back.record_stream(current())
        gradient = back.view(2, -1)
        bringing.wait_event(current().record_event())  # the node has run
        del back
        gradient.sum()
        del gradient


@versions(zeroed_behind_the_probe_wrong_803=(False,), zeroed_before_the_probe=(True,))
def zeroed_and_probed(waits: bool) -> None:
    target, source = torch.zeros(N, device="cuda"), torch.ones(N).pin_memory()
    with beside(waits=waits) as probe:
        target.copy_(source, non_blocking=True)
    probe.synchronize()


@versions(threads_with_a_stream_each_wrong_803=(False,), threads_with_a_stream_that_waits=(True,))
def threads_with_a_stream_each(waits: bool) -> None:
    tensors = [gpu() for _ in range(3)]

    def best(x: torch.Tensor) -> None:
        side = torch.cuda.Stream()
        if waits:
            side.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(side):
            torch.topk(x, 4)[0].min()

    threads = [threading.Thread(target=best, args=(tensor,)) for tensor in tensors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()


@versions(ingress_of_a_launched_round_wrong_802=(False,), ingress_of_each_round=(True,))
def ingress(own: bool) -> None:
    """A round is launched; what admits the next request clears the buffer that the round is copied from."""
    slots = [torch.zeros(8, dtype=torch.int64).pin_memory() for _ in range(2 if own else 1)]
    device = torch.zeros(8, dtype=torch.int64, device="cuda")
    slots[0].fill_(3)
    device.copy_(slots[0], non_blocking=True)
    slots[-1].zero_()
    slots[-1][0] = 1
    device.copy_(slots[-1], non_blocking=True)


# -- held against other code, and none ---------------------------------------------------------------


@pattern
def prefetched_and_dropped() -> None:
    """xmarre/ComfyUI-VDN-H3-Plus#2: nobody but the stream that made it has used it."""
    side, host = torch.cuda.Stream(), pinned()

    def fetch() -> tuple[Any, Any]:
        with torch.cuda.stream(side):
            return host.to("cuda", non_blocking=True), side.record_event()

    with ThreadPoolExecutor(1) as executor:
        for step in range(4):
            block, copied = executor.submit(fetch).result()
            if step % 2:
                current().wait_event(copied)
                block.record_stream(current())
                block.sum()
            del block


@ranks
def last_of_three_gathers_waited_for() -> None:
    """deepspeedai/DeepSpeed#8539: NCCL does the collectives of a group in order."""
    gathered = [torch.empty(2 * N, device="cuda") for _ in range(3)]
    works = [dist.all_gather_into_tensor(gathered_part, gpu(), async_op=True) for gathered_part in gathered]
    works[-1].wait()
    torch.stack(gathered).sum()

"""Asynchronous code as training scripts have it: right with all of its waits, wrong without one of them."""

from __future__ import annotations

import io
import queue
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from emulation.races.patterns.scaffold import N, beside, current, gpu, nothing, pinned, ranks, versions

Tensor = torch.Tensor

# -- input -------------------------------------------------------------------------------------------


class Prefetcher:
    """Copies and normalizes the next batch on a stream, with constants that were made on the default one."""

    def __init__(self, loader: Any, constants: Any, waits: bool = True, records: bool = True) -> None:
        self.loader, self.stream = iter(loader), torch.cuda.Stream()
        self.mean, self.deviation = constants()
        self.waits, self.records = waits, records
        self.preload()

    def preload(self) -> None:
        self.batch = next(self.loader, None)
        if self.batch is None:
            return
        with torch.cuda.stream(self.stream):
            self.images, self.labels = (tensor.cuda(non_blocking=True) for tensor in self.batch)
            self.images = self.images.float().sub_(self.mean).div_(self.deviation)

    def next(self) -> Any:
        if self.batch is None:
            return None
        if self.waits:
            current().wait_stream(self.stream)
        images, labels = self.images, self.labels
        if self.records:
            images.record_stream(current())
            labels.record_stream(current())
        self.preload()
        return images, labels


def sent() -> tuple[Tensor, Tensor]:
    """From ordinary memory: the CPU waits."""
    return torch.tensor([0.5]).cuda(), torch.tensor([0.2]).cuda()


def computed() -> tuple[Tensor, Tensor]:
    return torch.full((1,), 0.5, device="cuda"), torch.full((1,), 0.2, device="cuda")


@versions(
    batches_normalized=(sent,),
    batches_normalized_with_constants_under_way_wrong_803=(computed,),
    batches_normalized_not_waited_for_wrong_803=(sent, False),
    batches_normalized_not_recorded_wrong_804=(sent, True, False),
)
def batches_normalized(*choices: Any) -> None:
    data = torch.utils.data.TensorDataset(torch.ones(16, 8), torch.zeros(16, dtype=torch.int64))
    loader = torch.utils.data.DataLoader(data, 4, pin_memory=True)
    model = torch.nn.Linear(8, 2).cuda()
    prefetcher = Prefetcher(loader, *choices)
    while (batch := prefetcher.next()) is not None:
        torch.nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()


@versions(
    fed_by_a_thread=(True, True),
    fed_by_a_thread_event_not_awaited_wrong_803=(False, True),
    fed_by_a_thread_not_recorded_wrong_804=(True, False),
)
def fed_by_a_thread(waits: bool, records: bool) -> None:
    """A thread copies batches on its stream, and hands each on with an event."""
    ready = queue.Queue[Any](maxsize=2)

    def feed() -> None:
        side = torch.cuda.Stream()
        for _ in range(6):
            with torch.cuda.stream(side):
                ready.put((torch.randn(N).pin_memory().to("cuda", non_blocking=True), side.record_event()))
        ready.put(None)

    feeder = threading.Thread(target=feed)
    feeder.start()
    while (item := ready.get()) is not None:
        batch, copied = item
        if waits:
            current().wait_event(copied)
        if records:
            batch.record_stream(current())
        batch.sum()
        del batch, item
    feeder.join()


@versions(
    graph_fed_beside=(True, True),
    graph_fed_while_it_runs_wrong_803=(False, True),
    graph_replayed_before_it_is_fed_wrong_803=(True, False),
)
def graph_fed_beside(waits: bool, gathers: bool) -> None:
    """The static input of a graph is filled on a stream, straight from pinned memory."""
    source, graph, side = torch.zeros(N, device="cuda"), torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        result = source * 2
    side.wait_stream(current())
    for _ in range(3):
        if waits:
            side.wait_stream(current())
        with torch.cuda.stream(side):
            source.copy_(torch.randn(N).pin_memory(), non_blocking=True)
        if gathers:
            current().wait_stream(side)
        graph.replay()
        result.sum()


# -- logs and checkpoints ----------------------------------------------------------------------------


@versions(
    logged_in_a_ring=(True, True),
    logged_in_a_ring_read_too_early_wrong_801=(False, True),
    logged_in_a_ring_not_recorded_wrong_804=(True, False),
)
def logged_in_a_ring(waits: bool, records: bool) -> None:
    """Losses are copied on a stream into a ring of buffers, and read two steps later."""
    side, ring = torch.cuda.Stream(), [(pinned(1), torch.cuda.Event()) for _ in range(3)]
    waiting = deque[Any]()
    for step in range(7):
        loss = gpu(16).square().mean(0, keepdim=True)
        host, copied = ring[step % 3]
        with beside(side):
            host.copy_(loss, non_blocking=True)
            copied.record()
        if records:
            loss.record_stream(side)
        del loss
        waiting.append((host, copied))
        if len(waiting) == 3:
            before, done = waiting.popleft()
            if waits:
                done.synchronize()
            before.item()


@versions(
    checkpoint_staged=(True, True, True),
    checkpoint_staged_written_too_early_wrong_801=(False, True, True),
    checkpoint_staged_beside_the_step_wrong_803=(True, False, True),
    checkpoint_staged_before_its_values_wrong_803=(True, True, False),
)
def checkpoint_staged(synchronizes: bool, gathers: bool, waits: bool) -> None:
    """Weights are copied to pinned memory on a stream beside forward, and written by a thread."""
    model = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    side, staging = (
        torch.cuda.Stream(),
        {key: pinned(*tensor.shape) for key, tensor in model.state_dict().items()},
    )
    if not waits:
        side.wait_stream(current())
    with ThreadPoolExecutor(1) as executor:
        written: Any = executor.submit(nothing)
        for _ in range(3):
            written.result()
            with beside(side, waits):
                for key, tensor in model.state_dict().items():
                    staging[key].copy_(tensor, non_blocking=True)
                staged = side.record_event()
            model(gpu(4, 8)).sum().backward()

            def write(staged: Any = staged) -> None:
                if synchronizes:
                    staged.synchronize()
                torch.save(staging, io.BytesIO())

            written = executor.submit(write)
            if gathers:
                current().wait_event(staged)
            optimizer.step()
            optimizer.zero_grad()


# -- offloading --------------------------------------------------------------------------------------


class Kept(torch.autograd.graph.saved_tensors_hooks):
    """Activations go out and come back on a stream; what is under way is kept, and not recorded."""

    def __init__(self, out: bool = True, back: bool = True, keeps: bool = True) -> None:
        self.side, self.going, self.coming = torch.cuda.Stream(), deque[Any](), deque[Any]()
        self.waits, self.keeps = (out, back), keeps
        super().__init__(self.pack, self.unpack)

    def pack(self, tensor: Tensor) -> Any:
        if isinstance(tensor, torch.nn.Parameter) or tensor.dim() < 2:
            return tensor
        if self.waits[0]:
            self.side.wait_stream(current())
        while self.keeps and len(self.going) > 1:
            current().wait_event(self.going.popleft()[1])
        with torch.cuda.stream(self.side):
            host = torch.empty_like(tensor, device="cpu", pin_memory=True)
            host.copy_(tensor, non_blocking=True)
        if self.keeps:
            self.going.append((tensor, self.side.record_event()))
        return host

    def unpack(self, packed: Tensor) -> Tensor:
        if packed.is_cuda:
            return packed
        self.side.wait_stream(current())
        while len(self.coming) > 1:
            self.coming.popleft()
        with torch.cuda.stream(self.side):
            back = packed.to("cuda", non_blocking=True)
        if self.waits[1]:
            current().wait_stream(self.side)
        self.coming.append(back)
        return back


@versions(
    activations_kept=(),
    activations_kept_copied_too_early_wrong_803=(False,),
    activations_kept_used_too_early_wrong_803=(True, False),
    activations_let_go_of_wrong_804=(True, True, False),
)
def activations_kept(*choices: bool) -> None:
    layers = [torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(4)]
    model = torch.nn.Sequential(*layers).cuda()
    for _ in range(2):
        kept = Kept(*choices)
        with kept:
            loss = model(gpu(4, 8)).square().sum()
        loss.backward()
        current().wait_stream(kept.side)
        kept.going.clear()
        model.zero_grad()


@versions(
    optimizer_on_the_cpu=(True,),
    optimizer_on_the_cpu_gradients_under_way_wrong_801_802=(False,),
)
def optimizer_on_the_cpu(waits: bool) -> None:
    """Gradients go to the CPU on a stream, Adam runs there, and the weights come back.

    Who waits for the gradients has waited for the weights of the step before, on the same stream.
    """
    model, side = torch.nn.Linear(8, 8).cuda(), torch.cuda.Stream()
    weights = [parameter.detach().cpu().pin_memory() for parameter in model.parameters()]
    for weight in weights:
        weight.grad = torch.zeros_like(weight).pin_memory()
    optimizer = torch.optim.Adam(weights)
    for _ in range(2):
        model(gpu(4, 8)).sum().backward()
        with beside(side):
            torch._foreach_copy_(
                [parameter.grad for parameter in weights],
                [parameter.grad for parameter in model.parameters()],
                non_blocking=True,
            )
        if waits:
            side.synchronize()
        optimizer.step()
        with torch.no_grad(), torch.cuda.stream(side):
            for weight, own in zip(model.parameters(), weights, strict=True):
                weight.copy_(own, non_blocking=True)
        current().wait_stream(side)
        model.zero_grad(set_to_none=False)


@versions(
    layers_in_two_slots=(True, True),
    layers_in_two_slots_used_too_early_wrong_803=(False, True),
    layers_in_two_slots_refilled_too_early_wrong_803=(True, False),
)
def layers_in_two_slots(arrives: bool, free: bool) -> None:
    """Layers take turns in two slots on the GPU: the next is copied while this one computes."""
    hosts = [torch.randn(8, 8).pin_memory() for _ in range(5)]
    slots, side = [torch.empty(8, 8, device="cuda") for _ in range(2)], torch.cuda.Stream()
    filled, used = [torch.cuda.Event() for _ in slots], [torch.cuda.Event() for _ in slots]
    x = gpu(4, 8)
    side.wait_stream(current())

    def fill(layer: int) -> None:
        with torch.cuda.stream(side):
            if free:
                used[layer % 2].wait()
            slots[layer % 2].copy_(hosts[layer], non_blocking=True)
            filled[layer % 2].record()

    fill(0)
    for layer in range(5):
        if layer < 4:
            fill(layer + 1)
        if arrives:
            filled[layer % 2].wait()
        x = x @ slots[layer % 2]
        used[layer % 2].record()


# -- gradients ---------------------------------------------------------------------------------------


@versions(
    gradients_added_beside=(True, True),
    gradients_added_beside_too_early_wrong_803=(False, True),
    gradients_added_beside_used_too_early_wrong_803=(True, False),
)
def gradients_added_beside(waits: bool, gathers: bool) -> None:
    """Gradients of micro-batches are added up in float32 on a stream, beside the next backward."""
    model, side = torch.nn.Linear(8, 8).cuda().bfloat16(), torch.cuda.Stream()
    sums = [torch.zeros(parameter.shape, device="cuda") for parameter in model.parameters()]
    side.wait_stream(current())
    for _ in range(3):
        model(gpu(4, 8).bfloat16()).sum().backward()
        with beside(side, waits):
            for own, weight in zip(sums, model.parameters(), strict=True):
                assert weight.grad is not None
                own.add_(weight.grad)
                weight.grad.record_stream(side)
        model.zero_grad()
    if gathers:
        current().wait_stream(side)
    torch.nn.utils.get_total_norm(sums)


def reduced_by_a_hook(waits: bool) -> None:
    model: Any = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).cuda())

    def hook(state: Any, bucket: Any) -> Any:
        compressed = bucket.buffer().to(torch.bfloat16).div_(2)
        work = dist.all_reduce(compressed, async_op=True)
        if waits:
            return work.get_future().then(lambda done: bucket.buffer().copy_(done.value()[0]))
        done: Any = torch.futures.Future()
        done.set_result(bucket.buffer().copy_(compressed))
        return done

    hook.__annotations__.clear()  # which torch would have named as its own
    model.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(gpu(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@ranks
def reduced_by_a_hook_of_ddp() -> None:
    reduced_by_a_hook(True)


@ranks
def reduced_by_a_hook_of_ddp_wrong_805() -> None:
    reduced_by_a_hook(False)


def reduced_for_another_stream(joins: Any) -> None:
    """Who waits for the collective is a stream beside; the default one waits for that."""
    grad, side = gpu(), torch.cuda.Stream()
    work = dist.all_reduce(grad, async_op=True)
    with torch.cuda.stream(side):
        work.wait()
        grad.div_(2)
    joins(side)
    grad.norm()


@ranks
def reduced_for_a_stream_beside() -> None:
    reduced_for_another_stream(lambda side: current().wait_stream(side))


@ranks
def reduced_for_a_stream_beside_wrong_803() -> None:
    reduced_for_another_stream(nothing)


def exchanged(waits: bool) -> None:
    """A stage of a pipeline sends what it has computed, and receives the next micro-batch meanwhile."""
    stage, source = torch.nn.Linear(8, 8).cuda(), [torch.empty(4, 8, device="cuda") for _ in range(2)]
    works: list[Any] = []
    for step in range(4):
        coming = dist.P2POp(dist.irecv, source[(step + 1) % 2], 1)
        if waits:
            for work in works:
                work.wait()
        result = stage(source[step % 2])
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, result.detach(), 1), coming])
    for work in works:
        work.wait()


@ranks
def exchanged_with_the_next_stage() -> None:
    exchanged(True)


@ranks
def exchanged_with_the_next_stage_wrong_805() -> None:
    exchanged(False)

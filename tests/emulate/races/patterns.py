"""Asynchronous code as people write it, wrong and right, in pairs.

A function named ``…_wrong_801`` has races of that rule, and of no rule that its name does not say; any other
has none. They run on one emulated device unless ``RANKS`` names them.
"""

from __future__ import annotations

import copy
import ctypes
import io
import pickle
import threading
from collections import deque
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from gapless import loading, ops

N = 1024
RANKS: set[str] = set()


def ranks(function: Any) -> Any:
    """Runs as one of two ranks."""
    RANKS.add(function.__name__)
    return function


def gpu(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (N,)), device="cuda")


def pinned(*shape: int) -> torch.Tensor:
    return torch.empty(*(shape or (N,)), pin_memory=True)


def current() -> Any:
    return torch.cuda.current_stream()


# -- a: a copy to the CPU is read before it is there -------------------------------------------------


def copy_to_cpu_read_wrong_801() -> None:
    host = gpu().to("cpu", non_blocking=True)
    host.sum()


def copy_to_cpu_read_synchronized() -> None:
    host = gpu().to("cpu", non_blocking=True)
    torch.cuda.synchronize()
    host.sum()


def copy_to_cpu_read_behind_a_read_of_the_stream() -> None:
    x = gpu()
    host = x.to("cpu", non_blocking=True)
    x.sum().item()  # waits for the stream that copies
    host.sum()


def copy_to_cpu_blocking() -> None:
    gpu().to("cpu").sum()


def small_copy_waits_for_nothing_wrong_801() -> None:
    host = gpu().to("cpu", non_blocking=True)
    torch.zeros(4).to("cuda", non_blocking=True)  # from ordinary memory: taken along, behind the other copy
    host.sum()


def large_copy_waits() -> None:
    host = gpu().to("cpu", non_blocking=True)
    torch.zeros(1 << 18).to("cuda", non_blocking=True)  # from ordinary memory: returns behind the other copy
    host.sum()


def small_copy_source_changed() -> None:
    values = torch.zeros(4)
    values.to("cuda", non_blocking=True)
    values.fill_(1)


def gathered_copy_source_changed() -> None:
    rows = pinned(8).view(2, 4)
    rows[:, :2].to("cuda", non_blocking=True)  # goes through a temporary of its own
    rows.fill_(1)


def item_wrong_801() -> None:
    host = pinned(1)
    host.copy_(gpu(1), non_blocking=True)
    host.item()


def item_behind_event() -> None:
    host, copied = pinned(1), torch.cuda.Event()
    host.copy_(gpu(1), non_blocking=True)
    copied.record()
    copied.synchronize()
    host.item()


def tolist_wrong_801() -> None:
    host = pinned(4)
    host.copy_(gpu(4), non_blocking=True)
    host.tolist()


def tolist_polled() -> None:
    host, copied = pinned(4), torch.cuda.Event()
    host.copy_(gpu(4), non_blocking=True)
    copied.record()
    while not copied.query():
        pass
    host.tolist()


def printed_wrong_801() -> None:
    str(gpu(2).to("cpu", non_blocking=True))


def branch_wrong_801() -> None:
    if gpu(1).isnan().to("cpu", non_blocking=True):
        raise ValueError


def as_argument_wrong_801() -> None:
    """A number on the CPU is read when the kernel is launched."""
    scale = gpu(1).sum().to("cpu", non_blocking=True)
    gpu() * scale


def as_argument_synchronized() -> None:
    scale = gpu(1).sum().to("cpu", non_blocking=True)
    current().synchronize()
    gpu() * scale


def pageable_target() -> None:
    host = torch.empty(N)
    host.copy_(gpu(), non_blocking=True)
    host.sum()


def view_of_the_copy_wrong_801() -> None:
    host = pinned(2, N)
    host[0].copy_(gpu(), non_blocking=True)
    host.t()[:, 0].max()


def other_row_of_the_buffer() -> None:
    host = pinned(2, N)
    host[1].zero_()
    host[0].copy_(gpu(), non_blocking=True)
    host[1].sum()


def numpy_view_taken_before_wrong_801() -> None:
    host = pinned(4)
    seen = host.numpy()
    host.copy_(gpu(4), non_blocking=True)
    seen.sum()


def numpy_function_wrong_801() -> None:
    host = pinned(4)
    host.copy_(gpu(4), non_blocking=True)
    np.mean(host.numpy())


def numpy_scalar_wrong_801() -> None:
    host = pinned(4)
    seen = host.numpy()
    host.copy_(gpu(4), non_blocking=True)
    float(seen[2])


def numpy_row_wrong_801() -> None:
    host = pinned(2, 4)
    rows = list(host.numpy())
    host.copy_(gpu(2, 4), non_blocking=True)
    rows[0] + 1


def numpy_view_synchronized() -> None:
    host = pinned(4)
    seen = host.numpy()
    host.copy_(gpu(4), non_blocking=True)
    torch.cuda.current_stream().synchronize()
    total = float(seen.sum()) + float(np.mean(seen)) + seen[0]
    np.add(seen, total, out=seen)
    seen.reshape(2, 2)[0, 0].item()


def numpy_copy_taken_before() -> None:
    host = torch.zeros(4).pin_memory()
    kept = host.numpy().copy()
    host.copy_(gpu(4), non_blocking=True)
    kept.sum()


def state_dict_saved_wrong_801() -> None:
    model = torch.nn.Linear(4, 4).cuda()
    state = {name: one.to("cpu", non_blocking=True) for name, one in model.state_dict().items()}
    torch.save(state, io.BytesIO())


def state_dict_saved_synchronized() -> None:
    model = torch.nn.Linear(4, 4).cuda()
    state = {name: one.to("cpu", non_blocking=True) for name, one in model.state_dict().items()}
    torch.cuda.synchronize()
    torch.save(state, io.BytesIO())


def state_dict_pickled_wrong_801() -> None:
    pickle.dumps(gpu().to("cpu", non_blocking=True))


def state_dict_copied_wrong_801() -> None:
    copy.deepcopy({"weight": gpu().to("cpu", non_blocking=True)})


def state_dict_cloned_wrong_801() -> None:
    gpu().to("cpu", non_blocking=True).clone()


def state_dict_written_by_a_thread_wrong_801() -> None:
    state = {"weight": gpu().to("cpu", non_blocking=True)}
    writer = threading.Thread(target=torch.save, args=(state, io.BytesIO()))
    writer.start()
    writer.join()


def state_dict_written_by_a_thread_behind_event() -> None:
    state, copied = {"weight": gpu().to("cpu", non_blocking=True)}, torch.cuda.Event()
    copied.record()

    def write() -> None:
        copied.synchronize()
        torch.save(state, io.BytesIO())

    writer = threading.Thread(target=write)
    writer.start()
    writer.join()


def shapes_of_a_copy_under_way() -> None:
    host = gpu().to("cpu", non_blocking=True)
    torch.empty_like(host)
    torch.zeros_like(host).sum()
    host.new_ones(3).sum()
    if host.is_pinned() and len(host) and host[2:].shape:
        host.view(-1, 2).t()


def back_and_forth_on_one_stream() -> None:
    """From the GPU and back: the stream orders both."""
    host = gpu().to("cpu", non_blocking=True)
    host.to("cuda", non_blocking=True).sum().item()


# -- b: a buffer is refilled while it is copied ------------------------------------------------------


def staging_refilled_wrong_802() -> None:
    staging = pinned()
    for step in range(2):
        staging.fill_(step)
        staging.to("cuda", non_blocking=True)


def staging_refilled_with_event() -> None:
    staging, copied = pinned(), torch.cuda.Event()
    for step in range(3):
        copied.synchronize()
        staging.fill_(step)
        staging.to("cuda", non_blocking=True)
        copied.record()


def staging_in_turn() -> None:
    staging = [pinned() for _ in range(2)]
    copied = [torch.cuda.Event() for _ in staging]
    for step in range(5):
        copied[step % 2].synchronize()
        staging[step % 2].fill_(step)
        staging[step % 2].to("cuda", non_blocking=True)
        copied[step % 2].record()


def staging_in_turn_event_too_early_wrong_802() -> None:
    staging = [pinned() for _ in range(2)]
    copied = [torch.cuda.Event() for _ in staging]
    for step in range(5):
        copied[step % 2].synchronize()
        staging[step % 2].fill_(step)
        copied[step % 2].record()
        staging[step % 2].to("cuda", non_blocking=True)


def staging_blocking_copy() -> None:
    staging = pinned()
    for step in range(3):
        staging.fill_(step)
        staging.to("cuda")


def staging_written_through_numpy_wrong_802() -> None:
    staging = torch.zeros(N).pin_memory()
    view = staging.numpy()
    for step in range(2):
        view[:] = step
        staging.to("cuda", non_blocking=True)


def staging_written_by_c_wrong_802() -> None:
    staging = torch.zeros(N).pin_memory()
    staging.to("cuda", non_blocking=True)
    ctypes.memset(staging.data_ptr(), 1, 4 * N)
    torch.cuda.synchronize()


def staging_written_by_c_synchronized() -> None:
    staging = torch.zeros(N).pin_memory()
    staging.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    ctypes.memset(staging.data_ptr(), 1, 4 * N)
    torch.cuda.synchronize()


def source_freed_in_flight() -> None:
    """Memory of pinned tensors is kept by PyTorch until their copies are done."""
    for _ in range(3):
        torch.randn(N).pin_memory().to("cuda", non_blocking=True)


def target_overwritten_in_flight_wrong_802() -> None:
    host = pinned()
    host.copy_(gpu(), non_blocking=True)
    host.zero_()


def pageable_source_refilled() -> None:
    staging = torch.empty(N)
    for step in range(3):
        staging.fill_(step)
        staging.to("cuda", non_blocking=True)


def optimizer_on_the_cpu_wrong_802() -> None:
    """Offloaded parameters are updated while they are sent back."""
    host = torch.zeros(N).pin_memory()
    for _ in range(2):
        host.to("cuda", non_blocking=True).sum()
        host.add_(1)


def optimizer_on_the_cpu_synchronized() -> None:
    host = torch.zeros(N).pin_memory()
    for _ in range(2):
        host.to("cuda", non_blocking=True).sum().item()
        host.add_(1)


# -- c: two streams ----------------------------------------------------------------------------------


def made_here_used_there_wrong_803() -> None:
    x = gpu()
    with torch.cuda.stream(torch.cuda.Stream()):
        x + 1


def made_here_used_there_waiting() -> None:
    x, side = gpu(), torch.cuda.Stream()
    side.wait_stream(current())
    with torch.cuda.stream(side):
        x + 1
    current().wait_stream(side)


def made_here_used_there_synchronized() -> None:
    x = gpu()
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        x + 1


def made_there_used_here_wrong_803() -> None:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        y = gpu()
    y.sum()


def made_there_read_here_wrong_803() -> None:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        y = gpu()
    y.sum().item()  # waits for the stream that is current, too late


def made_there_waited_for_by_the_cpu() -> None:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        y = gpu()
    side.synchronize()
    y.sum().item()


def copied_there_used_here_wrong_803() -> None:
    host, side = torch.randn(N).pin_memory(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = host.to("cuda", non_blocking=True)
    x.sum()


def copied_there_waiting() -> None:
    host, side = torch.randn(N).pin_memory(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = host.to("cuda", non_blocking=True)
    current().wait_stream(side)
    x.record_stream(current())
    x.sum()


def overwritten_while_read_wrong_803() -> None:
    x, side = gpu(), torch.cuda.Stream()
    side.wait_stream(current())
    with torch.cuda.stream(side):
        y = x + 1
    x.zero_()
    current().wait_stream(side)
    y.sum()


def both_read() -> None:
    x, side = gpu(), torch.cuda.Stream()
    side.wait_stream(current())
    with torch.cuda.stream(side):
        y = x + 1
    x.sum()
    current().wait_stream(side)
    y.sum()


def only_the_shape_is_used() -> None:
    x = gpu()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.zeros_like(x) + torch.randn_like(x) + x.new_ones(N)


def halves_of_a_buffer() -> None:
    out, side = torch.empty(2, N, device="cuda"), torch.cuda.Stream()
    side.wait_stream(current())
    with torch.cuda.stream(side):
        out[0].normal_()
    out[1].normal_()
    current().wait_stream(side)
    out.sum()


def columns_of_a_buffer() -> None:
    out, side = torch.zeros(8, 8, device="cuda"), torch.cuda.Stream()
    side.wait_stream(current())
    with torch.cuda.stream(side):
        out[:, :4].normal_()
    out[:, 4:].normal_()
    current().wait_stream(side)
    out.sum()


def columns_of_a_buffer_wrong_803() -> None:
    out, side = torch.zeros(8, 8, device="cuda"), torch.cuda.Stream()
    side.wait_stream(current())
    with torch.cuda.stream(side):
        out[:, :5].normal_()
    out[:, 4:].normal_()
    current().wait_stream(side)


def copied_from_device_there_to_pinned_wrong_803() -> None:
    """Two streams and one pinned buffer."""
    host, side, x = pinned(), torch.cuda.Stream(), gpu()
    side.wait_stream(current())
    with torch.cuda.stream(side):
        host.copy_(x, non_blocking=True)
    y = host.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    y.sum()


def chain_of_three_streams() -> None:
    a, b, x = torch.cuda.Stream(), torch.cuda.Stream(), gpu()
    a.wait_stream(current())
    with torch.cuda.stream(a):
        y = x + 1
    b.wait_stream(a)
    with torch.cuda.stream(b):
        z = y + x  # behind both: waiting is passed on
    current().wait_stream(b)
    (x + y + z).sum()


def chain_of_three_streams_broken_wrong_803() -> None:
    a, b, x = torch.cuda.Stream(), torch.cuda.Stream(), gpu()
    a.wait_stream(current())
    b.wait_stream(current())
    with torch.cuda.stream(a):
        y = x + 1
    with torch.cuda.stream(b):
        z = y + x
    current().wait_stream(a)
    current().wait_stream(b)
    z.sum()


def counter_of_two_threads_wrong_803() -> None:
    counter = torch.zeros(1, device="cuda")
    torch.cuda.synchronize()

    def count() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            counter.add_(1)

    threads = [threading.Thread(target=count) for _ in range(2)]
    for one in threads:
        one.start()
        one.join()
    torch.cuda.synchronize()


def external_stream_wrong_803() -> None:
    side = torch.cuda.Stream()
    again = torch.cuda.ExternalStream(side.cuda_stream)
    with torch.cuda.stream(again):
        y = gpu()
    y.sum()


def one_stream_all_along() -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        model = torch.nn.Linear(8, 8).cuda()
        model(gpu(4, 8)).sum().backward()
        model.weight.grad.norm().item()


# -- d: freed while in use ---------------------------------------------------------------------------


def freed_in_use_wrong_804() -> None:
    x, side = gpu(), torch.cuda.Stream()
    side.wait_stream(current())
    with torch.cuda.stream(side):
        y = x + 1
    del x
    gpu()
    current().wait_stream(side)
    y.sum()


def freed_in_use_recorded() -> None:
    x, side = gpu(), torch.cuda.Stream()
    side.wait_stream(current())
    with torch.cuda.stream(side):
        y = x + 1
    x.record_stream(side)
    del x
    gpu()
    current().wait_stream(side)
    y.sum()


def freed_behind_the_other_stream() -> None:
    x, side = gpu(), torch.cuda.Stream()
    side.wait_stream(current())
    with torch.cuda.stream(side):
        y = x + 1
    current().wait_stream(side)
    del x
    gpu()
    y.sum()


def freed_before_waiting_taken_after() -> None:
    x, side = gpu(), torch.cuda.Stream()
    side.wait_stream(current())
    with torch.cuda.stream(side):
        y = x + 1
    del x
    current().wait_stream(side)
    gpu()
    y.sum()


def freed_in_use_and_nothing_taken() -> None:
    x, side = gpu(), torch.cuda.Stream()
    side.wait_stream(current())
    with torch.cuda.stream(side):
        x + 1
    del x


def temporary_in_use_wrong_804() -> None:
    """What was made for the call alone is gone when it returns."""
    side, x = torch.cuda.Stream(), gpu()
    for _ in range(2):
        side.wait_stream(current())
        with torch.cuda.stream(side):
            y = torch.zeros_like(x)
        current().wait_stream(side)
        (x + y).sum()  # the default stream reads memory of the other one
        del y
        with torch.cuda.stream(side):
            z = torch.ones_like(x)
        current().wait_stream(side)
        z.sum()
        z.record_stream(current())
        del z


def storage_given_up_wrong_804() -> None:
    x, side = gpu(), torch.cuda.Stream()
    side.wait_stream(current())
    with torch.cuda.stream(side):
        y = x + 1
    x.untyped_storage().resize_(0)
    gpu()
    current().wait_stream(side)
    y.sum()


def prefetched(host: Any, records: bool, waits: bool) -> None:
    """The loop of a prefetcher: the next batch is copied while this one is used."""
    side = torch.cuda.Stream()
    model = torch.nn.Linear(32, 8).cuda()

    def load() -> torch.Tensor:
        with torch.cuda.stream(side):
            return host().pin_memory().to("cuda", non_blocking=True) * 2

    following = load()
    for _ in range(4):
        if waits:
            current().wait_stream(side)
        batch = following
        if records:
            batch.record_stream(current())
        following = load()
        model(batch).sum().backward()


def prefetcher() -> None:
    prefetched(lambda: torch.randn(64, 32), True, True)


def prefetcher_without_record_wrong_804() -> None:
    prefetched(lambda: torch.randn(64, 32), False, True)


def prefetcher_without_wait_wrong_803() -> None:
    prefetched(lambda: torch.randn(64, 32), True, False)


# -- e: events that do not stand for what they should ------------------------------------------------


def event_too_early_wrong_803() -> None:
    side, ready, x = torch.cuda.Stream(), torch.cuda.Event(), gpu()
    side.wait_stream(current())
    with torch.cuda.stream(side):
        ready.record()
        y = x + 1
    current().wait_event(ready)
    y.sum()


def event_behind() -> None:
    side, ready, x = torch.cuda.Stream(), torch.cuda.Event(), gpu()
    side.wait_stream(current())
    with torch.cuda.stream(side):
        y = x + 1
        ready.record()
    current().wait_event(ready)
    y.sum()


def event_in_the_wrong_stream_wrong_803() -> None:
    side, ready, x = torch.cuda.Stream(), torch.cuda.Event(), gpu()
    side.wait_stream(current())
    with torch.cuda.stream(side):
        y = x + 1
    ready.record()  # in the stream that is current here
    current().wait_event(ready)
    y.sum()


def event_never_recorded_wrong_803() -> None:
    side, ready = torch.cuda.Stream(), torch.cuda.Event()
    with torch.cuda.stream(side):
        y = gpu()
    current().wait_event(ready)
    y.sum()


def event_waited_for_before_it_is_recorded_wrong_803() -> None:
    side, ready = torch.cuda.Stream(), torch.cuda.Event()
    current().wait_event(ready)
    with torch.cuda.stream(side):
        y = gpu()
        ready.record()
    y.sum()


def event_of_a_copy_too_early_wrong_801() -> None:
    host, copied = pinned(1), torch.cuda.Event()
    copied.record()
    host.copy_(gpu(1), non_blocking=True)
    copied.synchronize()
    host.item()


def events_in_a_ring() -> None:
    """In the first turn the events have not been recorded: that is fine."""
    side, out = torch.cuda.Stream(), [torch.empty(N, device="cuda") for _ in range(2)]
    side.wait_stream(current())
    filled = [torch.cuda.Event() for _ in out]
    used = [torch.cuda.Event() for _ in out]
    for step in range(6):
        slot = step % 2
        with torch.cuda.stream(side):
            side.wait_event(used[slot])
            out[slot].fill_(step)
            filled[slot].record()
        current().wait_event(filled[slot])
        out[slot].sum()
        used[slot].record()


def events_in_a_ring_never_recorded_wrong_803() -> None:
    side, out = torch.cuda.Stream(), [torch.empty(N, device="cuda") for _ in range(2)]
    side.wait_stream(current())
    filled = [torch.cuda.Event() for _ in out]
    used = [torch.cuda.Event() for _ in out]
    for step in range(6):
        slot = step % 2
        with torch.cuda.stream(side):
            side.wait_event(used[slot])
            out[slot].fill_(step)
            filled[slot].record()
        current().wait_event(filled[slot])
        out[slot].sum()


# -- g: collectives ----------------------------------------------------------------------------------


def group() -> None:
    if not dist.is_initialized():
        dist.init_process_group("nccl")


@ranks
def reduced_and_used_wrong_805() -> None:
    group()
    x = gpu()
    work = dist.all_reduce(x, async_op=True)
    x.sum()
    work.wait()


@ranks
def reduced_and_waited_for() -> None:
    group()
    x = gpu()
    dist.all_reduce(x, async_op=True).wait()
    x.sum()
    dist.all_reduce(x)
    x.sum()


@ranks
def gathered_and_used_wrong_805() -> None:
    group()
    parts = [torch.empty(N, device="cuda") for _ in range(2)]
    work = dist.all_gather(parts, gpu(), async_op=True)
    torch.cat(parts)
    work.wait()


@ranks
def gathered_into_tensor_given_overwritten_wrong_805() -> None:
    group()
    x, out = gpu(), torch.empty(2 * N, device="cuda")
    work = dist.all_gather_into_tensor(out, x, async_op=True)
    x.zero_()
    work.wait()
    out.sum()


@ranks
def gathered_into_tensor_given_read() -> None:
    group()
    x, out = gpu(), torch.empty(2 * N, device="cuda")
    work = dist.all_gather_into_tensor(out, x, async_op=True)
    x.sum()
    work.wait()
    out.sum()


@ranks
def scattered_waited_for_on_another_stream_wrong_805() -> None:
    group()
    x, out, side = gpu(2 * N), torch.empty(N, device="cuda"), torch.cuda.Stream()
    work = dist.reduce_scatter_tensor(out, x, async_op=True)
    with torch.cuda.stream(side):
        work.wait()
    out.sum()


@ranks
def reduced_on_a_stream_of_its_own() -> None:
    group()
    x, side = gpu(), torch.cuda.Stream()
    side.wait_stream(current())
    with torch.cuda.stream(side):
        dist.all_reduce(x)
    current().wait_stream(side)
    x.sum()


@ranks
def reduced_on_a_stream_of_its_own_wrong_803() -> None:
    group()
    x, side = gpu(), torch.cuda.Stream()
    side.wait_stream(current())
    with torch.cuda.stream(side):
        dist.all_reduce(x)
    x.sum()


@ranks
def buckets_waited_for_at_the_end() -> None:
    group()
    grads = [gpu() for _ in range(3)]
    works = [dist.all_reduce(one, async_op=True) for one in grads]
    for one in works:
        one.wait()
    torch.cat(grads).norm()


# -- k: backward -------------------------------------------------------------------------------------


def hooked(waits: bool, gathers: bool = True) -> None:
    side, model = torch.cuda.Stream(), torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def hook(parameter: torch.Tensor) -> None:
        if waits:
            side.wait_stream(current())
        with torch.cuda.stream(side):
            parameter.grad.mul_(0.5)  # type: ignore[union-attr]

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)
    for _ in range(2):
        model(gpu(4, 8)).sum().backward()
        if gathers:
            current().wait_stream(side)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def gradient_on_a_side_stream() -> None:
    hooked(True)


def gradient_on_a_side_stream_not_waiting_wrong_803() -> None:
    hooked(False)


def gradient_on_a_side_stream_not_waited_for_wrong_803() -> None:
    hooked(True, gathers=False)


def forward_on_two_streams() -> None:
    """The engine waits between the streams of forward's nodes by itself."""
    side, one, two = torch.cuda.Stream(), torch.nn.Linear(8, 8).cuda(), torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.Adam([*one.parameters(), *two.parameters()])
    for _ in range(3):
        x = gpu(4, 8)
        side.wait_stream(current())
        with torch.cuda.stream(side):
            a = torch.relu(one(x))
        x.record_stream(side)
        b = two(x)
        current().wait_stream(side)
        a.record_stream(current())
        (a + b).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def forward_on_two_streams_joined_too_late_wrong_803() -> None:
    side, one, x = torch.cuda.Stream(), torch.nn.Linear(8, 8).cuda(), gpu(4, 8)
    side.wait_stream(current())
    with torch.cuda.stream(side):
        a = torch.relu(one(x))
    a.sum().backward()


def prefetch_beside_backward_wrong_803() -> None:
    """What backward waits for has nothing to do with the copy beside it."""
    side, model = torch.cuda.Stream(), torch.nn.Linear(8, 8).cuda()
    batch = gpu(4, 8)
    for _ in range(2):
        with torch.cuda.stream(side):
            following = torch.randn(4, 8).pin_memory().to("cuda", non_blocking=True)
        model(batch).sum().backward()
        following.record_stream(current())
        batch = following


# -- l: offloading -----------------------------------------------------------------------------------


class Offloaded(torch.autograd.graph.saved_tensors_hooks):
    """What forward keeps goes to pinned memory on a stream, and comes back on it."""

    def __init__(self, side: Any, waits: bool, returns: bool) -> None:
        def pack(tensor: torch.Tensor) -> Any:
            if not tensor.is_cuda or isinstance(tensor, torch.nn.Parameter):
                return tensor
            if waits:
                side.wait_stream(current())
            with torch.cuda.stream(side):
                host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                host.copy_(tensor, non_blocking=True)
            tensor.record_stream(side)
            return host

        def unpack(packed: Any) -> torch.Tensor:
            if packed.is_cuda:
                return packed
            with torch.cuda.stream(side):
                back = packed.to("cuda", non_blocking=True)
            if returns:
                current().wait_stream(side)
            back.record_stream(current())
            return back

        super().__init__(pack, unpack)


def offloading(waits: bool = True, returns: bool = True) -> None:
    side = torch.cuda.Stream()
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8)).cuda()
    for _ in range(2):
        x = gpu(4, 8)
        with Offloaded(side, waits, returns):
            loss = model(x).square().sum()
        loss.backward()
        model.zero_grad()


def activations_offloaded() -> None:
    offloading()


def activations_offloaded_not_waiting_wrong_803() -> None:
    offloading(waits=False)


def activations_brought_back_not_waiting_wrong_803() -> None:
    offloading(returns=False)


def offloaded_by_torch() -> None:
    model = torch.nn.Linear(8, 8).cuda()
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        loss = model(gpu(4, 8)).square().sum()
    loss.backward()


# -- others ------------------------------------------------------------------------------------------


def average(waits: bool, gathers: bool) -> None:
    """An exponential moving average on a stream of its own."""
    side, model = torch.cuda.Stream(), torch.nn.Linear(8, 8).cuda()
    kept = [one.detach().clone() for one in model.parameters()]
    side.wait_stream(current())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(gpu(4, 8)).sum().backward()
        if gathers:
            current().wait_stream(side)
        optimizer.step()
        optimizer.zero_grad()
        if waits:
            side.wait_stream(current())
        with torch.cuda.stream(side):
            torch._foreach_lerp_(kept, [one.detach() for one in model.parameters()], 0.1)


def average_beside() -> None:
    average(True, True)


def average_beside_not_waiting_wrong_803() -> None:
    average(False, True)


def average_beside_parameters_changed_wrong_803() -> None:
    average(True, False)


def metrics_read_a_step_later() -> None:
    side, waiting = torch.cuda.Stream(), deque[Any]()
    for _ in range(4):
        loss = gpu(16).mean()
        side.wait_stream(current())
        with torch.cuda.stream(side):
            host = loss.to("cpu", non_blocking=True)
            copied = torch.cuda.Event()
            copied.record()
        loss.record_stream(side)
        waiting.append((host, copied))
        if len(waiting) > 1:
            before, done = waiting.popleft()
            done.synchronize()
            before.item()


def metrics_read_a_step_later_wrong_801() -> None:
    waiting = deque[Any]()
    for _ in range(4):
        waiting.append(gpu(16).mean().to("cpu", non_blocking=True))
        if len(waiting) > 1:
            waiting.popleft().item()


# -- from the field: what other projects have found in their own code, rebuilt small -----------------------


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


def gradient_buckets_in_turn() -> None:
    buckets(True)


def gradient_buckets_in_turn_wrong_803() -> None:
    buckets(False)


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


def weights_stashed_recorded() -> None:
    weights_stashed(True)


def weights_stashed_wrong_804() -> None:
    weights_stashed(False)


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


def batch_buffer_given_back_behind_its_copy() -> None:
    batch_buffers_on_the_gpu(True)


def batch_buffer_given_back_too_early_wrong_803() -> None:
    batch_buffers_on_the_gpu(False)


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


def cache_backed_up() -> None:
    cache_written_back(True)


def cache_backed_up_too_early_wrong_803() -> None:
    cache_written_back(False)


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


def layer_prefetched_for_the_stream_that_computes() -> None:
    layers_prefetched(lambda compute: compute)


def layer_prefetched_for_the_default_stream_wrong_803() -> None:
    layers_prefetched(lambda compute: torch.cuda.default_stream())


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


def tokens_read_behind_their_event() -> None:
    tokens_of_the_last_step(True)


def tokens_read_without_their_event_wrong_801() -> None:
    tokens_of_the_last_step(False)


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


def inputs_prepared_in_two_buffers() -> None:
    inputs_prepared(2)


def inputs_prepared_in_one_buffer_wrong_802() -> None:
    inputs_prepared(1)


@ranks
def gradients_reduced_in_hooks_wrong_805() -> None:
    group()
    model, works = torch.nn.Linear(8, 8).cuda(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda one: works.append(dist.all_reduce(one.grad, async_op=True))
        )
    model(gpu(4, 8)).sum().backward()
    optimizer.step()
    for work in works:
        work.wait()


@ranks
def gradients_reduced_in_hooks() -> None:
    group()
    model, works = torch.nn.Linear(8, 8).cuda(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda one: works.append(dist.all_reduce(one.grad, async_op=True))
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
    group()
    works = [dist.isend(gpu() * 2, dst=1) for _ in range(3)]
    works.append(dist.all_reduce(gpu() + 1, async_op=True))
    gpu()
    for work in works:
        work.wait()


@ranks
def wrapped_by_ddp() -> None:
    group()
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
    group()
    x = torch.zeros(N, device="cuda")
    work = dist.irecv(x, src=1)
    x.sum()
    work.wait()


@ranks
def received_and_waited_for() -> None:
    group()
    x = torch.zeros(N, device="cuda")
    sent = dist.isend(gpu(), dst=1)
    dist.irecv(x, src=1).wait()
    x.sum()
    sent.wait()


def own_tools() -> None:
    log, pending = ops.LogBuffer(), []
    batches = [torch.randn(4, 8) for _ in range(3)]
    for batch in loading.DevicePrefetcher(batches, "cuda"):
        log.add(loss=batch.mean())
        pending.append(ops.read_later(loss=batch.sum()))
        ops.to_device(torch.randn(4), "cuda", stream=torch.cuda.Stream()).sum()
    log.read().result()
    for one in pending:
        if one.ready():
            one.result()["loss"].item()

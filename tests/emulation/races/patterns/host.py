"""Copies between the CPU and the GPU: read before they are there, overwritten before they are done."""

from __future__ import annotations

import copy
import ctypes
import io
import pickle
import threading
from typing import Any

import numpy as np
import torch
from emulation.races.patterns.scaffold import N, current, gpu, nothing, pattern, pinned, versions

Tensor = torch.Tensor

# -- a copy to the CPU is read before it is there ----------------------------------------------------


def raised(host: Tensor) -> None:
    if host:
        raise ValueError


@versions(
    copy_to_cpu_read_wrong_801=(nothing, Tensor.sum),
    copy_to_cpu_read_synchronized=(torch.cuda.synchronize, Tensor.sum),
    printed_wrong_801=(nothing, str),
    branch_wrong_801=(nothing, raised),
    state_dict_pickled_wrong_801=(nothing, pickle.dumps),
    state_dict_copied_wrong_801=(nothing, lambda host: copy.deepcopy({"weight": host})),
    state_dict_cloned_wrong_801=(nothing, Tensor.clone),
)
def copy_to_cpu(waits: Any, reads: Any) -> None:
    host = torch.zeros(1, device="cuda").to("cpu", non_blocking=True)
    waits()
    reads(host)


def synchronized(copied: Any) -> None:
    copied.synchronize()


def polled(copied: Any) -> None:
    while not copied.query():
        pass


@versions(
    item_wrong_801=(nothing, Tensor.item),
    item_behind_event=(synchronized, Tensor.item),
    tolist_wrong_801=(nothing, Tensor.tolist),
    tolist_polled=(polled, Tensor.tolist),
)
def copy_into_pinned(waits: Any, reads: Any) -> None:
    host, copied = pinned(1), torch.cuda.Event()
    host.copy_(gpu(1), non_blocking=True)
    copied.record()
    waits(copied)
    reads(host)


@versions(
    as_argument_wrong_801=(nothing,),
    as_argument_synchronized=(lambda: current().synchronize(),),
)
def as_argument(waits: Any) -> None:
    """A number on the CPU is read when the kernel is launched."""
    scale = gpu(1).sum().to("cpu", non_blocking=True)
    waits()
    gpu() * scale


@versions(
    numpy_view_taken_before_wrong_801=(lambda view: view.sum(),),
    numpy_function_wrong_801=(np.mean,),
    numpy_scalar_wrong_801=(lambda view: float(view[0, 1]),),
    numpy_row_wrong_801=(lambda view: next(iter(view)) + 1,),
)
def numpy_view(reads: Any) -> None:
    host = pinned(2, 4)
    view = host.numpy()
    host.copy_(gpu(2, 4), non_blocking=True)
    reads(view)


@versions(
    small_copy_waits_for_nothing_wrong_801=(4,),  # taken along, behind the other copy
    large_copy_waits=(1 << 18,),  # returns behind the other copy
)
def copy_from_ordinary_memory(size: int) -> None:
    host = gpu().to("cpu", non_blocking=True)
    torch.zeros(size).to("cuda", non_blocking=True)
    host.sum()


@versions(
    state_dict_saved_wrong_801=(nothing,),
    state_dict_saved_synchronized=(torch.cuda.synchronize,),
)
def state_dict_saved(waits: Any) -> None:
    model = torch.nn.Linear(4, 4).cuda()
    state = {name: tensor.to("cpu", non_blocking=True) for name, tensor in model.state_dict().items()}
    waits()
    torch.save(state, io.BytesIO())


@versions(
    state_dict_written_by_a_thread_wrong_801=(nothing,),
    state_dict_written_by_a_thread_behind_event=(synchronized,),
)
def state_dict_written_by_a_thread(waits: Any) -> None:
    state, copied = {"weight": gpu().to("cpu", non_blocking=True)}, torch.cuda.Event()
    copied.record()

    def write() -> None:
        waits(copied)
        torch.save(state, io.BytesIO())

    writer = threading.Thread(target=write)
    writer.start()
    writer.join()


@pattern
def copy_to_cpu_read_behind_a_read_of_the_stream() -> None:
    x = gpu()
    host = x.to("cpu", non_blocking=True)
    x.sum().item()  # waits for the stream that copies
    host.sum()


@pattern
def copy_to_cpu_blocking() -> None:
    gpu().to("cpu").sum()


@pattern
def small_copy_source_changed() -> None:
    values = torch.zeros(4)
    values.to("cuda", non_blocking=True)
    values.fill_(1)


@pattern
def gathered_copy_source_changed() -> None:
    rows = pinned(8).view(2, 4)
    rows[:, :2].to("cuda", non_blocking=True)  # goes through a temporary of its own
    rows.fill_(1)


@pattern
def pageable_target() -> None:
    host = torch.empty(N)
    host.copy_(gpu(), non_blocking=True)
    host.sum()


@pattern
def view_of_the_copy_wrong_801() -> None:
    host = pinned(2, N)
    host[0].copy_(gpu(), non_blocking=True)
    host.t()[:, 0].max()


@pattern
def other_row_of_the_buffer() -> None:
    host = pinned(2, N)
    host[1].zero_()
    host[0].copy_(gpu(), non_blocking=True)
    host[1].sum()


@pattern
def numpy_view_synchronized() -> None:
    host = pinned(4)
    view = host.numpy()
    host.copy_(gpu(4), non_blocking=True)
    torch.cuda.current_stream().synchronize()
    total = float(view.sum()) + float(np.mean(view)) + view[0]
    np.add(view, total, out=view)
    view.reshape(2, 2)[0, 0].item()


@pattern
def numpy_copy_taken_before() -> None:
    host = torch.zeros(4).pin_memory()
    kept = host.numpy().copy()
    host.copy_(gpu(4), non_blocking=True)
    kept.sum()


@pattern
def shapes_of_a_copy_under_way() -> None:
    host = gpu().to("cpu", non_blocking=True)
    torch.empty_like(host)
    torch.zeros_like(host).sum()
    host.new_ones(3).sum()
    if host.is_pinned() and len(host) and host[2:].shape:
        host.view(-1, 2).t()


@pattern
def back_and_forth_on_one_stream() -> None:
    """From the GPU and back: the stream orders both."""
    host = gpu().to("cpu", non_blocking=True)
    host.to("cuda", non_blocking=True).sum().item()


# -- a buffer is refilled while it is copied ---------------------------------------------------------


def read(staging: Tensor) -> None:
    staging.to("cuda", non_blocking=True).sum().item()


def sent(staging: Tensor) -> None:
    staging.to("cuda", non_blocking=True)


def through_numpy(staging: Tensor, step: int) -> None:
    staging.numpy()[:] = step


@versions(
    staging_refilled_wrong_802=(pinned, Tensor.fill_, sent),
    staging_blocking_copy=(pinned, Tensor.fill_, Tensor.cuda),
    staging_written_through_numpy_wrong_802=(pinned, through_numpy, sent),
    pageable_source_refilled=(lambda: torch.empty(N), Tensor.fill_, sent),
    optimizer_on_the_cpu_wrong_802=(pinned, Tensor.add_, sent),  # offloaded parameters
    optimizer_on_the_cpu_synchronized=(pinned, Tensor.add_, read),
)
def staging_refilled(fills_: Any, fills: Any, sends: Any) -> None:
    staging = fills_()
    for step in range(3):
        fills(staging, step)
        sends(staging)


@versions(
    staging_refilled_with_event=(1, False),
    staging_in_turn=(2, False),
    staging_in_turn_event_too_early_wrong_802=(2, True),
)
def staging_in_turn(buffers: int, early: bool) -> None:
    staging = [pinned() for _ in range(buffers)]
    copied = [torch.cuda.Event() for _ in staging]
    for step in range(5):
        slot = step % buffers
        copied[slot].synchronize()
        staging[slot].fill_(step)
        if early:
            copied[slot].record()
        staging[slot].to("cuda", non_blocking=True)
        if not early:
            copied[slot].record()


@versions(
    staging_written_by_c_wrong_802=(nothing,),
    staging_written_by_c_synchronized=(torch.cuda.synchronize,),
)
def staging_written_by_c(waits: Any) -> None:
    staging = pinned()
    staging.to("cuda", non_blocking=True)
    waits()
    ctypes.memset(staging.data_ptr(), 1, 4 * N)
    torch.cuda.synchronize()


@pattern
def source_freed_in_flight() -> None:
    """Memory of pinned tensors is kept by PyTorch until their copies are done."""
    for _ in range(3):
        torch.randn(N).pin_memory().to("cuda", non_blocking=True)


@pattern
def target_overwritten_in_flight_wrong_802() -> None:
    host = pinned()
    host.copy_(gpu(), non_blocking=True)
    host.zero_()

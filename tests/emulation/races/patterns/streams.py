"""Two streams: bytes that neither waits for, memory that is given up, events that say something else."""

from __future__ import annotations

import threading
from typing import Any

import torch
from emulation.races.patterns.scaffold import N, beside, current, gpu, nothing, pattern, pinned, versions

# -- c: two streams ----------------------------------------------------------------------------------


def behind_the_current(side: Any) -> None:
    side.wait_stream(current())


def before_the_current(side: Any) -> None:
    current().wait_stream(side)


def for_the_cpu(side: Any) -> None:
    side.synchronize()


@versions(
    made_here_used_there_wrong_803=(nothing,),
    made_here_used_there_waiting=(behind_the_current,),
    made_here_used_there_synchronized=(lambda _: torch.cuda.synchronize(),),
)
def made_here_used_there(waits: Any) -> None:
    x, side = gpu(), torch.cuda.Stream()
    waits(side)
    with torch.cuda.stream(side):
        x + 1


def from_pinned() -> Any:
    return torch.randn(N).pin_memory().to("cuda", non_blocking=True)


def read(y: Any) -> None:
    y.sum().item()  # waits for the stream that is current, too late


def same(side: Any) -> Any:
    return side


def by_its_handle(side: Any) -> Any:
    return torch.cuda.ExternalStream(side.cuda_stream)


@versions(
    made_there_used_here_wrong_803=(same, gpu, nothing, torch.sum),
    made_there_read_here_wrong_803=(same, gpu, nothing, read),
    made_there_waited_for_by_the_cpu=(same, gpu, for_the_cpu, read),
    copied_there_used_here_wrong_803=(same, from_pinned, nothing, torch.sum),
    copied_there_waiting=(same, from_pinned, before_the_current, torch.sum),
    external_stream_wrong_803=(
        lambda side: torch.cuda.ExternalStream(side.cuda_stream),
        gpu,
        nothing,
        torch.sum,
    ),
)
def made_there_used_here(stream: Any, fill: Any, waits: Any, uses: Any) -> None:
    side = torch.cuda.Stream()
    with torch.cuda.stream(stream(side)):
        y = fill()
    waits(side)
    y.record_stream(current())
    uses(y)


@versions(overwritten_while_read_wrong_803=(torch.Tensor.zero_,), both_read=(torch.Tensor.sum,))
def used_while_read(uses: Any) -> None:
    x = gpu()
    with beside() as side:
        y = x + 1
    uses(x)
    current().wait_stream(side)
    y.sum()


@pattern
def only_the_shape_is_used() -> None:
    x = gpu()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.zeros_like(x) + torch.randn_like(x) + x.new_ones(N)


@versions(
    halves_of_a_buffer=(slice(4), slice(4, None)),
    columns_of_a_buffer=((slice(None), slice(4)), (slice(None), slice(4, None))),
    columns_of_a_buffer_wrong_803=((slice(None), slice(5)), (slice(None), slice(4, None))),
)
def parts_of_a_buffer(there_part: Any, here: Any) -> None:
    out, side = torch.zeros(8, 8, device="cuda"), torch.cuda.Stream()
    with beside(side):
        out[there_part].normal_()
    out[here].normal_()
    current().wait_stream(side)
    out.sum()


@pattern
def copied_from_device_there_to_pinned_wrong_803() -> None:
    """Two streams and one pinned buffer."""
    host, side, x = pinned(), torch.cuda.Stream(), gpu()
    side.wait_stream(current())
    with torch.cuda.stream(side):
        host.copy_(x, non_blocking=True)
    y = host.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    y.sum()


@versions(chain_of_three_streams=(True,), chain_of_three_streams_broken_wrong_803=(False,))
def chain(passes_on: bool) -> None:
    """Waiting is passed on: who waits for the second is behind the first."""
    a, b, x = torch.cuda.Stream(), torch.cuda.Stream(), gpu()
    with beside(a):
        y = x + 1
    b.wait_stream(a if passes_on else torch.cuda.default_stream())
    with beside(b, waits=False, joins=True):
        z = y + x
    if not passes_on:
        current().wait_stream(a)
    (x + y + z).sum()


@pattern
def counter_of_two_threads_wrong_803() -> None:
    counter = torch.zeros(1, device="cuda")
    torch.cuda.synchronize()

    def count() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            counter.add_(1)

    threads = [threading.Thread(target=count) for _ in range(2)]
    for thread in threads:
        thread.start()
        thread.join()
    torch.cuda.synchronize()


@pattern
def one_stream_all_along() -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        model = torch.nn.Linear(8, 8).cuda()
        model(gpu(4, 8)).sum().backward()
        model.weight.grad.norm().item()


# -- d: freed while in use ---------------------------------------------------------------------------


def dropped(tensors: list[Any], side: Any) -> None:
    tensors.clear()


def recorded(tensors: list[Any], side: Any) -> None:
    tensors.pop().record_stream(side)


def resized(tensors: list[Any], side: Any) -> None:
    tensors[0].untyped_storage().resize_(0)


@versions(
    freed_in_use_wrong_804=(nothing, dropped, nothing, gpu),
    freed_in_use_recorded=(nothing, recorded, nothing, gpu),
    freed_behind_the_other_stream=(before_the_current, dropped, nothing, gpu),
    freed_before_waiting_taken_after=(nothing, dropped, before_the_current, gpu),
    freed_in_use_and_nothing_taken=(nothing, dropped, nothing, nothing),
    storage_given_up_wrong_804=(nothing, resized, nothing, gpu),
)
def freed_in_use(waits_before: Any, frees: Any, waits_behind: Any, takes: Any) -> None:
    tensors = [gpu()]
    with beside() as side:
        y = tensors[0] + 1
    waits_before(side)
    frees(tensors, side)
    waits_behind(side)
    takes()
    current().wait_stream(side)
    y.sum()


@pattern
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


@versions(
    prefetcher=(lambda: torch.randn(64, 32), True, True),
    prefetcher_without_record_wrong_804=(lambda: torch.randn(64, 32), False, True),
    prefetcher_without_wait_wrong_803=(lambda: torch.randn(64, 32), True, False),
)
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


# -- e: events that do not stand for what they should ------------------------------------------------


@versions(
    event_behind=("behind",),
    event_too_early_wrong_803=("early",),
    event_in_the_wrong_stream_wrong_803=("elsewhere",),
    event_never_recorded_wrong_803=("never",),
    event_waited_for_before_it_is_recorded_wrong_803=("late",),
)
def event(recorded: str) -> None:
    ready, x = torch.cuda.Event(), gpu()
    if recorded == "late":
        current().wait_event(ready)
    with beside():
        if recorded == "early":
            ready.record()
        y = x + 1
        if recorded in ("behind", "late"):
            ready.record()
    if recorded == "elsewhere":
        ready.record()  # in the stream that is current here
    if recorded != "late":
        current().wait_event(ready)
    y.sum()


@pattern
def event_of_a_copy_too_early_wrong_801() -> None:
    host, copied = pinned(1), torch.cuda.Event()
    copied.record()
    host.copy_(gpu(1), non_blocking=True)
    copied.synchronize()
    host.item()


@versions(events_in_a_ring=(True,), events_in_a_ring_never_recorded_wrong_803=(False,))
def ring(records: bool) -> None:
    """In the first turn the events have not been recorded: that is fine."""
    side, out = torch.cuda.Stream(), [torch.empty(N, device="cuda") for _ in range(2)]
    side.wait_stream(current())
    filled, used = ([torch.cuda.Event() for _ in out] for _ in range(2))
    for step in range(6):
        slot = step % 2
        with torch.cuda.stream(side):
            side.wait_event(used[slot])
            out[slot].fill_(step)
            filled[slot].record()
        current().wait_event(filled[slot])
        out[slot].sum()
        if records:
            used[slot].record()

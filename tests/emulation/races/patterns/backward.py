"""Backward, offloading, and what runs beside a training step."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from emulation.races.patterns.scaffold import current, gpu, pattern, versions

# -- k: backward -------------------------------------------------------------------------------------


@versions(
    gradient_on_a_side_stream=(True, True),
    gradient_on_a_side_stream_not_waiting_wrong_803=(False, True),
    gradient_on_a_side_stream_not_waited_for_wrong_803=(True, False),
)
def hooked(waits: bool, gathers: bool) -> None:
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


@pattern
def forward_on_two_streams() -> None:
    """The engine waits between the streams of forward's nodes by itself."""
    side, first, two = torch.cuda.Stream(), torch.nn.Linear(8, 8).cuda(), torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.Adam([*first.parameters(), *two.parameters()])
    for _ in range(3):
        x = gpu(4, 8)
        side.wait_stream(current())
        with torch.cuda.stream(side):
            a = torch.relu(first(x))
        x.record_stream(side)
        b = two(x)
        current().wait_stream(side)
        a.record_stream(current())
        (a + b).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pattern
def forward_on_two_streams_joined_too_late_wrong_803() -> None:
    side, first, x = torch.cuda.Stream(), torch.nn.Linear(8, 8).cuda(), gpu(4, 8)
    side.wait_stream(current())
    with torch.cuda.stream(side):
        a = torch.relu(first(x))
    a.sum().backward()


@pattern
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


@versions(
    activations_offloaded=(True, True),
    activations_offloaded_not_waiting_wrong_803=(False, True),
    activations_brought_back_not_waiting_wrong_803=(True, False),
)
def offloading(waits: bool, returns: bool) -> None:
    side = torch.cuda.Stream()
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8)).cuda()
    for _ in range(2):
        x = gpu(4, 8)
        with Offloaded(side, waits, returns):
            loss = model(x).square().sum()
        loss.backward()
        model.zero_grad()


@pattern
def offloaded_by_torch() -> None:
    model = torch.nn.Linear(8, 8).cuda()
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        loss = model(gpu(4, 8)).square().sum()
    loss.backward()


# -- others ------------------------------------------------------------------------------------------


@versions(
    average_beside=(True, True),
    average_beside_not_waiting_wrong_803=(False, True),
    average_beside_parameters_changed_wrong_803=(True, False),
)
def average(waits: bool, gathers: bool) -> None:
    """An exponential moving average on a stream of its own."""
    side, model = torch.cuda.Stream(), torch.nn.Linear(8, 8).cuda()
    kept = [parameter.detach().clone() for parameter in model.parameters()]
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
            torch._foreach_lerp_(kept, [parameter.detach() for parameter in model.parameters()], 0.1)


@pattern
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


@pattern
def metrics_read_a_step_later_wrong_801() -> None:
    waiting = deque[Any]()
    for _ in range(4):
        waiting.append(gpu(16).mean().to("cpu", non_blocking=True))
        if len(waiting) > 1:
            waiting.popleft().item()

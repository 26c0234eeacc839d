"""What CUDA and torch refuse in a capture, in their words; and the twin of each that they do not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gapless
from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions
from gapless.torch_internals import VERSION

CAPTURING = "operation not permitted when stream is capturing"
UNPINNED = (
    "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned. "
    "Please use tensor.pin_memory() or allocate the tensor with pin_memory=True."
    if VERSION >= (2, 11)
    else CAPTURING
)
NOT_CAPTURABLE = "during CUDA graph capture. If you need this call to be captured, please file an issue"
OTHER_SEED = (
    "CUDAGeneratorImpl::set_current_seed can be called during stream capture only if new seed is the same as "
    "the original seed."
)
SEED = (
    OTHER_SEED if VERSION >= (2, 10) else f"Cannot call CUDAGeneratorImpl::set_current_seed {NOT_CAPTURABLE}"
)
SET_STATE = (
    OTHER_SEED
    if VERSION >= (2, 10)
    else "Please ensure to utilize the CUDAGeneratorImpl::set_state_index method during capturing"
)
# Since torch 2.14 a replay first instantiates what is not.
NOT_CAPTURED = (
    "Called CUDAGraph::replay without a preceding successful capture"
    if VERSION < (2, 14)
    else "capture_end() must have been called before calling instantiate"
)

STALE = (
    "AccumulateGrad' has a stale reference to the default stream"
    if VERSION >= (2, 13)
    else "operation would make the legacy stream depend on a capturing blocking stream"
)


class Case:
    """A block that runs in a capture; `x` is a tensor on the device, `side` another stream."""

    def __init__(self) -> None:
        self.x, self.graph = torch.ones(4, device="cuda"), torch.cuda.CUDAGraph()
        self.side = torch.cuda.Stream()
        while self.side == torch.cuda.graph.default_capture_stream:  # streams come around again
            self.side = torch.cuda.Stream()
        self.host, self.pinned = torch.ones(4), torch.ones(4).pin_memory()
        self.weight = nn.Parameter(torch.ones(4, device="cuda"))
        self.generator = torch.Generator("cuda")
        self.state = torch.cuda.get_rng_state()
        self.state[0] ^= 1  # of another seed
        self.done = torch.cuda.current_stream().record_event()

    def capture(self, run: Callable[[Case], Any]) -> None:
        with torch.cuda.graph(self.graph):
            run(self)

    def adam(self, capturable: bool) -> None:
        optimizer = torch.optim.Adam([self.weight], capturable=capturable)
        self.weight.grad = torch.ones_like(self.weight)
        optimizer.step()

    def forked(self, join: bool) -> None:
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            self.x * 2
        if join:
            torch.cuda.current_stream().wait_stream(self.side)


CASES: dict[str, tuple[Callable[[Case], Any], str, Callable[[Case], Any]]] = {
    "item": (lambda c: c.x.sum().item(), CAPTURING, lambda c: c.x.sum()),
    "print": (lambda c: f"{c.x}", CAPTURING, lambda c: f"{c.x.shape}"),
    "numpy": (lambda c: c.x.cpu().numpy(), UNPINNED, lambda c: c.x.clone()),
    "condition": (lambda c: bool(c.x.sum() > 0), CAPTURING, lambda c: torch.where(c.x.sum() > 0, c.x, -c.x)),
    "nonzero": (lambda c: c.x.nonzero(), CAPTURING, lambda c: torch.nonzero_static(c.x, size=4)),
    "mask": (lambda c: c.x[c.x > 0], CAPTURING, lambda c: c.x * (c.x > 0)),
    "index from the CPU": (lambda c: c.x[[0, 2]], UNPINNED, lambda c: c.x[0:3:2]),
    "bound from the GPU": (lambda c: c.x[: c.x.sum().long()], CAPTURING, lambda c: c.x[:2]),
    "constant": (
        lambda c: torch.tensor([1.0], device="cuda"), UNPINNED, lambda c: torch.ones(1, device="cuda")
    ),
    "pageable": (lambda c: c.x.copy_(c.host), UNPINNED, lambda c: c.x.copy_(c.pinned, non_blocking=True)),
    "list": (lambda c: c.x.tolist(), UNPINNED, lambda c: c.x.clone()),
    "to the CPU": (lambda c: c.x.to("cpu"), UNPINNED, lambda c: c.pinned.copy_(c.x, non_blocking=True)),
    "synchronize": (lambda c: torch.cuda.synchronize(), CAPTURING, lambda c: torch.cuda.empty_cache()),
    "stream": (lambda c: c.side.synchronize(), CAPTURING, lambda c: c.forked(True)),
    "stream query": (lambda c: c.side.query(), CAPTURING, lambda c: torch.cuda.is_current_stream_capturing()),
    "event query": (lambda c: c.done.query(), CAPTURING, lambda c: torch.cuda.Event().record()),
    "captured event": (
        lambda c: torch.cuda.current_stream().record_event().synchronize(),
        "operation not permitted on an event last recorded in a capturing stream",
        lambda c: torch.cuda.current_stream().record_event().wait(),
    ),
    "unjoined": (lambda c: c.forked(False), "capturing stream has unjoined work", lambda c: c.forked(True)),
    "outside work": (
        lambda c: torch.cuda.current_stream().wait_event(c.done),
        "dependency created on uncaptured work in another stream",
        lambda c: torch.cuda.current_stream().wait_event(torch.cuda.Event()),
    ),
    "default stream": (
        lambda c: torch.cuda.default_stream().wait_stream(torch.cuda.current_stream()),
        "operation would make the legacy stream depend on a capturing blocking stream",
        lambda c: c.forked(True),
    ),
    "generator": (
        lambda c: torch.rand(4, device="cuda", generator=c.generator),
        "Attempt to increase offset for a CUDA generator not in capture mode.",
        lambda c: torch.rand(4, device="cuda"),
    ),
    "seed": (
        lambda c: torch.cuda.manual_seed(3),
        SEED,
        lambda c: c.generator.graphsafe_get_state(),
    ),
    "random state": (
        lambda c: torch.cuda.set_rng_state(c.state), SET_STATE,
        lambda c: torch.cuda.set_rng_state(torch.cuda.get_rng_state()),
    ),
    "adam": (
        lambda c: c.adam(False), "param_groups' capturable is False", lambda c: c.adam(True)
    ),
    "nested": (
        lambda c: torch.cuda.graph(torch.cuda.CUDAGraph()).__enter__(), CAPTURING, lambda c: c.x + 1
    ),
    "replay": (
        lambda c: c.graph.replay(),
        NOT_CAPTURED,
        lambda c: c.x + 1,
    ),
}  # fmt: skip


def test_captures_refuse_what_torch_refuses_and_nothing_else() -> None:
    with gapless.emulate() as emulation, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
        for name, (wrong, words, right) in CASES.items():
            case, before = Case(), len(emulation.session.graphs)
            with pytest.raises(RuntimeError) as raised:
                case.capture(wrong)
            messages = [str(raised.value), str(raised.value.__context__)]
            assert any(words in message for message in messages), (name, messages)
            graphs = emulation.session.graphs[before:]
            if name != "adam":  # torch's own Python says it
                assert [graph.kind for graph in graphs] == ["refused"], name
                assert graphs[0].said.rstrip(".") in words, (name, graphs[0].said)
            again, before = Case(), len(emulation.session.graphs)
            again.capture(right)
            again.graph.replay()
            assert [graph for graph in emulation.session.graphs[before:] if graph.kind == "refused"] == [], (
                name
            )


def test_a_capture_that_failed_leaves_everything_as_it_was() -> None:
    with gapless.emulate():
        case = Case()
        with pytest.raises(RuntimeError, match="due to a previous error during capture"):
            case.capture(lambda c: c.x.mul_(5).sum().item())
        assert case.x.tolist() == [1.0] * 4
        assert not torch.cuda.is_current_stream_capturing()
        case.x.sum().item()


def test_begin_and_end() -> None:
    with gapless.emulate():
        case = Case()
        with pytest.raises(RuntimeError, match="must be captured on a non-default stream"):
            case.graph.capture_begin()
        with pytest.raises(RuntimeError, match=r"Called CUDAGraph::pool\(\) without"):
            case.graph.pool()
        with torch.cuda.stream(case.side):
            case.graph.capture_begin()
            case.x + 1
            assert torch.cuda.CUDAGraph.get_currently_capturing_graph() is case.graph
        with pytest.raises(RuntimeError, match="Capture must end on the same stream it began on"):
            case.graph.capture_end()
        case.graph.reset()
        case.capture(lambda c: c.x + 1)
        with pytest.raises(RuntimeError, match="already owns a captured graph"):
            case.capture(lambda c: c.x + 1)


def test_a_backward_pass_that_reaches_behind_the_capture() -> None:
    """A loss from warm-up on the default stream keeps the node of its leaves alive."""
    with gapless.emulate():
        net = nn.Linear(4, 4).cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x, graph = torch.ones(2, 4, device="cuda"), torch.cuda.CUDAGraph()
        loss = net(x).sum()
        loss.backward()
        with (
            pytest.raises(RuntimeError, match=STALE),
            torch.cuda.graph(graph),
        ):
            net(x).sum().backward()
        del loss
        optimizer.zero_grad()
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            net(x).sum().backward()


@pytest.mark.parametrize(
    ("iterations", "wrapped_aside", "said"),
    [
        (11, True, ""),
        (11, False, STALE),
        (10, True, "operation failed due to a previous error during capture"),
    ],
)
def test_a_step_with_ddp(iterations: int, wrapped_aside: bool, said: str) -> None:
    """Its reducer holds the leaves' nodes from where it was made; its logger waits to time ten iterations."""
    with Emulator(EmulatorOptions(world_size=2, rank=0)):
        dist.init_process_group("nccl")
        side, x = torch.cuda.Stream(), torch.ones(2, 4, device="cuda")
        with torch.cuda.stream(side if wrapped_aside else torch.cuda.current_stream()):
            net = DistributedDataParallel(nn.Linear(4, 4).cuda(), device_ids=[0])
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def step() -> None:
            net(x).sum().backward()
            optimizer.step()

        with torch.cuda.stream(side):
            for _ in range(iterations):
                step()
        try:
            expected = pytest.raises(RuntimeError, match=said) if said else nullcontext()
            with expected, torch.cuda.graph(torch.cuda.CUDAGraph()):
                step()
        finally:
            dist.destroy_process_group()


def test_leaves_whose_stream_nobody_knows() -> None:
    """A node made on a side stream before there was an optimizer is not said to be the default stream's."""
    with gapless.emulate():
        side, x = torch.cuda.Stream(), torch.ones(2, 4, device="cuda")
        net = nn.Linear(4, 4).cuda()
        with torch.cuda.stream(side):
            kept = net(x).sum()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=side):
            net(x).sum().backward()
            optimizer.step()
        assert kept.requires_grad


def test_graphed_callables_refuse_what_torch_refuses() -> None:
    x = torch.ones(2, 4)
    with gapless.emulate():
        net, inputs = nn.Linear(4, 4).cuda(), (x.cuda(),)
        with (
            torch.autocast("cuda"),
            pytest.raises(RuntimeError, match="does not support the autocast caching"),
        ):
            torch.cuda.make_graphed_callables(net, inputs)
        with pytest.raises(AssertionError, match="must contain only Tensors"):
            torch.cuda.make_graphed_callables(net, (*inputs, 3))
        net.register_forward_hook(lambda *_: None)
        with pytest.raises(AssertionError, match="must not have hooks registered"):
            torch.cuda.make_graphed_callables(net, inputs)


@pytest.mark.skipif(VERSION < (2, 11), reason="earlier versions leave it to CUDA")
def test_a_copy_that_torch_refuses_does_not_fail_the_capture() -> None:
    """Torch asks for pinned memory before it calls CUDA, even where a copy would not wait."""
    with gapless.emulate():
        case, side = Case(), torch.cuda.Stream()
        with torch.cuda.stream(side):
            case.graph.capture_begin()
            with pytest.raises(RuntimeError, match="unless the CPU tensor is pinned"):
                case.x.copy_(case.host, non_blocking=True)
            case.x.copy_(case.pinned, non_blocking=True)
            case.graph.capture_end()
        case.graph.replay()


@pytest.mark.skipif(VERSION < (2, 10), reason="earlier versions refuse every seed")
def test_the_seed_that_a_generator_has_may_be_set_in_a_capture() -> None:
    """It changes nothing: neither the seed nor how many numbers were drawn from it."""
    with gapless.emulate() as emulation:
        case, drawn = Case(), []
        for sets in (False, True):
            torch.cuda.manual_seed(5)
            torch.rand(4, device="cuda")

            def draw(case: Case, sets: bool = sets) -> None:
                if sets:
                    torch.cuda.manual_seed(5)
                drawn.append(torch.rand(4, device="cuda"))

            case.graph = torch.cuda.CUDAGraph()
            case.capture(draw)
            assert torch.cuda.initial_seed() == 5
            case.graph.replay()
            first = drawn[-1].clone()
            case.graph.replay()
            assert not torch.equal(drawn[-1], first)
        assert torch.equal(drawn[0], drawn[1])
    assert [graph for graph in emulation.session.graphs if graph.kind == "refused"] == []

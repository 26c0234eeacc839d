"""Replays compute what eager steps compute, on the same memory; a capture computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import gapless
from gapless.emulation.emulator import Emulator
from gapless.emulation.memory.requests import reports_storage_ends
from gapless.emulation.options import EmulatorOptions
from gapless.torch_internals import VERSION

Step = Callable[[], torch.Tensor]


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    if not reports_storage_ends():
        pytest.skip(f"torch 2.{VERSION[1]} does not tell when storages end")
    with Emulator(EmulatorOptions(programme=True, memory=True)) as on:
        yield on


def batches(count: int = 8) -> list[tuple[torch.Tensor, torch.Tensor]]:
    draws = torch.Generator().manual_seed(1)
    return [
        (torch.randn(16, 8, generator=draws).cuda(), torch.randn(16, 4, generator=draws).cuda())
        for _ in range(count)
    ]


class Training:
    """A network whose steps are taken eagerly, or captured after three of them."""

    def __init__(self, optimizer: Callable[[Any], Any], *, amp: bool = False, outside: bool = False) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.GELU(), nn.Linear(16, 4)
        ).cuda()
        self.optimizer = optimizer(self.net.parameters())
        self.scaler = torch.amp.GradScaler("cuda", enabled=amp, init_scale=64.0)
        self.amp, self.outside = amp, outside or amp
        self.x, self.y = torch.zeros(16, 8, device="cuda"), torch.zeros(16, 4, device="cuda")

    def step(self) -> torch.Tensor:
        with torch.autocast("cuda", enabled=self.amp, cache_enabled=False):
            loss = nn.functional.mse_loss(self.net(self.x), self.y)
        self.scaler.scale(loss).backward()
        if not self.outside:
            self.optimizer.step()
        return loss

    def finish(self) -> None:
        if self.outside:
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def losses(self, captured: bool) -> list[float]:
        values, inputs = [], batches()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for x, y in inputs[:3]:
                self.x.copy_(x), self.y.copy_(y)
                self.optimizer.zero_grad(set_to_none=True)
                values.append(self.step().item())
                self.finish()
        torch.cuda.current_stream().wait_stream(side)
        if captured:
            graph = torch.cuda.CUDAGraph()
            self.optimizer.zero_grad(set_to_none=True)
            before = [tensor.detach().clone() for tensor in self.net.state_dict().values()]
            with torch.cuda.graph(graph):
                loss = self.step()
            assert all(map(torch.equal, before, self.net.state_dict().values()))
        for x, y in inputs[3:]:
            self.x.copy_(x), self.y.copy_(y)
            if captured:
                graph.replay()
            else:
                self.optimizer.zero_grad(set_to_none=True)
                loss = self.step()
            values.append(loss.item())
            self.finish()
        return values


@pytest.mark.parametrize(
    "kind",
    {
        "sgd": lambda: Training(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
        "adam": lambda: Training(lambda p: torch.optim.Adam(p, lr=0.01, capturable=True)),
        "fused": lambda: Training(lambda p: torch.optim.AdamW(p, lr=0.01, capturable=True, fused=True)),
        "amp": lambda: Training(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), amp=True),
        "step outside": lambda: Training(lambda p: torch.optim.RMSprop(p, lr=0.01), outside=True),
    }.items(),
    ids=lambda kind: kind[0],
)
def test_a_whole_step_is_as_eager_steps_are(
    emulator: Emulator, kind: tuple[str, Callable[[], Training]]
) -> None:
    eager, replayed = kind[1]().losses(False), kind[1]().losses(True)
    assert replayed == eager
    recorded = emulator.session()
    assert recorded.graphs == recorded.races == ()
    # The steps of replays are steps, that of the capture is none.
    assert sum(mark.kind == "optimizer" for mark in recorded.marks) == 16


def test_parts_of_a_network_and_graphs_that_share_a_pool(emulator: Emulator) -> None:
    def losses(captured: bool) -> list[float]:
        torch.manual_seed(0)
        parts: Any = [nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1)).cuda(), nn.Linear(8, 4).cuda()]
        optimizer = torch.optim.SGD([parameter for part in parts for parameter in part.parameters()], lr=0.1)
        if captured:
            samples = ((torch.randn(16, 8, device="cuda"),), (torch.randn(16, 8).cuda().requires_grad_(),))
            parts = torch.cuda.make_graphed_callables(tuple(parts), samples)
        torch.manual_seed(5)
        values = []
        for at, (x, y) in enumerate(batches()):
            optimizer.zero_grad(set_to_none=True)
            hidden = parts[0](x)
            out = parts[1](hidden * 2 if at % 2 else hidden)
            loss = nn.functional.mse_loss(out, y)
            loss.backward()
            optimizer.step()
            values.append(loss.item())
        return values

    assert losses(True) == losses(False)
    assert emulator.session().graphs == ()


def test_a_generator_continues_from_its_position(emulator: Emulator) -> None:
    generator = torch.Generator("cuda").manual_seed(7)
    expected = [torch.rand(3, device="cuda", generator=generator).tolist() for _ in range(4)]
    generator.manual_seed(7)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        drawn = torch.rand(3, device="cuda", generator=generator)
    draws = []
    for _ in range(3):
        graph.replay()
        draws.append(drawn.tolist())
    assert [*draws, torch.rand(3, device="cuda", generator=generator).tolist()] == expected


def test_side_streams_fork_and_join(emulator: Emulator) -> None:
    side, x, graph = torch.cuda.Stream(), torch.ones(4, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first = x * 2
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            assert torch.cuda.is_current_stream_capturing()
            second = x * 3
        torch.cuda.current_stream().wait_stream(side)
        total = first + second
    assert not torch.cuda.is_current_stream_capturing()
    x.fill_(2)
    graph.replay()
    assert total.tolist() == [10.0] * 4
    assert emulator.session().races == emulator.session().graphs == ()


def test_copies_views_lists_and_views_of_outputs(emulator: Emulator) -> None:
    """In-place work, views, `out=`, lists of tensors, pinned copies both ways, complex numbers."""
    x = torch.arange(6.0, device="cuda").reshape(2, 3)
    pinned, back = torch.ones(3).pin_memory(), torch.empty(3).pin_memory()
    into, graph = torch.empty(2, 3, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        row = x[1].mul_(2)
        torch.add(x, 1, out=into)
        halves = torch.stack(list(into.unbind(1)))
        arrived = pinned.to("cuda", non_blocking=True)
        summed = halves.T[0] + arrived
        turned = torch.complex(summed, summed).conj() * 1j
        back.copy_(summed, non_blocking=True)
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
    pinned.fill_(10)
    graph.replay()
    torch.cuda.synchronize()
    assert x.tolist() == [[0, 1, 2], [6, 8, 10]]
    assert row.tolist() == [6, 8, 10]
    assert into[1].tolist() == [7, 9, 11]
    assert back.tolist() == summed.tolist() == [11, 12, 13]
    assert turned.tolist() == [complex(number, number) for number in (11, 12, 13)]


def test_a_replay_is_one_launch_with_its_kernels(emulator: Emulator) -> None:
    x, graph = torch.ones(64, 64, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x @ x).relu()
    programme = emulator.recorder.programme
    assert programme is not None
    before = programme.position
    graph.replay()
    added = programme.entries_since(before)
    assert [(entry.kind, entry.name, entry.graph) for entry in added] == [
        ("graph", "cudaGraphLaunch", False),
        ("operator", "aten::mm", True),
        ("operator", "aten::relu", True),
    ]
    assert y[0, 0].item() == 64


def test_a_pool_keeps_its_memory_until_the_graph_is_gone(emulator: Emulator) -> None:
    x = torch.ones(1 << 20, device="cuda")  # 4 MiB
    torch.cuda.empty_cache()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = ((x * 2) + 1) * 3
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    assert allocated == 2 * x.nbytes
    assert reserved >= 3 * x.nbytes
    graph.replay()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() >= 3 * x.nbytes  # a pool is not given back
    assert torch.cuda.max_memory_allocated() <= 3 * x.nbytes
    (run,) = emulator.session().memory
    assert any("CUDA graph" in place.operator for place in run.places)
    del graph, y
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == x.nbytes


def test_a_graph_kept_is_instantiated_and_dumped(emulator: Emulator, tmp_path: Any) -> None:
    graph, x = torch.cuda.CUDAGraph(keep_graph=True), torch.ones(2, device="cuda")
    with torch.cuda.graph(graph, pool=torch.cuda.graph_pool_handle()):
        y = x + 1
    graph.instantiate()
    graph.replay()
    graph.debug_dump(str(tmp_path / "graph.dot"))
    assert "aten::add" in (tmp_path / "graph.dot").read_text()
    assert y.tolist() == [2, 2]
    graph.reset()
    with pytest.raises(RuntimeError, match=r"without a preceding|capture_end\(\) must have"):
        graph.replay()


def test_a_hook_sees_the_graph_while_its_nodes_exist(emulator: Emulator, tmp_path: Any) -> None:
    if VERSION < (2, 14):
        pytest.skip(f"torch 2.{VERSION[1]} lacks hooks of graphs, which are there since 2.14")
    graph, x = torch.cuda.CUDAGraph(), torch.ones(2, device="cuda")
    events: list[str] = []
    graph.register_capture_end_hook(torch.cuda.graphs.export_dot(str(tmp_path / "graph.dot")))
    everywhere = torch.cuda.graphs.register_graph_capture_end_hook(lambda graph: events.append("captured"))
    with torch.cuda.graph(graph):
        x + 1
    everywhere.remove()
    assert "aten::add" in (tmp_path / "graph.dot").read_text()
    assert events == ["captured"]
    with pytest.raises(RuntimeError, match="raw cudaGraph_t instance"):
        graph.debug_dump(str(tmp_path / "later.dot"))
    graph.replay()


def test_a_checkpoint_in_a_capture_draws_again_what_it_drew() -> None:
    """In each replay, other numbers in each; a stream that forks off and does nothing needs no joining."""
    with gapless.emulate() as emulation:
        torch.cuda.manual_seed(3)
        x, weight = torch.ones(64, device="cuda"), torch.ones(64, device="cuda", requires_grad=True)
        graph, idle = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.graph(graph):
            idle.wait_stream(torch.cuda.current_stream())
            out = checkpoint(lambda tensor: F.dropout(tensor * weight), x, use_reentrant=False)
            (gradient,) = torch.autograd.grad(out.sum(), weight)
        draws = []
        for _ in range(3):
            graph.replay()
            assert torch.equal(out, gradient)
            draws.append(out.tolist())
        assert len({tuple(draw) for draw in draws}) == 3
    assert emulation.session.graphs == ()


def test_a_run_that_may_go_on_without_values_has_those_of_replays() -> None:
    draws = []
    for dry in (False, None):
        with Emulator(EmulatorOptions(dry=dry), on_switch=lambda switch: None):
            x, graph = torch.zeros(4, device="cuda"), torch.cuda.CUDAGraph()
            total = torch.zeros(4, device="cuda")
            with torch.cuda.graph(graph):
                y = x * 2
                total += y
            for step in range(3):
                x.fill_(step)
                graph.replay()
            draws.append((y.tolist(), total.tolist()))
    assert draws[0] == draws[1] == ([4.0] * 4, [6.0] * 4)


def test_an_output_beside_itself_is_none_that_was_kept() -> None:
    """A list that is made anew after each replay, and a sum of both, as they may be meant."""
    with gapless.emulate() as emulation:
        x, graph = torch.zeros(4, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x + 1
        for step in range(6):
            x.fill_(step)
            graph.replay()
            both = [y, y]
            torch.stack(both).sum()
        assert emulation.session.graphs == ()

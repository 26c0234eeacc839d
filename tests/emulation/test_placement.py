"""Placement follows storages: through views and in-place work, and never onto tensors that come later."""

from __future__ import annotations

import gc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions
from gapless.emulation.placement.placement import Placement
from gapless.emulation.support.places import HOST, ORPHAN, PINNED

VIEWS = {
    "view": lambda x: x.view(-1),
    "transpose": lambda x: x.t(),
    "select": lambda x: x[0],
    "slice": lambda x: x[:1],
    "expand": lambda x: x.unsqueeze(0).expand(3, *x.shape),
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "as_strided": lambda x: x.as_strided((2,), (1,)),
    "alias": lambda x: torch.ops.aten.alias(x),
    "chunk": lambda x: x.chunk(2)[0],
    "set_": lambda x: torch.empty(0, device=x.device).set_(x),
    "parameter": lambda x: torch.nn.Parameter(x),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("place", ["cuda:0", "cuda:1", "cpu"])
def test_views_are_where_their_base_is(name, place):
    with Emulator(EmulatorOptions(devices=2)):
        assert VIEWS[name](torch.ones(2, 2, device=place)).device == torch.device(place)


def test_a_parameter_follows_its_data():
    with Emulator():
        parameter = torch.nn.Parameter(torch.ones(2))
        parameter.data = parameter.data.cuda()
        assert parameter.is_cuda
        (parameter * 2).sum().backward()
        assert parameter.grad.is_cuda


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 64), st.sampled_from([0, 1, PINNED, ORPHAN, HOST])), max_size=40))
def test_placements_never_leak_onto_later_storages(requests):
    """Storages that die make room for others at the same address."""
    placement = Placement()
    kept = []
    for number, (size, state) in enumerate(requests):
        tensor = placement.put(torch.empty(size), state)
        assert placement.state_of(tensor) == state
        if number % 3 == 0:
            kept.append((tensor, state))
        del tensor
        fresh = [torch.empty(size) for _ in range(3)]
        assert all(placement.state_of(tensor_later) == HOST for tensor_later in fresh)
    placement.sweep()
    assert all(placement.state_of(tensor) == state for tensor, state in kept)
    assert len(placement.where) == sum(state != HOST for _, state in kept)
    placement.clear()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 5000), min_size=1, max_size=30), st.data())
def test_bytes_are_those_of_what_lives(sizes, data):
    placement = Placement()
    alive: dict[int, torch.Tensor] = {}
    freed = most = 0
    for number, size in enumerate(sizes):
        alive[number] = placement.put(torch.empty(size), 0)
        most = max(most, sum(tensor.nbytes for tensor in alive.values()))
        for old in data.draw(st.sets(st.sampled_from(sorted(alive)))):
            freed += alive.pop(old).nbytes
    gc.collect()
    live = sum(tensor.nbytes for tensor in alive.values())
    assert placement.allocated(0) == live
    assert placement.take_freed_bytes(0) == freed
    assert placement.take_freed_bytes(0) == 0
    assert live <= placement.peak(0) <= most
    assert placement.allocated(1) == 0
    placement.clear()


def test_the_peak_is_the_most_that_lived_at_once():
    megabyte = 1 << 18  # float32
    with Emulator():
        for _ in range(5):
            x = torch.empty(20 * megabyte, device="cuda")
            y = torch.empty(10 * megabyte, device="cuda")
            del x, y
        peak = torch.cuda.max_memory_allocated()
    assert 0.9 * 30 * 4 * megabyte <= peak <= 30 * 4 * megabyte

"""Random number generators and seeds of the emulated device."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator

import pytest
import torch
from emulate.fake_device import FakeDevice, installed

from gapless.emulate import cuda_api


@pytest.fixture
def device() -> Iterator[FakeDevice]:
    with installed(FakeDevice()) as fake:
        yield fake


def test_a_restored_state_makes_draws_repeat(device: FakeDevice) -> None:
    states = torch.cuda.get_rng_state_all()
    first = torch.rand(4)
    torch.cuda.set_rng_state_all(states)
    assert torch.equal(torch.rand(4), first)
    with torch.random.fork_rng(devices=[0, 1]):
        forked = torch.rand(4)
    assert torch.equal(torch.rand(4), forked)


def test_seeds(device: FakeDevice) -> None:
    torch.manual_seed(7)
    assert torch.cuda.initial_seed() == 7
    first = torch.rand(2)
    torch.cuda.manual_seed_all(7)
    assert torch.equal(torch.rand(2), first)
    assert not torch.equal(torch.rand(2), first)
    torch.cuda.seed_all()
    assert torch.cuda.initial_seed() == torch.initial_seed() != 7


def test_a_seed_does_not_come_late(device: FakeDevice) -> None:
    """torch queues seeds until CUDA is used; here that would make the CPU draw the same numbers twice."""
    torch.manual_seed(3)
    first = torch.rand(2)
    torch.cuda.init()
    assert not torch.equal(torch.rand(2), first)


def test_a_seed_of_before_the_device_is_not_set_again() -> None:
    torch.manual_seed(3)
    first = torch.rand(2)
    with installed(FakeDevice()):
        torch.cuda.init()
        assert not torch.equal(torch.rand(2), first)


def test_generators(device: FakeDevice) -> None:
    generator = torch.Generator(device="cuda:1").manual_seed(5)
    assert generator.device == torch.device("cuda:1")
    assert isinstance(generator, torch.Generator)
    assert torch.Generator(device="cuda").device == torch.device("cuda:0")
    state = generator.get_state()
    first = torch.rand(3, generator=generator)
    twins = [copy.deepcopy(generator), pickle.loads(pickle.dumps(generator)), generator.clone_state()]
    second = torch.rand(3, generator=generator)
    for twin in twins:
        assert twin.device == generator.device
        assert torch.equal(torch.rand(3, generator=twin), second)
    generator.set_state(state)
    assert torch.equal(torch.rand(3, generator=generator), first)
    with pytest.raises(RuntimeError, match="The device_index is invalid"):
        torch.Generator("cuda:2")
    cpu = torch.Generator()
    assert cpu.device == torch.device("cpu")
    assert isinstance(cpu, torch.Generator)
    assert pickle.loads(pickle.dumps(cpu)).device == torch.device("cpu")


def test_what_kernels_are_given(device: FakeDevice) -> None:
    own = torch.Generator("cuda")
    assert cuda_api.kernel_generator(own) is own
    assert cuda_api.kernel_generator(torch.cuda.default_generators[1]) is torch.default_generator
    assert cuda_api.kernel_generator(None) is None


def test_the_state_of_a_real_cuda_generator_is_taken_as_its_seed(device: FakeDevice) -> None:
    saved = torch.tensor([42, 4096], dtype=torch.int64).view(torch.uint8)
    torch.cuda.set_rng_state(saved)
    drawn = torch.rand(2)
    assert torch.equal(drawn, torch.rand(2, generator=torch.Generator().manual_seed(42)))

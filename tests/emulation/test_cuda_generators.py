"""Random number generators and seeds of the emulated device."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator

import pytest
import torch
from emulation.fake_device import FakeDevice, installed

from gapless.emulation import cuda_api


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


def saved_on_a_gpu(seed: int, offset: int) -> torch.Tensor:
    return torch.tensor([seed, offset], dtype=torch.int64).view(torch.uint8)


def test_the_state_of_a_real_cuda_generator_names_one_sequence(device: FakeDevice) -> None:
    torch.cuda.set_rng_state(saved_on_a_gpu(42, 0))
    drawn = torch.rand(2)
    assert torch.equal(drawn, torch.rand(2, generator=torch.Generator().manual_seed(42)))
    torch.cuda.set_rng_state(saved_on_a_gpu(42, 4096))
    later = torch.rand(2)
    assert not torch.equal(later, drawn)
    torch.cuda.manual_seed(1)
    torch.cuda.set_rng_state(saved_on_a_gpu(42, 4096))
    assert torch.equal(torch.rand(2), later)
    assert torch.cuda.initial_seed() == 42


def test_a_state_is_sixteen_bytes_of_seed_and_offset(device: FakeDevice) -> None:
    torch.cuda.manual_seed(7)
    state = torch.cuda.get_rng_state()
    assert (state.dtype, state.shape, str(state.device)) == (torch.uint8, (16,), "cpu")
    assert state.view(torch.int64).tolist() == [7, 0]
    torch.rand(3)
    after = torch.cuda.get_rng_state().view(torch.int64)
    assert after[0] == 7
    assert after[1] > 0
    assert after[1] % 4 == 0
    assert torch.equal(torch.cuda.get_rng_state().view(torch.int64), after)


def test_offsets_can_be_reckoned_with(device: FakeDevice) -> None:
    """As DTensor does: each rank draws from an offset of its own, and all go on from a common one."""
    torch.cuda.manual_seed(5)
    start = torch.cuda.get_rng_state()
    drawn = []
    for rank in (0, 1, 0):
        state = start.clone()
        state[8:] = (state[8:].view(torch.int64) + 8 * rank).view(torch.uint8)
        torch.cuda.set_rng_state(state)
        drawn.append(torch.rand(4))
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])


@pytest.mark.parametrize("state", [torch.get_rng_state(), torch.zeros(15, dtype=torch.uint8)])
def test_the_state_of_a_cpu_generator_is_refused_as_cuda_refuses_it(
    device: FakeDevice, state: torch.Tensor
) -> None:
    with pytest.raises(RuntimeError, match="RNG state is wrong size"):
        torch.cuda.set_rng_state(state)


def test_a_great_seed_and_states_that_are_forgotten(device: FakeDevice) -> None:
    generator = torch.Generator("cuda").manual_seed((1 << 64) - 3)
    first = generator.get_state()
    assert first.view(torch.uint64)[0].item() == (1 << 64) - 3
    drawn = torch.rand(2, generator=generator)
    generator.set_state(first)
    assert torch.equal(torch.rand(2, generator=generator), drawn)
    generator.set_offset(1 << 20)
    assert generator.get_offset() == 1 << 20
    with pytest.raises(RuntimeError, match="multiple of 4"):
        generator.set_offset(3)

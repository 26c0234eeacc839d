"""Legacy tensor types, copies among devices, cuDNN, NVTX and the CUDA runtime."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.cuda.comm
import torch.cuda.tunable
from emulation.fake_device import FakeDevice, installed
from torch.overrides import TorchFunctionMode

from gapless.emulation import cuda_api
from gapless.emulation.emulator import Emulator
from gapless.errors import NotEmulated


@pytest.fixture
def device() -> Iterator[FakeDevice]:
    with installed(FakeDevice()) as fake:
        yield fake


# -- legacy types --------------------------------------------------------------------------------------------


def test_legacy_tensor_types(device: FakeDevice) -> None:
    kind = torch.cuda.FloatTensor
    empty = kind(2, 3)
    assert (empty.shape, empty.dtype, device.device_of(empty)) == ((2, 3), torch.float32, 0)
    assert device.waited() == []
    with torch.cuda.device(1):
        values = torch.cuda.LongTensor([1, 2])
    assert device.device_of(values) == 1
    assert values.tolist() == [1, 2]
    assert device.waited() == [("aten::_to_copy", "h2d", "torch.cuda.LongTensor")]
    assert isinstance(empty, kind)
    assert not isinstance(values, kind)
    assert not isinstance(torch.zeros(1), kind)
    assert repr(kind) == "<class 'torch.cuda.FloatTensor'>"
    assert kind(torch.Size([4])).shape == (4,)
    assert kind().numel() == 0
    with pytest.raises(TypeError, match="expects device type: cuda but device type: cpu was passed"):
        kind(2, device="cpu")
    with pytest.raises(TypeError, match=r"expected FloatTensor \(got torch.FloatTensor\)"):
        kind(torch.zeros(1))


@pytest.mark.parametrize(
    ("named", "meant"),
    [
        ("torch.cuda.HalfTensor", ("cuda", torch.float16)),
        ("torch.LongTensor", ("cpu", torch.int64)),
        (torch.LongTensor, ("cpu", torch.int64)),
        ("torch.float32", None),
        (torch.float32, None),
        (int, None),
    ],
)
def test_legacy_type_names(named: Any, meant: Any) -> None:
    assert cuda_api.legacy_type(named) == meant


def test_legacy_types_by_object(device: FakeDevice) -> None:
    assert cuda_api.legacy_type(torch.cuda.BoolTensor) == ("cuda", torch.bool)


# -- libraries -----------------------------------------------------------------------------------------------


class MovesTo(TorchFunctionMode):
    """Lets ``Tensor.to`` reach the fake device."""

    def __init__(self, fake: FakeDevice) -> None:
        self.fake = fake

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.to and torch.device(args[1]).type == "cuda":
            return self.fake.place(args[0].clone(), torch.device(args[1]).index)
        if func is torch.Tensor.is_cuda.__get__:
            return self.fake.device_of(args[0]) >= 0
        return func(*args, **(kwargs or {}))


def test_copies_among_devices(device: FakeDevice) -> None:
    with MovesTo(device):
        source = device.place(torch.arange(6.0), 0)
        copies = torch.cuda.comm.broadcast(source, devices=[0, 1])
        assert [device.device_of(copy) for copy in copies] == [0, 1]
        pieces = torch.cuda.comm.scatter(source, devices=[0, 1], chunk_sizes=[4, 2])
        assert [(device.device_of(piece), piece.tolist()) for piece in pieces] == [
            (0, [0.0, 1.0, 2.0, 3.0]),
            (1, [4.0, 5.0]),
        ]
        assert [len(piece) for piece in torch.cuda.comm.scatter(source, devices=[0, 1])] == [3, 3]
        assert torch.cuda.comm.gather(pieces, destination="cpu").tolist() == source.tolist()
        out = [torch.zeros(4), torch.zeros(2)]
        torch.cuda.comm.scatter(source, out=[device.place(target, 0) for target in out])
        assert [target.tolist() for target in out] == [piece.tolist() for piece in pieces]
        whole = device.place(torch.zeros(6), 1)
        assert torch.cuda.comm.gather(out, out=whole).tolist() == source.tolist()
        torch.cuda.comm.broadcast(source, out=[whole.zero_()])
        assert whole.tolist() == source.tolist()
        ((tensor, two), _) = torch.cuda.comm.broadcast_coalesced([source, source], devices=[0, 1])
        assert device.device_of(tensor) == device.device_of(two) == 0


def test_backends(device: FakeDevice) -> None:
    assert torch.backends.cuda.is_built()
    assert torch.backends.cudnn.is_available()
    assert isinstance(torch.backends.cudnn.version(), int)
    assert not torch.backends.cudnn.is_acceptable(torch.zeros(1))
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False):
        assert torch.backends.cudnn.benchmark
    assert not torch.backends.cudnn.benchmark
    rnn = torch.nn.LSTM(2, 2)
    rnn.flatten_parameters()


def test_ranges_and_profiler_calls_are_accepted(device: FakeDevice) -> None:
    assert [torch.cuda.nvtx.range_push("a"), torch.cuda.nvtx.range_push("b")] == [0, 1]
    assert [torch.cuda.nvtx.range_pop(), torch.cuda.nvtx.range_pop()] == [1, 0]
    with torch.cuda.nvtx.range("step {}", 1):
        torch.cuda.nvtx.mark("here")
    torch.cuda.nvtx.range_end(torch.cuda.nvtx.range_start("c"))
    with torch.cuda.profiler.profile():
        pass
    torch.cuda.check_error(torch.cuda.cudart().cudaProfilerStart())
    with pytest.raises(torch.cuda.CudaError, match=r"invalid device ordinal \(101\)"):
        torch.cuda.check_error(101)
    assert torch.cuda.nccl.version() >= (2, 0)


def test_settings_are_kept_and_given_back(device: FakeDevice) -> None:
    backends = torch.backends.cuda
    assert backends.preferred_linalg_library("magma") == torch._C._LinalgBackend.Magma
    assert backends.preferred_linalg_library() == torch._C._LinalgBackend.Magma
    torch.cuda.tunable.set_max_tuning_duration(3)
    torch.cuda.tunable.set_filename("results.csv")
    assert torch.cuda.tunable.get_max_tuning_duration() == 3
    assert torch.cuda.tunable.get_filename() == "results.csv"
    assert not torch.cuda.tunable.is_enabled()
    torch.cuda.init()
    with torch.cuda.caching_allocator_disabled():
        assert not torch._C._cuda_cudaCachingAllocator_is_enabled()
    assert torch._C._cuda_cudaCachingAllocator_is_enabled()


def test_plan_caches_belong_to_a_device(device: FakeDevice) -> None:
    caches = torch.backends.cuda.cufft_plan_cache
    caches[1].max_size = 8
    assert (caches.max_size, caches[1].max_size, caches.size) == (4096, 8, 0)
    caches.clear()
    with pytest.raises(RuntimeError, match="read-only property"):
        caches[0].size = 3
    with pytest.raises(RuntimeError, match="expected 0 <= device index < 2"):
        caches[2]


def test_what_a_build_has_beyond_what_is_emulated_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_cuda_newerThanThis", lambda: 1, raising=False)
    with (
        installed(FakeDevice()),
        pytest.raises(NotEmulated, match=r"torch\._C\._cuda_newerThanThis needs"),
    ):
        torch._C._cuda_newerThanThis()
    assert torch._C._cuda_newerThanThis() == 1


def test_torch_tensor_is_of_the_default_type() -> None:
    with Emulator() as emulator:
        try:
            torch.set_default_tensor_type("torch.cuda.FloatTensor")
            before = emulator.recorder.total
            result = torch.Tensor([1e10])
            assert emulator.recorder.total == before + 1
            assert result.is_cuda
            assert torch.cat([result, torch.ones(2)]).is_cuda
            assert torch.Tensor(2, 3).is_cuda
            assert torch.nn.Linear(2, 2).weight.is_cuda
            assert not torch.FloatTensor([1.0]).is_cuda
        finally:
            torch.set_default_tensor_type(torch.FloatTensor)
        assert not torch.Tensor([1.0]).is_cuda
    assert "__new__" not in vars(torch.Tensor)
    assert torch.Tensor([1.0]).tolist() == [1.0]

"""``torch.cuda`` and ``torch.accelerator``: installing, devices, initialization, and every public name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from emulation.fake_device import MIB, FakeDevice, installed

from gapless.emulation import cuda_api
from gapless.errors import NotEmulated
from gapless.model import gpus


@pytest.fixture
def device() -> Iterator[FakeDevice]:
    with installed(FakeDevice()) as fake:
        yield fake


def torch_namespaces() -> dict[str, dict[str, int]]:
    return {
        name: {key: id(value) for key, value in vars(module).items() if key != "__warningregistry__"}
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] == "torch" and hasattr(module, "__dict__")
    }


# -- installing and undoing ----------------------------------------------------------------------------------


def test_undo_leaves_torch_as_it_was() -> None:
    with installed(FakeDevice()):  # the first time torch may import modules of its own
        torch.cuda.synchronize()
    before = torch_namespaces()
    module = torch.get_device_module()
    streams = {name: vars(cuda_api.streams.StreamBase).get(name) for name in ("runtime", "_slots")}
    with installed(FakeDevice()) as fake:
        torch.manual_seed(0)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("warn")
        torch.accelerator.get_device_capability()
        torch.get_device_module()
        assert torch_namespaces() != before
    assert fake.waits
    assert torch_namespaces() == before
    assert streams == {name: vars(cuda_api.streams.StreamBase).get(name) for name in streams}
    assert torch.get_device_module() is module


def test_each_installation_starts_afresh() -> None:
    with installed(FakeDevice()):
        torch.cuda.init()
        first = torch.cuda.Stream().cuda_stream
    with installed(FakeDevice(count=1)):
        assert not torch.cuda.is_initialized()
        assert torch.cuda.device_count() == 1
        assert torch.cuda.Stream().cuda_stream == first


def test_a_cuda_build_without_a_gpu_is_answered_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """There torch._C has the functions already, and they raise."""

    def no_driver(*_: Any, **__: Any) -> None:
        raise RuntimeError("Found no NVIDIA driver on your system.")

    names = ("_cuda_init", "_cuda_getDeviceCount", "_cuda_getDevice", "_cuda_setDevice", "_cuda_synchronize")
    for name in (*names, "_cuda_getCurrentStream", "_cuda_memoryStats", "_cuda_isInBadFork"):
        monkeypatch.setattr(torch._C, name, no_driver, raising=False)
    monkeypatch.setattr(torch.cuda, "_exchange_device", no_driver)
    monkeypatch.setattr(torch.version, "cuda", "12.6")
    with pytest.raises(RuntimeError, match="Found no NVIDIA driver"):
        torch._C._cuda_getDeviceCount()
    with installed(FakeDevice()) as fake:
        assert torch.cuda.is_available()
        torch.cuda.set_device(1)
        torch.cuda.synchronize(0)
        assert torch.cuda.current_stream().device == torch.device("cuda:1")
        assert torch.version.cuda == "12.6"
        assert fake.waited() == [("cudaDeviceSynchronize", "explicit", "torch.cuda.synchronize")]
    assert torch._C._cuda_getDeviceCount is no_driver


# -- devices -------------------------------------------------------------------------------------------------


def test_properties_are_those_of_the_gpu() -> None:
    with installed(FakeDevice(gpus.find("h100"))):
        properties = torch.cuda.get_device_properties("cuda:1")
        assert torch.cuda.get_device_name() == properties.name == "NVIDIA H100 80GB HBM3"
        assert torch.cuda.get_device_capability(1) == (properties.major, properties.minor) == (9, 0)
        assert properties.total_memory == 81090 * MIB
        assert properties.multi_processor_count == 132
        assert properties.uuid.bytes != torch.cuda.get_device_properties(0).uuid.bytes
        assert repr(properties) == (
            "_CudaDeviceProperties(name='NVIDIA H100 80GB HBM3', major=9, minor=0, total_memory=81090MB, "
            f"multi_processor_count=132, uuid={properties.uuid}, pci_bus_id=2, pci_device_id=0, "
            "pci_domain_id=0, L2_cache_size=50MB)"
        )
        assert isinstance(properties, torch.cuda._CudaDeviceProperties)


@pytest.mark.parametrize(
    ("name", "bf16", "version"), [("t4", False, "13.0"), ("v100", False, "12.6"), ("l4", True, "13.0")]
)
def test_the_build_fits_the_gpu(
    name: str, bf16: bool, version: str, recwarn: pytest.WarningsRecorder
) -> None:
    with installed(FakeDevice(gpus.find(name))):
        assert torch.cuda.is_bf16_supported(including_emulation=False) is bf16
        assert torch.cuda.is_tf32_supported() is bf16
        if torch.version.git_version and "+cpu" in torch.__version__:
            assert torch.version.cuda == version
        major, minor = torch.cuda.get_device_capability()
        assert any(arch.startswith(f"sm_{major}") for arch in torch.cuda.get_arch_list())
        torch.cuda._check_capability()
        torch.cuda._check_cubins()
        assert minor >= 0
    assert not [warning for warning in recwarn if "CUDA" in str(warning.message)]


@pytest.mark.parametrize(
    "ask",
    [
        lambda: torch.cuda.set_device(5),
        lambda: torch.cuda.set_device("cuda:2"),
        lambda: torch.cuda.device(2).__enter__(),
        lambda: torch.cuda.synchronize(7),
        lambda: torch.cuda.current_stream(4),
        lambda: torch.cuda.mem_get_info(2),
        lambda: torch.cuda.reset_peak_memory_stats(2),
        lambda: torch.accelerator.set_device_index(2),
        lambda: torch.accelerator.device_index(2).__enter__(),
    ],
)
def test_an_ordinal_that_does_not_exist_fails_as_cuda_fails(
    device: FakeDevice, ask: Callable[[], Any]
) -> None:
    torch.cuda.init()
    with pytest.raises(
        torch.AcceleratorError, match=r"^CUDA error: invalid device ordinal\nGPU device may be"
    ) as caught:
        ask()
    assert caught.value.error_code == 101
    assert device.current_device() == 0
    assert device.waits == []


def test_device_contexts(device: FakeDevice) -> None:
    observed = []
    with torch.cuda.device(1):
        observed.append(torch.cuda.current_device())
        with torch.cuda.device(None), torch.accelerator.device_index(0):
            observed.append(torch.accelerator.current_device_index())
        observed.append(torch.cuda.current_device())
    assert [*observed, torch.cuda.current_device()] == [1, 0, 1, 0]
    torch.accelerator.set_device_index("cuda:1")
    assert torch.cuda.current_device() == 1
    with pytest.raises(AssertionError, match="Invalid device id"):
        torch.cuda.get_device_properties(2)
    with pytest.raises(ValueError, match="Expected a cuda device, but got: cpu"):
        torch.cuda.set_device("cpu")
    assert torch.cuda.can_device_access_peer(0, 1)


@pytest.mark.parametrize(
    ("variable", "count"),
    [
        (None, 2),
        ("0", 1),
        ("0,1", 2),
        ("0,1,2,3", 2),
        ("3", 1),
        ("", 0),
        ("-1", 0),
        ("0,-1,1", 1),
        ("1,1", 0),
        ("GPU-8a, 0", 2),
    ],
)
def test_cuda_visible_devices(monkeypatch: pytest.MonkeyPatch, variable: str | None, count: int) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with installed(FakeDevice()):
        if variable is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)  # as a script does before it asks for CUDA
        assert torch.cuda.device_count() == torch.accelerator.device_count() == count
        assert torch.cuda.is_available() is (count > 0)
        if count == 0:
            with pytest.raises(RuntimeError, match=r"^No CUDA GPUs are available$"):
                torch.cuda.init()


@pytest.mark.parametrize("variable", ["", "-1"])
def test_a_gpu_hidden_from_outside_is_emulated_all_the_same(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    device = FakeDevice()
    with installed(device):
        assert torch.cuda.device_count() == 2
    assert any("CUDA_VISIBLE_DEVICES" in note for note in device.notes)


def test_accelerator_is_the_cuda_device(device: FakeDevice) -> None:
    accelerator = torch.accelerator
    assert accelerator.is_available()
    assert accelerator.current_accelerator(check_available=True) == torch.device("cuda")
    assert torch.get_device_module() is torch.get_device_module("cuda:1") is torch.cuda
    assert accelerator._get_device_index("cuda:1") == 1
    assert torch.float16 in accelerator.get_device_capability()["supported_dtypes"]
    with pytest.raises(ValueError, match="cpu doesn't match the current accelerator"):
        accelerator.set_device_index(torch.device("cpu"))


# -- initialization and forks --------------------------------------------------------------------------------


def test_cuda_is_initialized_when_it_is_used(device: FakeDevice) -> None:
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 2
    torch.manual_seed(1)
    torch.cuda.manual_seed(1)
    assert not torch.cuda.is_initialized()
    assert torch.cuda.memory_allocated() == 0
    device.holds(MIB, 1)
    assert torch.cuda.is_initialized()
    assert torch.cuda.memory_allocated(1) == MIB


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("used", [False, True])
def test_cuda_cannot_be_used_again_in_a_forked_child(device: FakeDevice, used: bool) -> None:
    if used:
        torch.cuda.init()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            torch.cuda.synchronize()
            words = "used"
        except BaseException as error:
            words = f"{type(error).__name__}: {error}"
        state = (torch.cuda._is_in_bad_fork(), torch.cuda.is_available(), torch.cuda.is_initialized())
        os.write(writing, repr((words, state)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    if used:
        assert said == repr(
            (
                "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with "
                "multiprocessing, you must use the 'spawn' start method",
                (True, True, False),
            )
        )
    else:
        assert said == repr(("used", (False, True, True)))


# -- every name ----------------------------------------------------------------------------------------------

CALLS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        (
            *("current_device", "current_stream", "default_stream", "device_count", "get_arch_list", "init"),
            *("get_allocator_backend", "get_device_capability", "get_device_name", "get_device_properties"),
            *(
                "get_gencode_flags",
                "get_rng_state",
                "get_rng_state_all",
                "get_sync_debug_mode",
                "initial_seed",
            ),
            *("graph_pool_handle", "ipc_collect", "is_available", "is_bf16_supported", "is_initialized"),
            *("is_current_stream_capturing", "is_tf32_supported", "list_gpu_processes", "memory_allocated"),
            *(
                "max_memory_allocated",
                "max_memory_reserved",
                "mem_get_info",
                "memory_reserved",
                "memory_snapshot",
            ),
            *(
                "memory_stats",
                "memory_stats_as_nested_dict",
                "memory_summary",
                "host_memory_stats",
                "empty_cache",
            ),
            *(
                "host_memory_stats_as_nested_dict",
                "reset_accumulated_host_memory_stats",
                "synchronize",
                "seed",
            ),
            *("reset_accumulated_memory_stats", "reset_peak_host_memory_stats", "reset_peak_memory_stats"),
            *("seed_all", "utilization", "memory_usage", "temperature", "power_draw", "clock_rate", "cudart"),
            *("device_memory_used", "get_per_process_memory_fraction", "caching_allocator_disabled"),
            *("caching_allocator_enable", "current_accelerator", "current_device_index", "empty_host_cache"),
            *("get_memory_info", "Event", "Stream"),
        ),
        (),
    ),
    "can_device_access_peer": (0, 1),
    "check_error": (0,),
    "device": (0,),
    "device_index": (0,),
    "device_of": (torch.zeros(1),),
    "ExternalStream": (16,),
    "get_stream_from_external": (16,),
    "manual_seed": (0,),
    "manual_seed_all": (0,),
    "CUDAGraph": (),
    "graph": (None,),
    "make_graphed_callables": ((), ()),
    "set_device": (0,),
    "set_device_index": (0,),
    "set_per_process_memory_fraction": (0.5,),
    "set_rng_state": (torch.zeros(16, dtype=torch.uint8),),
    "set_rng_state_all": ([torch.zeros(16, dtype=torch.uint8)],),
    "set_sync_debug_mode": ("default",),
    "stream": (None,),
    "StreamContext": (None,),
    "cudaStatus": (),
}
REFUSED: dict[str, tuple[Any, ...]] = {
    "caching_allocator_alloc": (8,),
    "caching_allocator_delete": (8,),
    "change_current_allocator": (torch.cuda.memory._CUDAAllocator(None),),
    "current_blas_handle": (),
    "current_solver_handle": (),
    "Graph": (),
    "GreenContext": (),
    "MemPool": (),
}
DEPRECATED = ("max_memory_cached", "memory_cached", "reset_max_memory_allocated", "reset_max_memory_cached")
SPOKEN_OF_ELSEWHERE = {
    *(
        "amp",
        "gds",
        "green_contexts",
        "jiterator",
        "memory",
        "nccl",
        "nvtx",
        "profiler",
        "random",
        "sparse",
        "streams",
    ),
    *("graph_annotations", "export_dot", "export_graph_data"),
    *("tunable", "graphs", "use_mem_pool", "default_generators", "has_half", "has_magma"),
    *("AcceleratorError", "OutOfMemoryError", "CudaError", "DeferredCudaCallError", "CUDAPluggableAllocator"),
    *("current_device_idx", "set_device_idx"),  # deprecated names of functions above
}


@pytest.mark.parametrize("module", [torch.cuda, torch.accelerator], ids=["cuda", "accelerator"])
def test_every_public_name_is_decided(device: FakeDevice, module: Any) -> None:
    named = {name for name in module.__all__ if not name.endswith(("Tensor", "Storage"))}
    assert named - CALLS.keys() - REFUSED.keys() - set(DEPRECATED) - SPOKEN_OF_ELSEWHERE == {"set_stream"}
    module.set_stream(torch.cuda.Stream())
    for name in sorted(named & CALLS.keys()):
        getattr(module, name)(*CALLS[name])
    for name in sorted(named & REFUSED.keys()):
        with pytest.raises(NotEmulated, match=f"{name} needs a CUDA device. [A-Z]"):
            getattr(module, name)(*REFUSED[name])
    for name in sorted(named & set(DEPRECATED)):
        with pytest.warns(FutureWarning):
            getattr(module, name)()


@pytest.mark.parametrize(
    "ask",
    [
        lambda: torch.cuda.use_mem_pool(type("Pool", (), {"id": (0, 1)})()).__enter__(),
        lambda: torch.cuda.jiterator._create_jit_fn("template <typename T> T f(T x) { return x; }")(
            torch.zeros(1)
        ),
        lambda: torch.cuda.FloatStorage(3),
        lambda: torch.cuda.BoolStorage([True]),
        lambda: torch.cuda.gds.GdsFile("x", 0),
        lambda: torch.cuda.nccl.all_reduce([torch.zeros(1)]),
        lambda: torch.cuda.GreenContext.create(num_sms=8),
        lambda: torch.cuda.tunable.get_results(),
        lambda: torch.cuda.Event().ipc_handle(),
        lambda: torch.cuda.cudart().cudaStreamCreate(0),
    ],
)
def test_what_needs_a_gpu_says_so(device: FakeDevice, ask: Callable[[], Any]) -> None:
    with pytest.raises(NotEmulated, match=r"needs a CUDA device\. [A-Z].*\.$"):
        ask()


def test_readings_without_a_sensor_say_so(device: FakeDevice) -> None:
    assert torch.cuda.temperature() == 0
    assert device.notes == [
        "torch.cuda.temperature() has nothing to measure on the emulated device and returned 0"
    ]

"""``torch.cuda.*`` and ``torch.accelerator.*`` of the emulated GPUs.

`install` makes Python's CUDA functions answer as on a machine with the device's GPUs. What cannot work
without a GPU raises `NotEmulated` and says what to do. The placement of tensors is up to the rest of the
emulation, reached through `Device`.

Torch's C++ does not call these. On a CUDA build of torch they replace its own functions.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.cuda.nccl
import torch.cuda.nvtx

from gapless.emulation.cuda_api import (
    bindings,
    generators,
    graphs,
    libraries,
    settings,
    streams,
    tensor_types,
)
from gapless.emulation.cuda_api.generators import DeviceGenerator, kernel_generator
from gapless.emulation.cuda_api.memory import CudaMemory
from gapless.emulation.cuda_api.properties import DeviceProperties
from gapless.emulation.cuda_api.runtime import Runtime, refusal
from gapless.emulation.cuda_api.tensor_types import legacy_type
from gapless.emulation.support.device import Device
from gapless.emulation.support.patches import Patches
from gapless.torch_internals import C, LazySeedTracker

__all__ = ["DeviceGenerator", "install", "kernel_generator", "legacy_type"]

CUDNN_VERSIONS = (92000, 91002)
"""cuDNN of torch 2.13, and the last version for GPUs older than Turing."""

_CUDNN_RNN_MODES = {"RNN_RELU": 0, "RNN_TANH": 1, "LSTM": 2, "GRU": 3}
"""cuDNN's numbers, which a build without it does not have."""

_GRAPHS = "Use torch.cuda.CUDAGraph, which is emulated."
_KERNELS = "No kernel runs on an emulated device: use the eager expression when the device is emulated."
_FILES = "Use torch.save and torch.load when the device is emulated."


def install(device: Device, patches: Patches) -> None:
    """Make torch's Python functions for CUDA describe `device`, until `patches` are undone."""
    runtime = Runtime(device)
    memory = CudaMemory(runtime)
    _state_of_torch_cuda(runtime, patches)
    for name, function in bindings.cuda(runtime, memory).items():
        patches.set_everywhere(C, name, function)
    stream_class = _stream_classes(runtime, patches)
    for name, function in bindings.accelerator(runtime, memory, stream_class).items():
        patches.set(C, name, function)
    graphs.install(runtime, patches)
    _drop_torch_caches(patches)
    _install_generators(runtime, patches)
    tensor_types.install(runtime, patches)
    _install_libraries(runtime, memory, patches)
    _patch_build_info(device, patches)
    _refuse_unsupported(patches)


def _state_of_torch_cuda(runtime: Runtime, patches: Patches) -> None:
    """Set the module globals of ``torch.cuda`` that its own functions read and write."""
    device = runtime.device
    properties = [DeviceProperties(device.gpu, index) for index in range(device.device_count)]

    def properties_of(index: int) -> DeviceProperties:
        device.note_query()
        return properties[index]

    values: dict[str, Any] = {
        "_initialized": False,
        "_cached_device_count": None,
        "_queued_calls": [],
        "_lazy_seed_tracker": LazySeedTracker(),  # seeds of before the device stay there
        "_exchange_device": runtime.exchange,
        "_maybe_exchange_device": runtime.exchange,
        "_get_device_properties": properties_of,
        "_CudaDeviceProperties": DeviceProperties,
        "_device_count_nvml": lambda: -1,  # a real driver's count must not show
        "_raw_device_count_nvml": lambda: -1,
    }
    for name, value in values.items():
        patches.set(torch.cuda, name, value)
    patches.set(C, "_CudaDeviceProperties", DeviceProperties)
    for name, function in {
        "_is_in_bad_fork": runtime.in_bad_fork,
        "is_initialized": runtime.is_initialized,
        "_lazy_call": runtime.call_now,
    }.items():
        patches.set_everywhere(torch.cuda, name, function)


def _stream_classes(runtime: Runtime, patches: Patches) -> Any:
    """Install streams and events under all their names; return ``torch.cuda.Stream``."""
    slots, handles = streams.fresh_counters()
    for base in (streams.StreamBase, streams.EventBase):
        patches.set(base, "runtime", runtime)
    patches.set(streams.StreamBase, "_slots", slots)
    patches.set(streams.EventBase, "_handles", handles)
    patches.set(C, "_CudaStreamBase", streams.StreamBase)
    patches.set(C, "_CudaEventBase", streams.EventBase)
    built = streams.torch_classes()
    for name in ("Stream", "ExternalStream", "Event"):
        patches.set_everywhere(torch.cuda.streams, name, getattr(built, name))
    generic_stream, generic_event = streams.generic_classes(built.Stream, built.Event)
    patches.set(torch, "Stream", generic_stream)
    patches.set(torch, "Event", generic_event)
    return built.Stream


def _drop_torch_caches(patches: Patches) -> None:
    """Remove caches of torch's answers, which must not outlive the device or come from before it."""
    for owner, name in (
        (torch, "get_device_module"),
        (getattr(torch, "accelerator", None), "get_device_capability"),
        (torch.cuda, "_check_bf16_tensor_supported"),
    ):
        function = getattr(getattr(owner, name, None), "__wrapped__", None)
        if function is not None:
            patches.set_everywhere(owner, name, function)


def _install_generators(runtime: Runtime, patches: Patches) -> None:
    defaults = tuple(generators.DefaultGenerator(index) for index in range(runtime.device.device_count))
    patches.set(torch.cuda, "default_generators", defaults)
    # Not in torch._C: there pickle finds the class of CPU generators.
    patches.set(torch, "Generator", generators.generic_class(runtime))


def _install_libraries(runtime: Runtime, memory: CudaMemory, patches: Patches) -> None:
    cudart = libraries.Cudart(runtime, memory)
    patches.set(torch.cuda, "_cudart", cudart)
    patches.set(C, "_cudart", cudart)
    patches.set(torch.cuda.nvtx, "_nvtx", libraries.Nvtx())
    # torch.cuda.comm falls back from NCCL to plain copies where NCCL cannot take the tensors.
    patches.set(torch.cuda.nccl, "is_available", lambda tensors: False)
    for name, function in libraries.copies().items():
        patches.set(C, name, function)
    for name, function in libraries.sensors(runtime, memory).items():
        patches.set_everywhere(torch.cuda, name, function)


def _patch_build_info(device: Device, patches: Patches) -> None:
    """Patch the versions torch was built with; a CUDA build keeps its own."""
    patches.set(C, "_has_cuda", True)
    if torch.version.cuda is None:
        version = bindings.compiled_version(device.gpu.capability)
        patches.set(torch.version, "cuda", f"{version // 1000}.{version % 1000 // 10}")
    cudnn: Any = getattr(torch.backends.cudnn, "m", torch.backends.cudnn)  # torch wraps the module in another
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "version": lambda: CUDNN_VERSIONS[device.gpu.capability < (7, 5)],
        "is_acceptable": _takes_cudnn,
    }
    for name, function in answers.items():
        patches.set(cudnn, name, function)
    patches.set(torch, "_use_cudnn_rnn_flatten_weight", lambda: True)
    patches.set(torch.backends.cudnn.rnn, "get_cudnn_mode", _CUDNN_RNN_MODES.__getitem__)
    patches.set(C, "_is_flash_attention_available", lambda: device.gpu.capability >= (8, 0))
    settings.install_plan_caches(patches)


def _takes_cudnn(tensor: torch.Tensor) -> bool:
    """Whether cuDNN computes with this tensor."""
    cudnn = torch.backends.cudnn
    return bool(cudnn.enabled and tensor.is_cuda and tensor.dtype in cudnn.CUDNN_TENSOR_DTYPES)


def _refuse_unsupported(patches: Patches) -> None:
    """Replace classes and functions that cannot work without a GPU by ones that raise."""
    for path, instead in {
        "torch.accelerator.Graph": _GRAPHS,
        "torch.cuda.memory.MemPool": bindings.TORCH_ALLOCATES,
        "torch.cuda.memory._use_uvm": bindings.TORCH_ALLOCATES,
        "torch.cuda.GreenContext": _KERNELS,
        "torch.cuda.gds.GdsFile": _FILES,
        "torch.cuda.gds.gds_register_buffer": _FILES,
        "torch.cuda.gds.gds_deregister_buffer": _FILES,
    }.items():
        module, _, name = path.rpartition(".")
        owner = sys.modules.get(module)
        original = getattr(owner, name, None)
        if original is not None:  # not every torch has all of them
            said = path.replace(".memory.", ".")
            patches.set_everywhere(owner, name, _refusing_stand_in(original, said, instead))


def _refusing_stand_in(original: Any, name: str, instead: str) -> Any:
    """Return a stand-in for `original` that raises when called; a class for a class, for ``isinstance``."""
    refuse = refusal(name, instead)
    if not isinstance(original, type):
        return refuse
    stand_in: Any = type(original.__name__, (), {"__new__": lambda cls, *args, **kwargs: refuse()})
    for member in ("create", "max_workqueue_concurrency"):
        if hasattr(original, member):
            setattr(stand_in, member, staticmethod(refuse))
    stand_in.__module__ = original.__module__
    return stand_in

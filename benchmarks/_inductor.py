"""What inductor makes of a model for a GPU that is not there: kernels, counted in the code it writes.

It needs Triton, and no GPU: the generated code is read, not run. AOT autograd traces on the CPU,
since a backward pass cannot be traced for a device that torch has no kernels for; its graphs are then put on
the GPU and lowered there.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import importlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_CUDA, _META = 1, 14
_TRITON = re.compile(r"^\s*(\w+)\.run\(", re.MULTILINE)
_OTHER = re.compile(r"(?:extern_kernels\.(\w+)\(|torch\.ops\.([\w.]+)\()")
_A100 = SimpleNamespace(
    name="NVIDIA A100-SXM4-80GB", major=8, minor=0, total_memory=80 << 30, multi_processor_count=108,
    regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, warp_size=32,
    shared_memory_per_block=49152, shared_memory_per_block_optin=166912, gcnArchName="",
    L2_cache_size=40 << 20, max_threads_per_block=1024, clock_rate=1410000, memory_clock_rate=1593000,
    memory_bus_width=5120,
)  # fmt: skip


@dataclass(frozen=True)
class Kernels:
    """Launches in generated code: number of Triton kernels, and the names of the `other_kernels` (products,
    convolutions…).
    """

    triton: int
    other_kernels: tuple[str, ...]
    code: str = ""

    @property
    def count(self) -> int:
        """Number of launches."""
        return self.triton + len(self.other_kernels)


def kernels_of_model(call: Callable[[], Any], *modules: torch.nn.Module) -> dict[str, list[Kernels]]:
    """Return the kernels of what `call` computes with `modules`, which are compiled in place: of their
    ``forward``, ``backward`` and (without gradients) ``inference`` graphs."""
    from functorch.compile import make_boxed_func, min_cut_rematerialization_partition

    common = importlib.import_module("torch._dynamo.backends.common")
    graphs: list[tuple[str, Any, list[Any]]] = []

    def lowering(kind: str) -> Any:
        def lower(graph: Any, inputs: Any) -> Any:
            graphs.append((kind, copy.deepcopy(graph), list(inputs)))
            return make_boxed_func(graph.forward)

        return lower

    backend = common.aot_autograd(
        fw_compiler=lowering("forward"),
        bw_compiler=lowering("backward"),
        inference_compiler=lowering("inference"),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=_decompositions(),
    )
    _install_null_guard()
    for module in modules:
        module.forward = torch.compile(module.forward, backend=backend)
    call()
    kernels_of: dict[str, list[Kernels]] = {"forward": [], "backward": [], "inference": []}
    for kind, graph, inputs in graphs:  # not while the compiler's own fakes are about
        kernels_of[kind].append(_lower_on_gpu(graph, inputs, kind))
    return kernels_of


def kernels_of_function(function: Callable[..., Any], *inputs: Any) -> Kernels:
    """Return the kernels of `function` without gradients; the tensors in `inputs` are on the devices they
    name, where "cuda" may be a fake."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    _install_null_guard()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        fakes = [_on_gpu(tensor) for tensor in inputs]
        graph = make_fx(torch.func.functionalize(function), decomposition_table=_decompositions())(*fakes)
    return _generate(graph, fakes, mode, "inference")


def _decompositions() -> Any:
    return importlib.import_module("torch._inductor.decomposition").select_decomp_table()


def _on_gpu(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    sizes, strides = tuple(map(int, value.shape)), tuple(map(int, value.stride()))
    return torch.empty_strided(sizes, strides, dtype=value.dtype, device="cuda:0")


def _lower_on_gpu(graph: Any, inputs: Any, kind: str) -> Kernels:
    """Move a CPU graph to the GPU and lower it."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    for node in graph.graph.nodes:
        if node.kwargs.get("device") is not None:
            node.kwargs = {**node.kwargs, "device": torch.device("cuda", 0)}
    graph.recompile()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        fakes = [_on_gpu(tensor) for tensor in inputs]
        traced = make_fx(graph, decomposition_table=_decompositions())(*fakes)
    return _generate(traced, fakes, mode, kind)


def _generate(graph: Any, fakes: Any, mode: Any, kind: str) -> Kernels:
    inductor = "torch._inductor"
    config = importlib.import_module(f"{inductor}.config")
    virtualized = importlib.import_module(f"{inductor}.virtualized").V
    compile_fx = importlib.import_module(f"{inductor}.compile_fx")
    random = importlib.import_module(f"{inductor}.fx_passes.replace_random")
    post = importlib.import_module(f"{inductor}.fx_passes.post_grad")
    lowering = importlib.import_module(f"{inductor}.graph").GraphLowering
    debug = importlib.import_module(f"{inductor}.debug").DebugContext
    inference = kind == "inference"
    with _pretend_gpu(), virtualized.set_fake_mode(mode):
        random.replace_random_passes(graph)
        compile_fx.view_to_reshape(graph)
        post.post_grad_passes(graph, is_inference=inference)
    graph.recompile()
    with _pretend_gpu():
        lowered = lowering(
            graph,
            example_inputs=fakes,
            shape_env=None,
            is_inference=inference,
            is_backward=kind == "backward",
        )
    plainly = config.patch(max_autotune=False, compile_threads=1, force_disable_caches=True)
    handling = virtualized.set_graph_handler(lowered)
    with _pretend_gpu(), debug(), handling, virtualized.set_fake_mode(mode), plainly:
        lowered.run(*fakes)
        written = lowered.codegen()[0]
    code = str(getattr(written, "value", written))
    body = code[code.index("def call(") :] if "def call(" in code else code[code.index(" call(") :]
    names = tuple(extern or operator for extern, operator in _OTHER.findall(body))
    return Kernels(
        len(_TRITON.findall(body)), tuple(name for name in names if "inductor_seeds" not in name), code
    )


@contextlib.contextmanager
def _pretend_gpu() -> Iterator[None]:
    """Answer the code generator's queries as an A100 and Triton's driver would."""
    _set_stub_driver()
    interface = importlib.import_module("torch._dynamo.device_interface").CudaInterface
    utilities = importlib.import_module("torch.utils._triton")
    scheduler = importlib.import_module("torch._inductor.scheduler")
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True, "device_count": lambda: 1, "current_device": lambda: 0,
        "get_device_properties": lambda _=None: _A100, "get_device_capability": lambda _=None: (8, 0),
        "_lazy_init": lambda: None, "is_initialized": lambda: True,
        "get_device_name": lambda _=None: _A100.name, "is_bf16_supported": lambda *_, **__: True,
    }  # fmt: skip
    device_queries = {"get_device_properties", "current_device", "is_available", "device_count"}
    with contextlib.ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(patch.object(torch.cuda, name, answer))
            if name in device_queries:
                stack.enter_context(patch.object(interface, name, staticmethod(answer)))
        stack.enter_context(
            patch.object(interface, "get_compute_capability", staticmethod(lambda _=None: 80))
        )
        for module in (utilities, scheduler):
            if hasattr(module, "has_triton"):
                stack.enter_context(patch.object(module, "has_triton", lambda *_: True))
        yield


def _install_null_guard() -> None:
    """Give CUDA the device guard of Meta, which does nothing: a torch without CUDA has none."""
    library = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so"))
    registry = (ctypes.c_void_p * 24).in_dll(library, _REGISTRY)
    registry[_CUDA] = registry[_CUDA] or registry[_META]


def _set_stub_driver() -> None:
    compiler = importlib.import_module("triton.backends.compiler")
    driver = importlib.import_module("triton.runtime.driver").driver

    class Stub:
        """Answers the queries made before anything is launched."""

        def get_current_target(self) -> Any:
            return compiler.GPUTarget("cuda", 80, 32)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, _: int = 0) -> int:
            return 0

        def get_active_torch_device(self) -> torch.device:
            return torch.device("cuda", 0)

        def get_device_interface(self) -> Any:
            return torch.cuda

    driver.set_active(Stub())

"""``torch.cuda.CUDAGraph`` and torch's Python code above it, on graphs of the emulated device."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import torch

from gapless.emulation.cuda_api.generators import DeviceGenerator
from gapless.emulation.cuda_api.runtime import Runtime
from gapless.emulation.graphs.graph import GraphBase, dump
from gapless.emulation.support.patches import Patches
from gapless.torch_internals import C

_NAMES = (
    "CUDAGraph", "graph", "graph_pool_handle", "is_current_stream_capturing", "make_graphed_callables",
)  # fmt: skip
_DUMPS = "_dump_graph_dot"
_HOOKS = ("register_graph_", "export_")
"""Prefixes of the functions for graph hooks (since torch 2.14)."""


def install(runtime: Runtime, patches: Patches) -> None:
    """Emulate CUDA graphs on `runtime`'s device, until `patches` are undone."""
    graphs = runtime.device.graphs
    graphs.runtime = runtime
    patches.set(GraphBase, "graphs", graphs)
    patches.set(GraphBase, "debug", False)
    patches.set(DeviceGenerator, "graphs", graphs)
    patches.set(C, "_CUDAGraph", GraphBase)
    patches.set(C, "_graph_pool_handle", graphs.pools.handle)
    patches.set(C, "_cuda_isCurrentStreamCapturing", graphs.is_capturing_here)
    patches.set(C, "_host_emptyCache", lambda: None)
    built = _torch_module()
    for name in (*_NAMES, *(member for member in vars(built) if member.startswith(_HOOKS))):
        patches.set_everywhere(torch.cuda.graphs, name, getattr(built, name))


def _torch_module() -> ModuleType:
    """``torch.cuda.graphs`` executed anew on `GraphBase`, which must be in ``torch._C``."""
    spec = importlib.util.find_spec("torch.cuda.graphs")
    if spec is None or spec.loader is None:
        raise ImportError("torch.cuda.graphs cannot be found")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if hasattr(module, _DUMPS):
        setattr(module, _DUMPS, dump)
    return module

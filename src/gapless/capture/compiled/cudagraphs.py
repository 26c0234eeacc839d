"""Find what keeps work out of CUDA graphs, by the compiler's own criteria."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from gapless import trees
from gapless.capture.compiled.machine import Places
from gapless.emulation.compiled.backends import backend_name, inductor_setting, uses_cudagraphs
from gapless.model.compiled import Skip
from gapless.torch_internals import TorchDispatchMode, path

ReportSkip = Callable[[Skip, str, list[Any], bool], None]
"""Called with the reason, its subject, the nodes concerned, and whether the whole graph is left out."""

_STATIC = "_dynamo_static_input_type"
_MASKS = (torch.bool, torch.uint8)
_TAGS: Any = torch.Tag
_SIZED_BY_DATA = (_TAGS.dynamic_output_shape, _TAGS.data_dependent_output)


@dataclass(frozen=True)
class CapturePolicy:
    """How a backend captures CUDA graphs.

    `cuts`: it splits around what cannot be captured instead of leaving out the whole graph. `any_size`: it
    captures several sizes. `inductors`: it is inductor, not ``backend="cudagraphs"``. `cached`: PyTorch
    caches GPU memory, which capturing requires.
    """

    inductors: bool
    cuts: bool
    any_size: bool
    cached: bool

    @staticmethod
    def of(backend: Any, cached: bool) -> CapturePolicy | None:
        """Return the policy of `backend`; None if it makes no CUDA graphs."""
        importlib.import_module(f"{path('inductor')}.config")
        if not uses_cudagraphs(backend):
            return None
        inductors = backend_name(backend) == "inductor"
        return CapturePolicy(
            inductors,
            inductors
            and bool(inductor_setting(backend, "graph_partition"))
            and not inductor_setting(backend, "cpp_wrapper"),
            not inductor_setting(backend, "triton.cudagraph_skip_dynamic_graphs"),
            cached,
        )


class CaptureCheck:
    """Runs one graph and reports what cannot be captured; `left_out` if the whole graph is not."""

    def __init__(
        self, capturing: CapturePolicy, places: Places, report: ReportSkip, managed: set[int]
    ) -> None:
        self._capturing, self._places, self._report, self._managed = capturing, places, report, managed
        self.left_out = False
        self._node: Any = None
        self._forbidden = importlib.import_module(f"{path('inductor')}.utils").FORBIDDEN_CUDAGRAPH_OPS

    def run(self, graph: Any, sources: list[str], args: tuple[Any, ...]) -> Any:
        """Return the graph's results for `args`, which the user knows as `sources`."""
        inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
        versions = [argument._version if isinstance(argument, torch.Tensor) else 0 for argument in args]
        self._check_graph(graph)
        with _OperatorObserver(self._operator):
            results = _Nodes(graph, self._at).run(*args)
        gpu = [isinstance(argument, torch.Tensor) and self._places(argument) >= 0 for argument in args]
        for node, name, argument, version, on_gpu in zip(inputs, sources, args, versions, gpu, strict=True):
            if not isinstance(argument, torch.Tensor):
                continue
            if not on_gpu and any(gpu) and self._places.knows(argument):
                number = argument.ndim == 0 and self._capturing.cuts
                self._report_cut("scalar-input" if number else "cpu-input", name, list(node.users))
            elif on_gpu and argument._version != version and not self._has_fixed_address(node, argument):
                self._report_skip("mutated-input", name, list(node.users), True)
        if not self.left_out:
            own = _storages(args)
            self._managed.update(storage for storage in _storages(results) if storage not in own)
        return results

    def _has_fixed_address(self, node: Any, tensor: Any) -> bool:
        """Whether a graph may write to this input: its address is fixed, or the write happens outside the
        graph."""
        return (
            isinstance(tensor, torch.nn.Parameter)
            or not self._capturing.inductors
            or _STATIC in (node.meta.get("tensor_dict") or {})
            or tensor.untyped_storage()._cdata in self._managed
        )

    def _at(self, node: Any) -> None:
        self._node = node

    def _report_skip(self, skip: Skip, subject: str, nodes: list[Any], whole: bool) -> None:
        self.left_out = self.left_out or whole
        self._report(skip, subject, nodes, whole)

    def _report_cut(self, skip: Skip, subject: str, nodes: list[Any]) -> None:
        self._report_skip(skip, subject, nodes, not self._capturing.cuts)

    def _check_graph(self, graph: Any) -> None:
        """Report what the graph's nodes show without being run."""
        if not self._capturing.cached and self._capturing.inductors:
            self._report_skip("uncached-memory", "", list(graph.graph.nodes), True)
        for node in graph.graph.nodes:
            name = str(getattr(node.target, "__name__", node.target))
            if name == "cond" and self._capturing.inductors:
                self._report_skip("operator", "torch.cond", [node], True)
            elif name == "while_loop":
                self._report_cut("operator", "torch.while_loop", [node])
            elif _device_of(node) == "cpu" and any(
                _device_of(input_node) == "cuda" for input_node in node.all_input_nodes
            ):
                self._report_cut("copied-out", "", [node])

    def _operator(self, func: Any, args: Any, kwargs: Any) -> None:
        tensors = trees.tensors((args, kwargs))
        if hasattr(func, "overloadpacket") and any(self._places(tensor) >= 0 for tensor in tensors):
            operator = self._uncapturable(func, args, kwargs)
            if operator:
                self._report_cut("operator", operator, [self._node])

    def _uncapturable(self, func: Any, args: Any, kwargs: Any) -> str:
        """Return the name of an operator that CUDA graphs cannot capture, else ""."""
        name = str(func.overloadpacket).replace(".", "::")
        if {str(func), str(func.overloadpacket)} & self._forbidden or _TAGS.cudagraph_unsafe in func.tags:
            return name
        if func.overloadpacket in (torch.ops.aten.index_put, torch.ops.aten.index_put_):
            indices, values = args[1], args[2]
            alone = len(indices) == 1 and values.numel() == 1  # becomes a `where`
            return "" if alone or not any(_is_mask(index) for index in indices) else "a write through a mask"
        if not any(tag in func.tags for tag in _SIZED_BY_DATA) or kwargs.get("output_size") is not None:
            return ""
        if func.overloadpacket is torch.ops.aten.index and not any(_is_mask(index) for index in args[1]):
            return ""
        return name


class _Nodes(torch.fx.Interpreter):
    """Runs a graph node by node."""

    def __init__(self, graph: Any, at: Callable[[Any], None]) -> None:
        super().__init__(graph)
        self._at = at

    def run_node(self, n: Any) -> Any:
        self._at(n)
        return super().run_node(n)


class _OperatorObserver(TorchDispatchMode):  # type: ignore[misc]
    """Calls a function before each operator runs."""

    supports_higher_order_operators = True

    def __init__(self, before_operator: Callable[[Any, Any, Any], None]) -> None:
        super().__init__()
        self._report_skip = before_operator

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._report_skip(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def _device_of(node: Any) -> str:
    """Return the device type of a node's tensor; "" if it has none."""
    example = node.meta.get("example_value")
    return str(example.device.type) if isinstance(example, torch.Tensor) else ""


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in _MASKS


def _storages(value: Any) -> set[int]:
    return {
        tensor.untyped_storage()._cdata for tensor in trees.tensors(value) if tensor.layout is torch.strided
    }

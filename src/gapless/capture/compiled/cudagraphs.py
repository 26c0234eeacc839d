"""What keeps work out of the CUDA graphs that a compiler makes: its own reasons, looked for in its graphs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from gapless import trees
from gapless.capture.compiled.machine import Places
from gapless.emulation.compiled.backends import named, setting, uses_cudagraphs
from gapless.model.compiled import Skip
from gapless.torch_internals import TorchDispatchMode, path

Told = Callable[[Skip, str, list[Any], bool], None]
"""Takes the reason, what it is about, nodes at the place, and whether the whole graph is left out for it."""

_STATIC = "_dynamo_static_input_type"
_MASKS = (torch.bool, torch.uint8)
_TAGS: Any = torch.Tag
_SIZED_BY_DATA = (_TAGS.dynamic_output_shape, _TAGS.data_dependent_output)


@dataclass(frozen=True)
class Capturing:
    """How a backend captures: `cuts` around what cannot be captured, where others leave the whole graph out;
    `any_size`, or graphs of one size alone. It is `inductors`, or that of ``backend="cudagraphs"``; memory is
    `cached` by PyTorch, as it has to be, or not."""

    inductors: bool
    cuts: bool
    any_size: bool
    cached: bool

    @staticmethod
    def of(backend: Any, cached: bool) -> Capturing | None:
        """What `backend` does; None where it makes no CUDA graphs."""
        importlib.import_module(f"{path('inductor')}.config")
        if not uses_cudagraphs(backend):
            return None
        inductors = named(backend) == "inductor"
        return Capturing(
            inductors,
            inductors and bool(setting(backend, "graph_partition")) and not setting(backend, "cpp_wrapper"),
            not setting(backend, "triton.cudagraph_skip_dynamic_graphs"),
            cached,
        )


class Looking:
    """Runs one graph and says what of it is not captured, or not with the rest; `left_out` if nothing is."""

    def __init__(self, capturing: Capturing, places: Places, told: Told, managed: set[int]) -> None:
        self._capturing, self._places, self._tells, self._managed = capturing, places, told, managed
        self.left_out = False
        self._node: Any = None
        self._forbidden = importlib.import_module(f"{path('inductor')}.utils").FORBIDDEN_CUDAGRAPH_OPS

    def run(self, graph: Any, sources: list[str], args: tuple[Any, ...]) -> Any:
        """The graph's results for `args`, whose names for the user are `sources`."""
        inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
        versions = [one._version if isinstance(one, torch.Tensor) else 0 for one in args]
        self._graph(graph)
        with _Operators(self._operator):
            made = _Nodes(graph, self._at).run(*args)
        gpu = [isinstance(one, torch.Tensor) and self._places(one) >= 0 for one in args]
        for node, name, one, version, on_gpu in zip(inputs, sources, args, versions, gpu, strict=True):
            if not isinstance(one, torch.Tensor):
                continue
            if not on_gpu and any(gpu) and self._places.knows(one):
                number = one.ndim == 0 and self._capturing.cuts
                self._tell("scalar-input" if number else "cpu-input", name, list(node.users))
            elif on_gpu and one._version != version and not self._stays(node, one):
                self._told("mutated-input", name, list(node.users), True)
        if not self.left_out:
            own = _storages(args)
            self._managed.update(one for one in _storages(made) if one not in own)
        return made

    def _stays(self, node: Any, one: Any) -> bool:
        """Whether a graph may write into this input: its address stays, or is in the graphs' own memory, or
        the write is done outside of the graph."""
        return (
            isinstance(one, torch.nn.Parameter)
            or not self._capturing.inductors
            or _STATIC in (node.meta.get("tensor_dict") or {})
            or one.untyped_storage()._cdata in self._managed
        )

    def _at(self, node: Any) -> None:
        self._node = node

    def _told(self, skip: Skip, what: str, nodes: list[Any], whole: bool) -> None:
        self.left_out = self.left_out or whole
        self._tells(skip, what, nodes, whole)

    def _tell(self, skip: Skip, what: str, nodes: list[Any]) -> None:
        self._told(skip, what, nodes, not self._capturing.cuts)

    def _graph(self, graph: Any) -> None:
        """What the graph's nodes show without being run."""
        if not self._capturing.cached and self._capturing.inductors:
            self._told("uncached-memory", "", list(graph.graph.nodes), True)
        for node in graph.graph.nodes:
            name = str(getattr(node.target, "__name__", node.target))
            if name == "cond" and self._capturing.inductors:
                self._told("operator", "torch.cond", [node], True)
            elif name == "while_loop":
                self._tell("operator", "torch.while_loop", [node])
            elif _on(node) == "cpu" and any(_on(one) == "cuda" for one in node.all_input_nodes):
                self._tell("copied-out", "", [node])

    def _operator(self, func: Any, args: Any, kwargs: Any) -> None:
        given = trees.tensors((args, kwargs))
        if hasattr(func, "overloadpacket") and any(self._places(one) >= 0 for one in given):
            what = self._uncapturable(func, args, kwargs)
            if what:
                self._tell("operator", what, [self._node])

    def _uncapturable(self, func: Any, args: Any, kwargs: Any) -> str:
        """What of an operator CUDA graphs do not take: its name; empty where there is nothing."""
        name = str(func.overloadpacket).replace(".", "::")
        if {str(func), str(func.overloadpacket)} & self._forbidden or _TAGS.cudagraph_unsafe in func.tags:
            return name
        if func.overloadpacket in (torch.ops.aten.index_put, torch.ops.aten.index_put_):
            indices, values = args[1], args[2]
            alone = len(indices) == 1 and values.numel() == 1  # becomes a `where`
            return "" if alone or not any(_is_mask(one) for one in indices) else "a write through a mask"
        if not any(tag in func.tags for tag in _SIZED_BY_DATA) or kwargs.get("output_size") is not None:
            return ""
        if func.overloadpacket is torch.ops.aten.index and not any(_is_mask(one) for one in args[1]):
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


class _Operators(TorchDispatchMode):  # type: ignore[misc]
    """Tells of each operator that is about to run."""

    supports_higher_order_operators = True

    def __init__(self, told: Callable[[Any, Any, Any], None]) -> None:
        super().__init__()
        self._told = told

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._told(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def _on(node: Any) -> str:
    """The kind of device that the tensor of a node is on; empty where it is none."""
    found = node.meta.get("example_value")
    return str(found.device.type) if isinstance(found, torch.Tensor) else ""


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in _MASKS


def _storages(value: Any) -> set[int]:
    return {one.untyped_storage()._cdata for one in trees.tensors(value) if one.layout is torch.strided}

"""The backend that compiles nothing: it takes graphs down, and computes them as they stand."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from gapless import trees
from gapless.capture.compiled.cudagraphs import Capturing, Looking
from gapless.capture.compiled.machine import MOVES, Places, Placing
from gapless.capture.compiled.watching import line_at
from gapless.model import SourceLine
from gapless.model.compiled import Outside, Skip
from gapless.torch_internals import FakeTensorMode

_LOCAL = re.compile(r"^[LG]\['([^']+)'\]")
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_READS = ("item", "tolist", "_local_scalar_dense")


@dataclass
class Graphs:
    """The graphs of one callable, and with which sizes they were run: `count` that were compiled for it, and
    those that are `shared` with another callable of the same code. `managed` are storages that CUDA graphs
    have made in the call at hand."""

    count: int = 0
    shared: set[int] = field(default_factory=set)
    dynamic: int = 0
    scalars: int = 0
    runs: dict[tuple[int, Any], None] = field(default_factory=dict)
    outside: dict[Any, Outside] = field(default_factory=dict)
    made: list[Any] = field(default_factory=list)
    managed: set[int] = field(default_factory=set)

    @property
    def all(self) -> int:
        """How many graphs there are, whoever had them compiled."""
        return self.count + len(self.shared)

    def ran(self, key: int, shapes: Any) -> bool:
        """Take down that a graph is run with these sizes; whether it was before."""
        again = (key, shapes) in self.runs
        self.runs[key, shapes] = None
        return again


class Backend:
    """Stands in for `original`, of which it is the equal where that is equal to another's: graphs are shared
    between callables with equal backends. `current` gives what the graph at hand belongs to; memory of the
    GPU is `cached` by PyTorch, or asked from CUDA each time."""

    def __init__(
        self, original: Any, places: Places, current: Callable[[], Graphs], values: bool, cached: bool
    ) -> None:
        self.original = original
        self._places, self._current, self._values = places, current, values
        self._capturing = Capturing.of(original, cached)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Backend) and _same(self.original, other.original)

    def __hash__(self) -> int:
        return 0

    def __call__(self, graph: Any, inputs: Sequence[Any], **_: Any) -> Callable[..., Any]:
        graphs = self._current()
        graphs.count += 1
        number = graphs.count
        nodes = list(graph.graph.nodes)
        _index_devices(graph, nodes)
        placeholders = [node for node in nodes if node.op == "placeholder"]
        symbolic = any(isinstance(one, torch.SymInt) for one in inputs)
        graphs.dynamic += symbolic
        graphs.scalars += sum(_reads(node) for node in nodes)
        graphs.made.append(graph)
        sources = [_source(node) for node in placeholders]

        def run(*args: Any) -> Any:
            shapes = _sizes(args)
            again = graphs.ran(number, shapes)
            now = self._current()
            if now is not graphs:
                now.shared.add(id(graph))
                now.ran(-id(graph), shapes)
            if not self._values:
                return _shaped(graph, args)
            capturing = self._capturing
            with Placing(self._places):
                if capturing is None or again:
                    return graph.forward(*args)
                told = partial(_add, graphs)
                looking = Looking(capturing, self._places, told, graphs.managed)
                made = looking.run(graph, sources, args)
            if looking.left_out:  # nothing is captured, and so nothing anew
                return made
            if symbolic and capturing.any_size and sum(known == number for known, _ in graphs.runs) > 1:
                told("dynamic-shapes", "", nodes, False)
            return made

        return run


def _index_devices(graph: Any, nodes: list[Any]) -> None:
    """Let the graph move tensors as `MOVES` does."""
    moves = [node for node in nodes if node.op == "call_method" and node.target in MOVES]
    for node in moves:
        node.op, node.target = "call_function", MOVES[node.target]
    if moves:
        graph.recompile()


def _sizes(value: Any) -> Any:
    """The sizes of what a graph is given, to tell apart what is captured apart."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    if isinstance(value, list | tuple):
        return tuple(map(_sizes, value))
    return value if isinstance(value, int | float) else None


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(one is other or one == other)
    except Exception:  # anybody's object
        return False


def _name(node: Any) -> str:
    target = node.target
    return target if isinstance(target, str) else str(getattr(target, "__name__", "")).split(".")[0]


def _reads(node: Any) -> bool:
    """Whether a node reads a value of the GPU on the CPU."""
    if not node.op.startswith("call_") or _name(node) not in _READS or not node.args:
        return False
    read = getattr(node.args[0], "meta", {}).get("example_value")
    return isinstance(read, torch.Tensor) and read.device.type == "cuda"


def _source(node: Any) -> str:
    """What the user calls an input: ``x`` for ``L['x']``."""
    argument = node.meta.get("grapharg")
    source = getattr(argument, "source", None)
    name = getattr(source, "name", "")
    text = str(name() if callable(name) else name)
    return _LOCAL.sub(r"\1", text) or str(node.name)


def _line(nodes: Sequence[Any]) -> SourceLine | None:
    """The user's line of the first node that tells."""
    for node in nodes:
        frames = _FRAME.findall(str(node.meta.get("stack_trace") or ""))
        for file, number, function in reversed(frames):
            line = line_at(file, int(number), function)
            if line.is_user:
                return line
    return None


def _add(graphs: Graphs, skip: Skip, what: str, nodes: Sequence[Any], whole: bool) -> None:
    line = _line(nodes)
    known = graphs.outside.get((skip, what, line))
    times = known.times + 1 if known is not None else 1
    graphs.outside[skip, what, line] = Outside(skip=skip, what=what, line=line, times=times, whole=whole)


def _shaped(graph: Any, args: Any) -> Any:
    """What a graph gives for `args`, of the right shape and with nothing in it (a dry run has no values)."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        made = graph.forward(
            *(mode.from_tensor(one) if isinstance(one, torch.Tensor) else one for one in args)
        )
    return trees.mapped(made, lambda one: torch.empty_strided(one.shape, one.stride(), dtype=one.dtype))

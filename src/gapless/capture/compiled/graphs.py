"""A backend that compiles nothing: it records graphs and runs them unchanged."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from gapless import trees
from gapless.capture.compiled.cudagraphs import CaptureCheck, CapturePolicy
from gapless.capture.compiled.machine import MOVES, Places, PlacingMode
from gapless.capture.compiled.watching import line_at
from gapless.model import SourceLine
from gapless.model.compiled import Outside, Skip
from gapless.torch_internals import FakeTensorMode

_LOCAL = re.compile(r"^[LG]\['([^']+)'\]")
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_READS = ("item", "tolist", "_local_scalar_dense")


@dataclass
class RecordedGraphs:
    """The graphs of one callable and the sizes they were run with.

    `count` were compiled for it; `shared` are those of another callable with the same code. `managed` are the
    storages that CUDA graphs allocated in the current call.
    """

    count: int = 0
    shared: set[int] = field(default_factory=set)
    dynamic: int = 0
    scalars: int = 0
    runs: dict[tuple[int, Any], None] = field(default_factory=dict)
    outside: dict[Any, Outside] = field(default_factory=dict)
    modules: list[Any] = field(default_factory=list)
    managed: set[int] = field(default_factory=set)

    @property
    def all(self) -> int:
        """The number of graphs, including shared ones."""
        return self.count + len(self.shared)

    def record_run(self, key: int, shapes: Any) -> bool:
        """Record that a graph runs with these sizes; return whether it did before."""
        again = (key, shapes) in self.runs
        self.runs[key, shapes] = None
        return again


class RecordingBackend:
    """Stands in for the backend `original`; equal backends share graphs.

    `current` returns the graphs of the callable being called. `cached`: PyTorch caches GPU memory instead of
    asking CUDA each time.
    """

    def __init__(
        self, original: Any, places: Places, current: Callable[[], RecordedGraphs], values: bool, cached: bool
    ) -> None:
        self.original = original
        self._places, self._current, self._values = places, current, values
        self._capturing = CapturePolicy.of(original, cached)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordingBackend) and _are_equal(self.original, other.original)

    def __hash__(self) -> int:
        return 0

    def __call__(self, graph: Any, inputs: Sequence[Any], **_: Any) -> Callable[..., Any]:
        graphs = self._current()
        graphs.count += 1
        number = graphs.count
        nodes = list(graph.graph.nodes)
        _index_devices(graph, nodes)
        placeholders = [node for node in nodes if node.op == "placeholder"]
        symbolic = any(isinstance(value, torch.SymInt) for value in inputs)
        graphs.dynamic += symbolic
        graphs.scalars += sum(_reads_value(node) for node in nodes)
        graphs.modules.append(graph)
        sources = [_input_name(node) for node in placeholders]

        def run(*args: Any) -> Any:
            shapes = _sizes(args)
            again = graphs.record_run(number, shapes)
            now = self._current()
            if now is not graphs:
                now.shared.add(id(graph))
                now.record_run(-id(graph), shapes)
            if not self._values:
                return _empty_results(graph, args)
            capturing = self._capturing
            with PlacingMode(self._places):
                if capturing is None or again:
                    return graph.forward(*args)
                report = partial(_add_outside, graphs)
                looking = CaptureCheck(capturing, self._places, report, graphs.managed)
                results = looking.run(graph, sources, args)
            if looking.left_out:  # nothing is captured, so nothing is captured again
                return results
            if (
                symbolic
                and capturing.any_size
                and sum(run_number == number for run_number, _ in graphs.runs) > 1
            ):
                report("dynamic-shapes", "", nodes, False)
            return results

        return run


def _index_devices(graph: Any, nodes: list[Any]) -> None:
    """Replace device moves in the graph by those of `MOVES`."""
    moves = [node for node in nodes if node.op == "call_method" and node.target in MOVES]
    for node in moves:
        node.op, node.target = "call_function", MOVES[node.target]
    if moves:
        graph.recompile()


def _sizes(value: Any) -> Any:
    """Return the sizes of a graph's inputs; each combination is captured separately."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    if isinstance(value, list | tuple):
        return tuple(map(_sizes, value))
    return value if isinstance(value, int | float) else None


def _are_equal(first: Any, second: Any) -> bool:
    try:
        return bool(first is second or first == second)
    except Exception:  # anybody's object
        return False


def _name(node: Any) -> str:
    target = node.target
    return target if isinstance(target, str) else str(getattr(target, "__name__", "")).split(".")[0]


def _reads_value(node: Any) -> bool:
    """Whether a node reads a value of the GPU on the CPU."""
    if not node.op.startswith("call_") or _name(node) not in _READS or not node.args:
        return False
    read = getattr(node.args[0], "meta", {}).get("example_value")
    return isinstance(read, torch.Tensor) and read.device.type == "cuda"


def _input_name(node: Any) -> str:
    """Return the user's name for an input: ``x`` for ``L['x']``."""
    argument = node.meta.get("grapharg")
    source = getattr(argument, "source", None)
    name = getattr(source, "name", "")
    text = str(name() if callable(name) else name)
    return _LOCAL.sub(r"\1", text) or str(node.name)


def _line(nodes: Sequence[Any]) -> SourceLine | None:
    """Return the user's line of the first node that has one."""
    for node in nodes:
        frames = _FRAME.findall(str(node.meta.get("stack_trace") or ""))
        for file, number, function in reversed(frames):
            line = line_at(file, int(number), function)
            if line.is_user:
                return line
    return None


def _add_outside(graphs: RecordedGraphs, skip: Skip, subject: str, nodes: Sequence[Any], whole: bool) -> None:
    line = _line(nodes)
    earlier = graphs.outside.get((skip, subject, line))
    times = earlier.times + 1 if earlier is not None else 1
    graphs.outside[skip, subject, line] = Outside(
        skip=skip, what=subject, line=line, times=times, whole=whole
    )


def _empty_results(graph: Any, args: Any) -> Any:
    """Return results of the right shape without values, for a dry run."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        results = graph.forward(
            *(
                mode.from_tensor(argument) if isinstance(argument, torch.Tensor) else argument
                for argument in args
            )
        )
    return trees.map_tensors(
        results, lambda tensor: torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    )

"""The replacement of ``torch._C._CUDAGraph``, the base class of ``torch.cuda.CUDAGraph``."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

from gapless.emulation.graphs import words
from gapless.emulation.graphs.capture import GraphCapture
from gapless.emulation.graphs.pools import GraphPool, Handle
from gapless.emulation.graphs.tape import Tape
from gapless.emulation.support.refusals import refuse


class GraphBase:
    """A CUDA graph of the emulated device: first empty, then being captured, then a recorded tape."""

    graphs: ClassVar[Any] = None
    debug: ClassVar[bool] = False

    def __new__(cls, keep_graph: bool = False) -> Any:
        return super().__new__(cls)

    def __init__(self, keep_graph: bool = False) -> None:
        self.keep_graph = bool(keep_graph)
        self.generators: set[int] = set()
        self._kept: list[Any] = []
        self.capture: GraphCapture | None = None
        self.tape: Tape | None = None
        self._instantiated = False
        self._pool: GraphPool | None = None
        self.is_shown = False
        self.replays = 0
        self.watch: Any = None

    def register_generator_state(self, generator: Any) -> None:
        """Let replays draw from `generator`, continuing at its current state.

        Raises:
            RuntimeError: a capture is under way, in torch's words.
        """
        if self.graphs.capture is not None:
            raise words.not_while_capturing("Cannot register the state during capturing stage.")
        self.generators.add(generator._cdata)
        self._kept.append(generator)

    def capture_begin(self, pool: Handle | None = None, capture_error_mode: str = "global", **_: Any) -> None:
        """Record what is launched on the current stream from now on.

        Raises:
            RuntimeError: the stream is the default one or the graph is already captured, in torch's words; a
                capture is under way, in CUDA's.
        """
        if self._instantiated:
            raise RuntimeError(words.OWNS_ONE)
        if capture_error_mode not in words.MODES:
            raise RuntimeError(words.UNKNOWN_MODE.format(capture_error_mode))
        self._pool = self.graphs.begin(self, pool, capture_error_mode)

    def capture_end(self) -> None:
        """Stop recording, and instantiate the graph unless ``keep_graph`` is set.

        Raises:
            RuntimeError: the current stream is not the captured one, in torch's words; something in the
                capture was refused, or a forked stream did not join, in CUDA's.
        """
        self.capture_end_pre()
        if not self.keep_graph:
            self._instantiated = True

    def capture_end_pre(self) -> None:
        """Stop recording; raises as `capture_end`, of which it is the first half since torch 2.14."""
        tape = self.graphs.end(self)
        if not any(step.name for step in tape.steps):
            warnings.warn(words.EMPTY, stacklevel=4)
        self.tape = tape
        self.is_shown = True

    def capture_end_post(self) -> None:
        """Drop the raw graph unless it is kept: replays do not need it."""
        self.is_shown = self.keep_graph or GraphBase.debug

    @property
    def _has_graph_exec(self) -> bool:
        return self._instantiated

    def instantiate(self) -> None:
        """Make the graph ready for replays, which ``keep_graph=True`` leaves to the user.

        Raises:
            RuntimeError: nothing is captured, or `capture_end` instantiated it already.
        """
        if self.tape is None:
            self.graphs.record_refusal(None, words.NOT_INSTANTIATED, "CUDAGraph.instantiate")
            raise RuntimeError(words.NOT_INSTANTIATED)
        if self._instantiated and not self.keep_graph:
            raise RuntimeError(words.INSTANTIATED_TWICE)
        self._instantiated = True

    def replay(self) -> None:
        """Launch the recorded work again.

        Raises:
            RuntimeError: nothing is captured, or a capture is under way, in torch's words.
        """
        if self.tape is None:
            self.graphs.record_refusal(None, words.NOT_CAPTURED, "CUDAGraph.replay")
            raise RuntimeError(words.NOT_CAPTURED)
        self._instantiated = True
        self.graphs.replay(self)

    def reset(self) -> None:
        """Drop the recorded work and release the memory."""
        if self.capture is not None:
            self.graphs.abandon(self)
        self.tape = None
        self.capture = None
        self._instantiated = False
        if self.watch is not None:
            self.graphs.faults.remove_watch(self.watch)
            self.watch = None
        if self._pool is not None:
            self.graphs.remove_graph(self, self._pool)
            self._pool = None

    def pool(self) -> Handle:
        """Return the handle of the memory pool, with which other captures can share it.

        Raises:
            RuntimeError: nothing is captured, in torch's words.
        """
        if self.tape is None or self._pool is None:
            raise RuntimeError(words.NO_POOL)
        return self._pool.handle

    def pools(self) -> list[Handle]:
        """Return the handles of the pools that the graph holds: its own, if any."""
        return [] if self._pool is None else [self._pool.handle]

    def enable_debug_mode(self) -> None:
        """Keep the recorded launches for ``debug_dump``."""
        GraphBase.debug = True

    def debug_dump(self, debug_path: str) -> None:
        """Write the launches in order to `debug_path`; only warn if debug mode is off."""
        if not (GraphBase.debug or self.keep_graph):
            warnings.warn(words.NO_DEBUG, stacklevel=3)
            return
        self.write(debug_path)

    def write(self, path: str) -> None:
        """Write the launches in order to `path`, in Graphviz's language."""
        names = [step.name for step in self.tape.steps if step.name] if self.tape is not None else []
        lines = [f'  n{at} [label="{name}"];' for at, name in enumerate(names)]
        lines += [f"  n{at} -> n{at + 1};" for at in range(len(names) - 1)]
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(["digraph CUDAGraph {", *lines, "}", ""]))

    def raw_cuda_graph(self) -> int:
        """Refuse to give the raw handle, which is not emulated.

        Raises:
            RuntimeError: ``keep_graph`` is not set or nothing is captured, in torch's words.
            NotEmulated: otherwise.
        """
        if not self.keep_graph:
            raise RuntimeError(words.NO_RAW)
        if self.tape is None:
            raise RuntimeError(words.NO_RAW_YET)
        raise refuse("the raw cudaGraph_t", "Remove code that edits its nodes when the device is emulated.")

    def raw_cuda_graph_exec(self) -> int:
        """Refuse to give the raw executable handle; raises as `raw_cuda_graph`."""
        if not self._instantiated:
            raise RuntimeError(words.NO_EXEC_YET)
        raise refuse("the raw cudaGraphExec_t", "Remove code that uses it when the device is emulated.")

    @classmethod
    def get_currently_capturing_graph(cls) -> Any:
        """Return the graph that the current stream is captured into.

        Raises:
            RuntimeError: the stream is not captured, in torch's words.
        """
        graph = cls.graphs.capturing_graph()
        if graph is None:
            raise RuntimeError("The current stream is not currently capturing.")
        return graph


def dump(graph: GraphBase, path: str, *, verbose: bool = True) -> None:
    """Write the launches of `graph` to `path`; replaces torch 2.14's function that asks the driver for them.

    Raises:
        RuntimeError: the raw graph was dropped, in torch's words.
    """
    if not graph.is_shown:
        raise RuntimeError(words.NO_RAW)
    graph.write(path)

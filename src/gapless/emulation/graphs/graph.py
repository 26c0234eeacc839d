"""``torch._C._CUDAGraph``: what torch's own ``torch.cuda.CUDAGraph`` is built on."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

from gapless.emulation.graphs import words
from gapless.emulation.graphs.capture import Capture
from gapless.emulation.graphs.pools import Handle, Pool
from gapless.emulation.graphs.tape import Tape
from gapless.emulation.support.refusals import refuse


class GraphBase:
    """A graph of the emulated device: nothing, then a capture under way, then a record."""

    graphs: ClassVar[Any] = None
    debug: ClassVar[bool] = False

    def __new__(cls, keep_graph: bool = False) -> Any:
        return super().__new__(cls)

    def __init__(self, keep_graph: bool = False) -> None:
        self.keep_graph = bool(keep_graph)
        self.generators: set[int] = set()
        self._kept: list[Any] = []
        self.capture: Capture | None = None
        self.tape: Tape | None = None
        self._instantiated = False
        self._pool: Pool | None = None
        self.is_shown = False
        self.replays = 0
        self.watch: Any = None

    def register_generator_state(self, generator: Any) -> None:
        """Replays go on with the numbers of `generator` where it stands.

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
            RuntimeError: it is the default stream, or the graph is captured already, in torch's words; a
                capture is under way, in CUDA's.
        """
        if self._instantiated:
            raise RuntimeError(words.OWNS_ONE)
        if capture_error_mode not in words.MODES:
            raise RuntimeError(words.UNKNOWN_MODE.format(capture_error_mode))
        self._pool = self.graphs.begin(self, pool, capture_error_mode)

    def capture_end(self) -> None:
        """Stop recording, and make it ready to be replayed unless the graph is kept.

        Raises:
            RuntimeError: the current stream is another one, in torch's words; something in the capture was
                refused, or a stream that forked off did not join, in CUDA's.
        """
        self.capture_end_pre()
        if not self.keep_graph:
            self._instantiated = True

    def capture_end_pre(self) -> None:
        """Stop recording: since torch 2.14 the first half of `capture_end`, which raises the same."""
        tape = self.graphs.end(self)
        if not any(step.name for step in tape.steps):
            warnings.warn(words.EMPTY, stacklevel=4)
        self.tape = tape
        self.is_shown = True

    def capture_end_post(self) -> None:
        """Let go of what the graph was instantiated from, unless it is kept; replays need it no more."""
        self.is_shown = self.keep_graph or GraphBase.debug

    @property
    def _has_graph_exec(self) -> bool:
        return self._instantiated

    def instantiate(self) -> None:
        """Make it ready to be replayed, which ``keep_graph=True`` leaves to the user.

        Raises:
            RuntimeError: nothing is captured, or it was done without being asked for.
        """
        if self.tape is None:
            self.graphs.refused(None, words.NOT_INSTANTIATED, "CUDAGraph.instantiate")
            raise RuntimeError(words.NOT_INSTANTIATED)
        if self._instantiated and not self.keep_graph:
            raise RuntimeError(words.INSTANTIATED_TWICE)
        self._instantiated = True

    def replay(self) -> None:
        """Launch what was recorded.

        Raises:
            RuntimeError: nothing is captured, or a capture is under way, in torch's words.
        """
        if self.tape is None:
            self.graphs.refused(None, words.NOT_CAPTURED, "CUDAGraph.replay")
            raise RuntimeError(words.NOT_CAPTURED)
        self._instantiated = True
        self.graphs.replay(self)

    def reset(self) -> None:
        """Forget what was captured, and give the memory back."""
        if self.capture is not None:
            self.graphs.abandon(self)
        self.tape = None
        self.capture = None
        self._instantiated = False
        if self.watch is not None:
            self.graphs.found.forget(self.watch)
            self.watch = None
        if self._pool is not None:
            self.graphs.released(self, self._pool)
            self._pool = None

    def pool(self) -> Handle:
        """The handle of the memory pool, for other captures to share it.

        Raises:
            RuntimeError: nothing is captured, in torch's words.
        """
        if self.tape is None or self._pool is None:
            raise RuntimeError(words.NO_POOL)
        return self._pool.handle

    def pools(self) -> list[Handle]:
        """The handles of all pools that the graph holds: its own."""
        return [] if self._pool is None else [self._pool.handle]

    def enable_debug_mode(self) -> None:
        """Keep what ``debug_dump`` writes."""
        GraphBase.debug = True

    def debug_dump(self, debug_path: str) -> None:
        """Write the launches in order, where that was asked for."""
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
        """There is none.

        Raises:
            RuntimeError: it was not asked for or nothing is captured, in torch's words.
            NotEmulated: otherwise.
        """
        if not self.keep_graph:
            raise RuntimeError(words.NO_RAW)
        if self.tape is None:
            raise RuntimeError(words.NO_RAW_YET)
        raise refuse("the raw cudaGraph_t", "Remove code that edits its nodes when the device is emulated.")

    def raw_cuda_graph_exec(self) -> int:
        """There is none, as of `raw_cuda_graph`."""
        if not self._instantiated:
            raise RuntimeError(words.NO_EXEC_YET)
        raise refuse("the raw cudaGraphExec_t", "Remove code that uses it when the device is emulated.")

    @classmethod
    def get_currently_capturing_graph(cls) -> Any:
        """The graph that is being captured.

        Raises:
            RuntimeError: there is none, in torch's words.
        """
        graph = cls.graphs.capturing_graph()
        if graph is None:
            raise RuntimeError("The current stream is not currently capturing.")
        return graph


def dump(graph: GraphBase, path: str, *, verbose: bool = True) -> None:
    """What stands in for the function that asks the driver for a graph's nodes, since torch 2.14.

    Raises:
        RuntimeError: the nodes are not there any more, in torch's words.
    """
    if not graph.is_shown:
        raise RuntimeError(words.NO_RAW)
    graph.write(path)

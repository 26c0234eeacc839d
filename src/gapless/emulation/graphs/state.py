"""`Graphs`: what the rest of the emulation tells of captures and replays, and asks."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from gapless.emulation.graphs import words
from gapless.emulation.graphs.bindings import torch_frames
from gapless.emulation.graphs.capture import Capture
from gapless.emulation.graphs.found import Found
from gapless.emulation.graphs.graph import GraphBase
from gapless.emulation.graphs.pools import Handle, Pool, Pools
from gapless.emulation.graphs.stale import Nodes
from gapless.emulation.graphs.tape import Tape
from gapless.emulation.graphs.watch import Watch
from gapless.emulation.support import stacks
from gapless.emulation.support.local import local
from gapless.model.event import Site
from gapless.torch_internals import DispatchKey, DispatchKeySet, ExcludedKeys, below_autograd

Tensor = torch.Tensor
_AUTOCAST = DispatchKeySet(DispatchKey.AutocastCUDA).add(DispatchKey.AutocastCPU)

_TORCHS_OWN = os.path.join("torch", "cuda", "graphs.py")
_SELDOM = 8
"""Captures at one place whose waits are no matter: one for each shape, say."""

_COLLECTIVES = (
    "collectives in the capture of a CUDA graph ran once, when it was recorded, and in no replay: values "
    "that depend on them differ from those on a GPU"
)
_RANDOM = (
    "set, save and restore random states outside of the graph; for checkpointing without dropout pass "
    "`preserve_rng_state=False`"
)


class Graphs:
    """The captures and graphs of one emulation; `core` is its `Core`, `runtime` the CUDA runtime of it.

    `on` says that operators are to be shown to it: from the first capture.
    """

    def __init__(self, core: Any) -> None:
        self.core = core
        self.runtime: Any = None
        self.on = False
        self.replays: Any = None
        self.capture: Capture | None = None
        self.pools = Pools()
        self.found = Found(core)
        self.nodes = Nodes()
        self._rates: weakref.WeakKeyDictionary[Any, list[float]] = weakref.WeakKeyDictionary()
        self._entered: dict[stacks.RawStack, int] = {}
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._graph: GraphBase | None = None
        self._programme: Any = None
        self._races = True

    def parameters(self) -> list[Tensor]:
        """The parameters of the optimizers that there are."""
        groups = [group for one in list(self.optimizers) for group in one.param_groups]
        return [one for group in groups for one in group["params"]]

    def stepping(self, optimizer: Any) -> None:
        """An optimizer is about to step."""
        if self.capture is not None and self.capture.holds(False):
            self.capture.host.optimizers.append(optimizer)
            return
        programme = self.core.recorder.programme
        if programme is not None and programme.lines:
            for what, change in self._steps(optimizer):
                programme.obstacle(what, change)
        for watch in self.found.watches:
            watch.stepping(optimizer)

    def optimizing(self, optimizer: Any) -> None:
        """An optimizer has been made, or given more parameters."""
        self.optimizers.add(optimizer)
        if self.nodes.wanted:
            self.nodes.found(param for group in optimizer.param_groups for param in group["params"])

    def holding(self, index: int, parameters: Sequence[Tensor]) -> None:
        """Something on device `index` holds the nodes of these leaves from now on."""
        if self.nodes.wanted:
            self.nodes.leaving(self.stream_id(index), parameters)

    def streaming(self, index: int, stream: int) -> None:
        """`stream` becomes this thread's current one on device `index`."""
        if self.capture is None:
            self.holding(index, self.parameters())
        self.nodes.current(stream)

    def backward(self, outputs: Any) -> None:
        """A backward pass of these begins.

        Raises:
            RuntimeError: it would reach back behind the capture, on the default stream, in torch's words.
        """
        capture = self.capture
        if capture is None or not capture.holds(False) or not self.here():
            return
        node = self.nodes.stale(outputs, capture.begun)
        if node:
            self.refused(capture, "has a stale reference to the default stream (stream 0) from warmup", node)
            raise self.nodes.error(node)

    def enters(self) -> bool:
        """Whether torch waits here because a capture begins, at a place that seldom captures."""
        for frame in torch_frames():
            if frame.f_code.co_filename.endswith(_TORCHS_OWN):
                place = stacks.capture(1)
                self._entered[place] = self._entered.get(place, 0) + 1
                return self._entered[place] <= _SELDOM
        return False

    def _steps(self, optimizer: Any) -> Iterator[tuple[str, str]]:
        """What keeps a step of `optimizer` out of a graph, and what to change."""
        kind, groups = type(optimizer).__name__, optimizer.param_groups
        if not all(group.get("capturable", True) for group in groups):
            yield f"{kind}.step() without capturable=True", f"create {kind} with `capturable=True`"
        elif any(_on_host(state) for state in optimizer.state.values()):
            yield f"{kind} keeps state in CPU memory", "use an optimizer with `capturable=True`"
        rates = [group["lr"] for group in groups if type(group.get("lr")) is float]
        before = self._rates.get(optimizer, rates)
        self._rates[optimizer] = rates
        if before != rates:
            what = f"the learning rate of {kind} changes, but is a Python number"
            yield what, f'create {kind} with `lr=torch.tensor(..., device="cuda")`'

    # -- asked ---------------------------------------------------------------------------------------

    def stream_id(self, index: int) -> int:
        """The stream of this thread on device `index`."""
        return 0 if self.runtime is None else int(self.runtime.current_stream_id(index))

    def capturing(self, index: int, stream: int) -> bool:
        """Whether that stream is being captured."""
        return self.capture is not None and (index, stream) in self.capture.streams

    def here(self) -> bool:
        """Whether the current stream of this thread is."""
        return self.capture is not None and self.capture.at() in self.capture.streams

    def capturing_graph(self) -> GraphBase | None:
        """The graph that the current stream is captured into."""
        return self._graph if self.here() else None

    # -- a capture -----------------------------------------------------------------------------------

    def begin(self, graph: GraphBase, pool: Handle | None, mode: str) -> Pool:
        """The current stream is captured into `graph` from now on.

        Raises:
            RuntimeError: it is the default stream, in torch's words; a capture is under way, in CUDA's.
        """
        index = local.device
        stream = (index, self.stream_id(index))
        if stream[1] == 0:
            self.refused(None, words.DEFAULT_STREAM, "CUDAGraph.capture_begin")
            raise RuntimeError(words.DEFAULT_STREAM)
        if self.capture is not None:
            raise self.capture.refuse(words.ILLEGAL_STATE, "CUDAGraph.capture_begin")
        core, recorder = self.core, self.core.recorder
        shared = self.pools.open(pool)
        shared.index = index
        self.capture = graph.capture = Capture(core, stream, mode, graph.generators)
        self._graph = graph
        self.capture.earlier = list(shared.graphs) if shared.kept else []
        self._programme, recorder.programme = recorder.programme, None
        if self._programme is not None:
            recorder.programme = self._programme.apart()
        recorder.held = []
        self._races, core.races.on = core.races.on, False  # what is recorded runs in replays
        core.placement.pool = shared
        self.on = True
        self.capture.host.begin()
        return shared

    def end(self, graph: GraphBase) -> Tape:
        """The capture into `graph` is over; gives what was recorded.

        Raises:
            RuntimeError: as of `GraphBase.capture_end`.
        """
        capture = self.capture
        if capture is None or graph.capture is not capture:
            raise words.error(words.ILLEGAL_STATE)
        if capture.at() != capture.stream:
            capture.failed = True
            self.refused(capture, words.OTHER_STREAM, "CUDAGraph.capture_end")
            raise RuntimeError(words.OTHER_STREAM)
        failure = words.INVALIDATED if capture.failed else None
        if failure is None and capture.unjoined():
            failure = words.UNJOINED
            self.refused(capture, failure.words, "CUDAGraph.capture_end")
        marks, launched = self._close(capture)
        if failure is not None:
            capture.host.forget()
            raise words.error(failure)
        pool = graph._pool
        graph.watch = Watch(self, graph, capture, marks, launched)
        self.found.captured(graph.watch)
        if pool is not None:
            self._keep(pool, graph)
        return capture.tape

    def abandon(self, graph: GraphBase) -> None:
        """`graph` is reset in its own capture."""
        if self.capture is not None and graph.capture is self.capture:
            self._close(self.capture)
            graph.capture.host.forget()

    def _close(self, capture: Capture) -> tuple[list[tuple[str, str]], list[Any]]:
        """Everything is as before the capture; gives its marks, and what the programme would be told."""
        core, recorder = self.core, self.core.recorder
        marks, recorder.held = recorder.held or [], None
        launched = [] if recorder.programme is None else recorder.programme.launched_so_far()
        recorder.programme, self._programme = self._programme, None
        if any(one.kind == "collective" for one in launched):
            core.note(_COLLECTIVES)
        core.placement.pool = None
        core.races.on = self._races
        self.capture = self._graph = None
        capture.host.end(capture)
        capture.close()
        return marks, launched

    def _keep(self, pool: Pool, graph: GraphBase) -> None:
        """The allocator's record holds what the pool keeps from now on."""
        pool.graphs.append(weakref.ref(graph, lambda _: self.released(None, pool)))
        memory = self.core.placement.memory
        if memory is not None:
            pool.row = memory.kept(pool.index, pool.kept, pool.row)

    def released(self, graph: GraphBase | None, pool: Pool) -> None:
        """`graph` is no more."""
        self.pools.release(pool, graph)
        memory = self.core.placement.memory
        if memory is not None and not pool.graphs:
            pool.row = memory.kept(pool.index, 0, pool.row)

    # -- a replay ------------------------------------------------------------------------------------

    def replay(self, graph: GraphBase) -> None:
        """Run what `graph` recorded.

        Raises:
            RuntimeError: a capture is under way, in torch's words.
        """
        if self.capture is not None and self.capture.holds(False):
            self.refused(
                self.capture, "Cannot prepare for replay during capturing stage.", "CUDAGraph.replay"
            )
            raise words.not_while_capturing("Cannot prepare for replay during capturing stage.")
        tape, watch, core = graph.tape, graph.watch, self.core
        assert tape is not None
        watch.before()
        if not core.dry:
            with self._silently():
                tape.run(core.placement.put_storage)
        if core.recorder.programme is not None and not local.quiet:
            core.recorder.programme.replayed(watch.launched)
        if core.races.full:
            core.races.launched("CUDAGraph.replay", *watch.used(), watch.index)
        graph.replays += 1
        watch.after()
        for kind, name in watch.marks:
            core.recorder.mark(kind, name, depth=2)

    @contextlib.contextmanager
    def _silently(self) -> Iterator[None]:
        """Nothing that runs inside is counted: it is all in the launch."""
        core = self.core
        recorder, memory = core.recorder, core.placement.memory
        programme, recorder.programme = recorder.programme, None
        graphed, local.graphed = local.graphed, True
        backward, local.backward = local.backward, -1
        enabled, core.races.on = core.races.on, False
        local.quiet += 1
        if memory is not None:
            memory.muted += 1
        try:
            with core.placement.without_peaks(), below_autograd(), ExcludedKeys(_AUTOCAST):
                yield
        finally:
            if memory is not None:
                memory.muted -= 1
            local.quiet -= 1
            core.races.on = enabled
            local.backward = backward
            local.graphed = graphed
            recorder.programme = programme

    # -- told ----------------------------------------------------------------------------------------

    def watch(self, replays: Any) -> None:
        """Have `replays`, those of compiled CUDA graphs, see which tensors operators use."""
        self.on, self.replays = True, replays

    def dispatched(self, mode: Any, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """An operator is about to run."""
        capture = self.capture
        local.graphed = True
        try:
            if capture is not None and capture.holds(False):
                return capture.operator(mode, func, types, args, kwargs)
            self.found.operator(mode.of(func), args, kwargs)
            if self.replays is not None:
                self.replays.used(args, kwargs)
            return mode.__torch_dispatch__(func, types, args, kwargs)
        finally:
            local.graphed = False

    def call(
        self, name: str, run: Callable[..., Any], args: Any, writes: Iterable[Tensor], body: Callable[[], Any]
    ) -> Any:
        """`body` launches something that is no operator; ``run(*args)`` would launch it again."""
        capture = self.capture
        if capture is None or not capture.holds(False) or local.graphed:
            return body()
        local.graphed = True
        try:
            return capture.call(name, run, args, writes, body)
        finally:
            local.graphed = False

    def waits(self, site: dict[str, Any]) -> RuntimeError:
        """The error to raise where the host would wait in a capture."""
        assert self.capture is not None
        self.capture.failed = True
        call = site["call"] or site["operator"]
        self.found.refused(self.capture, words.UNSUPPORTED.words, call, Site(**site))
        return words.error(words.UNSUPPORTED)

    def unsafe(self, what: str) -> None:
        """`what` asks the driver something that it does not answer in a capture."""
        if self.capture is not None and self.capture.holds():
            raise self.capture.refuse(words.UNSUPPORTED, what)
        self._obstacle(what, "query it outside the graph")

    def not_here(self, attempt: str, what: str) -> None:
        """`what` is kept out of captures by torch itself, which then says `attempt`."""
        if self.here():
            self.refused(self.capture, attempt, what)
            raise words.not_while_capturing(attempt)
        self._obstacle(what, _RANDOM)

    def generator_read(self, generator: Any, state: tuple[int, int]) -> None:
        """The state of `generator` was asked for: replays keep the one that they have there."""
        if self.capture is not None and self.here():
            self.capture.keeps(generator, state)

    def generator_put_back(self, generator: Any, state: tuple[int, int]) -> bool:
        """Whether `generator` gets a state that it had in the capture under way; replays do the same."""
        return self.capture is not None and self.here() and self.capture.puts_back(generator, state)

    def _obstacle(self, what: str, change: str) -> None:
        programme = self.core.recorder.programme
        if programme is not None and self.capture is None:
            programme.obstacle(what, change)

    def refused(self, capture: Capture | None, said: str, what: str) -> None:
        """`what` was refused with these words."""
        stack = stacks.resolve(stacks.capture(1))
        self.found.refused(capture, said, what, Site(operator=what, mechanism="none", stack=stack))

    def event_recorded(self, index: int, stream: int) -> Any:
        """What an event recorded there stands for in the capture; None outside of one."""
        return None if self.capture is None else self.capture.recorded((index, stream))

    def event_awaited(self, index: int, stream: int, moment: Any, recorded: bool, external: bool) -> None:
        """That stream waits for an event."""
        if self.capture is not None and self.capture.holds(False):
            self.capture.awaited((index, stream), moment, recorded, external)

    def event_asked(self, moment: Any, what: str) -> None:
        """The host asks or waits for an event."""
        if moment is not None:
            self.refused(self.capture, words.CAPTURED_EVENT.words, what)
            if self.capture is not None:
                self.capture.failed = True
            raise words.error(words.CAPTURED_EVENT)
        self.unsafe(what)


def _on_host(state: Any) -> bool:
    """Whether an optimizer's state of a parameter on the device has tensors that are not."""
    tensors = [one for one in state.values() if isinstance(one, Tensor)] if isinstance(state, dict) else []
    return any(one.is_cuda for one in tensors) and not all(one.is_cuda for one in tensors)

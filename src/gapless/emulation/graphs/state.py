"""`Graphs`: the interface of CUDA graphs to the rest of the emulation."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from gapless.emulation.graphs import words
from gapless.emulation.graphs.capture import GraphCapture
from gapless.emulation.graphs.fault_log import GraphFaults
from gapless.emulation.graphs.graph import GraphBase
from gapless.emulation.graphs.input_names import torch_frames
from gapless.emulation.graphs.pools import GraphPool, Handle, Pools
from gapless.emulation.graphs.stale import NodeStreams
from gapless.emulation.graphs.tape import Tape
from gapless.emulation.graphs.watch import GraphWatch
from gapless.emulation.support import stacks
from gapless.emulation.support.local import local
from gapless.model.event import Site
from gapless.torch_internals import VERSION, DispatchKey, DispatchKeySet, ExcludedKeys, below_autograd

Tensor = torch.Tensor
_AUTOCAST_KEYS = DispatchKeySet(DispatchKey.AutocastCUDA).add(DispatchKey.AutocastCPU)

_TORCH_GRAPHS_FILE = os.path.join("torch", "cuda", "graphs.py")
_MAX_CAPTURES_PER_PLACE = 8
"""Captures at one place up to which their waits are ignored: one per input shape is usual."""

_COLLECTIVES_NOTE = (
    "collectives in the capture of a CUDA graph ran once, when it was recorded, and in no replay: values "
    "that depend on them differ from those on a GPU"
)
_RANDOM_STATE_ADVICE = (
    "set, save and restore random states outside of the graph; for checkpointing without dropout pass "
    "`preserve_rng_state=False`"
)


class Graphs:
    """The captures and graphs of one emulation; `core` is its `EmulationCore`, `runtime` its CUDA runtime.

    `enabled` says that operators must be dispatched through it: from the first capture.
    """

    def __init__(self, core: Any) -> None:
        self.core = core
        self.runtime: Any = None
        self.enabled = False
        self.replays: Any = None
        self.capture: GraphCapture | None = None
        self.pools = Pools()
        self.faults = GraphFaults(core)
        self.nodes = NodeStreams()
        self._rates: weakref.WeakKeyDictionary[Any, list[float]] = weakref.WeakKeyDictionary()
        self._captures_by_place: dict[stacks.RawStack, int] = {}
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._graph: GraphBase | None = None
        self._programme: Any = None
        self._races_enabled = True

    def parameters(self) -> list[Tensor]:
        """Return the parameters of all live optimizers."""
        groups = [group for optimizer in list(self.optimizers) for group in optimizer.param_groups]
        return [parameter for group in groups for parameter in group["params"]]

    def before_step(self, optimizer: Any) -> None:
        """Check an optimizer that is about to step against captures and graphs."""
        if self.capture is not None and self.capture.applies_here(False):
            self.capture.host.optimizers.append(optimizer)
            return
        programme = self.core.recorder.programme
        if programme is not None and programme.lines:
            for subject, change in self._step_obstacles(optimizer):
                programme.obstacle(subject, change)
        for watch in self.faults.watches:
            watch.before_step(optimizer)

    def add_optimizer(self, optimizer: Any) -> None:
        """Track an optimizer that was created or got more parameters."""
        self.optimizers.add(optimizer)
        if self.nodes.enabled:
            self.nodes.mark_first_seen(param for group in optimizer.param_groups for param in group["params"])

    def mark_leaves(self, index: int, parameters: Sequence[Tensor]) -> None:
        """Assign the autograd nodes of these leaves to the current stream of device `index`."""
        if self.nodes.enabled:
            self.nodes.mark_leaves(self.stream_id(index), parameters)

    def set_stream(self, index: int, stream: int) -> None:
        """Record that `stream` becomes this thread's current one on device `index`."""
        if self.capture is None:
            self.mark_leaves(index, self.parameters())
        self.nodes.set_current(stream)

    def before_backward(self, outputs: Any) -> None:
        """Check a backward pass from `outputs` that is about to begin.

        Raises:
            RuntimeError: it would use a node of the default stream from before the capture, in torch's words.
        """
        capture = self.capture
        if capture is None or not capture.applies_here(False) or not self.is_capturing_here():
            return
        node = self.nodes.find_stale(outputs, capture.first_node)
        if node:
            self.record_refusal(
                capture, "has a stale reference to the default stream (stream 0) from warmup", node
            )
            raise self.nodes.error(node)

    def is_entering_capture(self) -> bool:
        """Whether torch itself waits here to begin a capture, at a place that rarely captures."""
        for frame in torch_frames():
            if frame.f_code.co_filename.endswith(_TORCH_GRAPHS_FILE):
                place = stacks.capture(1)
                self._captures_by_place[place] = self._captures_by_place.get(place, 0) + 1
                return self._captures_by_place[place] <= _MAX_CAPTURES_PER_PLACE
        return False

    def _step_obstacles(self, optimizer: Any) -> Iterator[tuple[str, str]]:
        """Yield what keeps a step of `optimizer` out of a graph, and what to change."""
        kind, groups = type(optimizer).__name__, optimizer.param_groups
        if not all(group.get("capturable", True) for group in groups):
            yield f"{kind}.step() without capturable=True", f"create {kind} with `capturable=True`"
        elif any(_has_host_state(state) for state in optimizer.state.values()):
            yield f"{kind} keeps state in CPU memory", "use an optimizer with `capturable=True`"
        rates = [group["lr"] for group in groups if type(group.get("lr")) is float]
        before = self._rates.get(optimizer, rates)
        self._rates[optimizer] = rates
        if before != rates:
            subject = f"the learning rate of {kind} changes, but is a Python number"
            yield subject, f'create {kind} with `lr=torch.tensor(..., device="cuda")`'

    # -- queries -------------------------------------------------------------------------------------

    def stream_id(self, index: int) -> int:
        """Return the id of this thread's stream on device `index`."""
        return 0 if self.runtime is None else int(self.runtime.current_stream_id(index))

    def is_capturing(self, index: int, stream: int) -> bool:
        """Whether a stream is being captured."""
        return self.capture is not None and (index, stream) in self.capture.streams

    def is_capturing_here(self) -> bool:
        """Whether the current stream of this thread is being captured."""
        return self.capture is not None and self.capture.current_stream() in self.capture.streams

    def capturing_graph(self) -> GraphBase | None:
        """Return the graph that the current stream is captured into, if any."""
        return self._graph if self.is_capturing_here() else None

    # -- captures ------------------------------------------------------------------------------------

    def begin(self, graph: GraphBase, pool: Handle | None, mode: str) -> GraphPool:
        """Start capturing the current stream into `graph`; return its memory pool.

        Raises:
            RuntimeError: the stream is the default one, in torch's words; a capture is under way, in CUDA's.
        """
        index = local.device
        stream = (index, self.stream_id(index))
        if stream[1] == 0:
            self.record_refusal(None, words.DEFAULT_STREAM, "CUDAGraph.capture_begin")
            raise RuntimeError(words.DEFAULT_STREAM)
        if self.capture is not None:
            raise self.capture.refuse(words.ILLEGAL_STATE, "CUDAGraph.capture_begin")
        core, recorder = self.core, self.core.recorder
        shared = self.pools.open(pool)
        shared.index = index
        self.capture = graph.capture = GraphCapture(core, stream, mode, graph.generators)
        self._graph = graph
        self.capture.earlier = list(shared.graphs) if shared.kept else []
        self._programme, recorder.programme = recorder.programme, None
        if self._programme is not None:
            recorder.programme = self._programme.fork()
        recorder.held = []
        self._races_enabled, core.races.enabled = (
            core.races.enabled,
            False,
        )  # what is recorded runs in replays
        core.placement.pool = shared
        self.enabled = True
        self.capture.host.begin()
        return shared

    def end(self, graph: GraphBase) -> Tape:
        """End the capture into `graph`; return what it recorded.

        Raises:
            RuntimeError: as `GraphBase.capture_end`.
        """
        capture = self.capture
        if capture is None or graph.capture is not capture:
            raise words.error(words.ILLEGAL_STATE)
        if capture.current_stream() != capture.stream:
            capture.failed = True
            self.record_refusal(capture, words.OTHER_STREAM, "CUDAGraph.capture_end")
            raise RuntimeError(words.OTHER_STREAM)
        failure = words.INVALIDATED if capture.failed else None
        if failure is None and capture.has_unjoined_work():
            failure = words.UNJOINED
            self.record_refusal(capture, failure.words, "CUDAGraph.capture_end")
        marks, launched = self._close(capture)
        if failure is not None:
            capture.host.forget()
            raise words.error(failure)
        pool = graph._pool
        graph.watch = GraphWatch(self, graph, capture, marks, launched)
        self.faults.add_watch(graph.watch)
        if pool is not None:
            self._record_pool(pool, graph)
        return capture.tape

    def abandon(self, graph: GraphBase) -> None:
        """End the capture of `graph`, which is reset meanwhile, and drop its record."""
        if self.capture is not None and graph.capture is self.capture:
            self._close(self.capture)
            graph.capture.host.forget()

    def _close(self, capture: GraphCapture) -> tuple[list[tuple[str, str]], list[Any]]:
        """Restore the state from before the capture; return its marks and launches."""
        core, recorder = self.core, self.core.recorder
        marks, recorder.held = recorder.held or [], None
        launched = [] if recorder.programme is None else recorder.programme.launched_so_far()
        recorder.programme, self._programme = self._programme, None
        if any(launch.kind == "collective" for launch in launched):
            core.note(_COLLECTIVES_NOTE)
        core.placement.pool = None
        core.races.enabled = self._races_enabled
        self.capture = self._graph = None
        capture.host.end(capture)
        capture.close()
        return marks, launched

    def _record_pool(self, pool: GraphPool, graph: GraphBase) -> None:
        """Record the memory that `pool` reserves for `graph` in the allocator's record."""
        pool.graphs.append(weakref.ref(graph, lambda _: self.remove_graph(None, pool)))
        memory = self.core.placement.memory
        if memory is not None:
            pool.row = memory.keep_pool(pool.index, pool.kept, pool.row)

    def remove_graph(self, graph: GraphBase | None, pool: GraphPool) -> None:
        """Remove a deleted or reset `graph` from `pool`; None: one that was collected."""
        self.pools.release(pool, graph)
        memory = self.core.placement.memory
        if memory is not None and not pool.graphs:
            pool.row = memory.keep_pool(pool.index, 0, pool.row)

    # -- replays -------------------------------------------------------------------------------------

    def replay(self, graph: GraphBase) -> None:
        """Run the launches that `graph` recorded.

        Raises:
            RuntimeError: a capture is under way, in torch's words.
        """
        if self.capture is not None and self.capture.applies_here(False):
            self.record_refusal(
                self.capture, "Cannot prepare for replay during capturing stage.", "CUDAGraph.replay"
            )
            raise words.not_while_capturing("Cannot prepare for replay during capturing stage.")
        tape, watch, core = graph.tape, graph.watch, self.core
        assert tape is not None
        watch.before_replay()
        if not core.dry:
            with self._without_recording():
                tape.run(core.placement.put_storage)
        if core.recorder.programme is not None and not local.quiet:
            core.recorder.programme.record_replay(watch.launched)
        if core.races.full:
            core.races.record_launch("CUDAGraph.replay", *watch.storages_read_and_written(), watch.index)
        graph.replays += 1
        watch.after_replay()
        for kind, name in watch.marks:
            core.recorder.mark(kind, name, depth=2)

    @contextlib.contextmanager
    def _without_recording(self) -> Iterator[None]:
        """Record and count nothing inside: a replay is one launch."""
        core = self.core
        recorder, memory = core.recorder, core.placement.memory
        programme, recorder.programme = recorder.programme, None
        graphed, local.graphed = local.graphed, True
        backward, local.backward = local.backward, -1
        enabled, core.races.enabled = core.races.enabled, False
        local.quiet += 1
        if memory is not None:
            memory.muted += 1
        try:
            with core.placement.without_peaks(), below_autograd(), ExcludedKeys(_AUTOCAST_KEYS):
                yield
        finally:
            if memory is not None:
                memory.muted -= 1
            local.quiet -= 1
            core.races.enabled = enabled
            local.backward = backward
            local.graphed = graphed
            recorder.programme = programme

    # -- events of the emulation ---------------------------------------------------------------------

    def watch_replays(self, replays: Any) -> None:
        """Report tensors that operators use to `replays`, those of compiled CUDA graphs."""
        self.enabled, self.replays = True, replays

    def dispatch(self, mode: Any, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operator: through the capture under way, else checked for graph faults."""
        capture = self.capture
        local.graphed = True
        try:
            if capture is not None and capture.applies_here(False):
                return capture.operator(mode, func, types, args, kwargs)
            self.faults.check_operator(mode.of(func), args, kwargs)
            if self.replays is not None:
                self.replays.check_use(args, kwargs)
            return mode.__torch_dispatch__(func, types, args, kwargs)
        finally:
            local.graphed = False

    def launch(
        self, name: str, run: Callable[..., Any], args: Any, writes: Iterable[Tensor], body: Callable[[], Any]
    ) -> Any:
        """Run `body`, a launch that is no operator; a capture records ``run(*args)`` to repeat it."""
        capture = self.capture
        if capture is None or not capture.applies_here(False) or local.graphed:
            return body()
        local.graphed = True
        try:
            return capture.launch(name, run, args, writes, body)
        finally:
            local.graphed = False

    def wait_error(self, site: dict[str, Any]) -> RuntimeError:
        """Record that the host would wait, which a capture refuses; return the error to raise."""
        assert self.capture is not None
        call = site["call"] or site["operator"]
        copied = site["mechanism"] in ("h2d", "d2h") or call == "Tensor.tolist"
        if copied and site["detail"] != "pinned" and VERSION >= (2, 11):  # torch says so before CUDA does
            self.faults.add_refusal(self.capture, words.UNPINNED, call, Site(**site))
            return RuntimeError(words.UNPINNED)
        self.capture.failed = True
        self.faults.add_refusal(self.capture, words.UNSUPPORTED.words, call, Site(**site))
        return words.error(words.UNSUPPORTED)

    def refuse_query(self, call: str) -> None:
        """Refuse `call`, a query that the driver does not answer in a capture."""
        if self.capture is not None and self.capture.applies_here():
            raise self.capture.refuse(words.UNSUPPORTED, call)
        self._add_obstacle(call, "query it outside the graph")

    def refuse_seed(self, changes: bool, call: str) -> None:
        """Refuse `call`, which sets a seed, in a capture; since torch 2.10 only if it `changes` the seed."""
        if VERSION < (2, 10) or not self.is_capturing_here():
            self.refuse_in_capture("Cannot call CUDAGeneratorImpl::set_current_seed", call)
        elif changes:
            self.record_refusal(self.capture, words.OTHER_SEED, call)
            raise RuntimeError(words.OTHER_SEED)

    def copies_need_pinned_memory(self) -> bool:
        """Whether a capture is under way in which torch refuses copies from and to pageable memory."""
        return self.capture is not None and VERSION >= (2, 11) and self.capture.applies_here()

    def refuse_in_capture(self, attempt: str, call: str) -> None:
        """Refuse `call` in a capture as torch itself does, with its message `attempt`."""
        if self.is_capturing_here():
            self.record_refusal(self.capture, attempt, call)
            raise words.not_while_capturing(attempt)
        self._add_obstacle(call, _RANDOM_STATE_ADVICE)

    def read_generator(self, generator: Any, state: tuple[int, int]) -> None:
        """Record that the script read the state of `generator`: replays save theirs at this point."""
        if self.capture is not None and self.is_capturing_here():
            self.capture.keep_generator_state(generator, state)

    def restore_generator(self, generator: Any, state: tuple[int, int]) -> bool:
        """Whether `state` was read in the capture under way; if so replays restore what they saved."""
        return (
            self.capture is not None
            and self.is_capturing_here()
            and self.capture.restore_generator_state(generator, state)
        )

    def _add_obstacle(self, subject: str, change: str) -> None:
        programme = self.core.recorder.programme
        if programme is not None and self.capture is None:
            programme.obstacle(subject, change)

    def record_refusal(self, capture: GraphCapture | None, said: str, subject: str) -> None:
        """Record that `subject` was refused with the message `said`."""
        stack = stacks.resolve(stacks.capture(1))
        self.faults.add_refusal(capture, said, subject, Site(operator=subject, mechanism="none", stack=stack))

    def record_event(self, index: int, stream: int) -> Any:
        """Return the moment of an event recorded on a stream in the capture; None outside of one."""
        return None if self.capture is None else self.capture.event_moment((index, stream))

    def wait_for_event(self, index: int, stream: int, moment: Any, recorded: bool, external: bool) -> None:
        """Make a stream wait for an event in the capture under way."""
        if self.capture is not None and self.capture.applies_here(False):
            self.capture.wait_for_event((index, stream), moment, recorded, external)

    def query_event(self, moment: Any, call: str) -> None:
        """Refuse `call`, a query or wait of the host for an event recorded in a capture."""
        if moment is not None:
            self.record_refusal(self.capture, words.CAPTURED_EVENT.words, call)
            if self.capture is not None:
                self.capture.failed = True
            raise words.error(words.CAPTURED_EVENT)
        self.refuse_query(call)


def _has_host_state(state: Any) -> bool:
    """Whether an optimizer's state has tensors both on the device and on the host."""
    tensors = (
        [value for value in state.values() if isinstance(value, Tensor)] if isinstance(state, dict) else []
    )
    return any(value.is_cuda for value in tensors) and not all(value.is_cuda for value in tensors)

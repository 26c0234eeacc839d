"""`GraphWatch`: checks of one captured graph at its replays, which CUDA does not make."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Iterable
from types import FrameType
from typing import Any

import torch

from gapless.emulation.graphs.frozen import FrozenNumbers
from gapless.emulation.graphs.input_names import InputNames, user_frames
from gapless.emulation.graphs.slots import GraphSlot, View, storage_of
from gapless.emulation.graphs.tape import Tape, views
from gapless.emulation.races.ranges import ByteRange, count_covered
from gapless.emulation.support import stacks

Tensor = torch.Tensor
_CLOSE_REPLAYS = 64
"""Replays of a graph that are all checked: most faults show in the first ones."""
_CHECK_INTERVAL = 16
"""Later on every so many-th replay is checked, to keep replays cheap."""


class GraphInput:
    """An input of a graph: memory that existed before the capture, and writes to it since a replay."""

    def __init__(self, watch: GraphWatch, slot: GraphSlot) -> None:
        self.watch = watch
        self.slot = slot
        self.writes = 0
        self.parts: list[ByteRange] = []
        self.whole = False
        self.once_whole = False

    def record_write(self, part: ByteRange | None) -> None:
        """Record a write to bytes `part`; None: to all of it."""
        self.writes += 1
        if part is None or (part.gaps is None and part.end - part.begin >= self.slot.nbytes):
            self.whole = True
        else:
            self.parts.append(part)

    def bytes_written(self) -> int:
        """Return how many bytes were written since the last replay; all of them if nothing was."""
        if self.whole or not self.writes:
            return self.slot.nbytes
        if any(part.gaps is not None for part in self.parts):
            return count_covered(self.parts, self.slot.nbytes)
        done, reached = 0, 0
        for begin, end, _ in sorted(self.parts):
            done += max(end - max(begin, reached), 0)
            reached = max(reached, end)
        return done

    def mark_read(self) -> None:
        """Forget earlier writes: a replay reads the input now."""
        self.once_whole = self.once_whole or (self.whole and self.writes > 0)
        self.writes, self.whole = 0, False
        self.parts.clear()


class GraphOutput:
    """Memory created by a capture and in use at its end; `is_overwritten`: eager code wrote it since."""

    def __init__(self, watch: GraphWatch, slot: GraphSlot) -> None:
        self.watch = watch
        self.slot = slot
        self.is_overwritten = False

    def check_read(self, operator: str) -> None:
        """Report an eager read before the first replay, or after another graph overwrote it."""
        watch = self.watch
        if watch.graph_replays() == 0:
            evidence = "no replay has written it: the capture itself computes nothing"
            watch.faults.add("output", operator, (evidence,), watch.place)
        elif watch.is_spoiled:
            evidence = (
                "since its replay, another graph of the same memory pool was replayed whose memory overlaps"
            )
            watch.faults.add("order", operator, (evidence,), watch.place)

    def report_repeats(self, operator: str, times: int) -> None:
        """Report that `operator` received this output `times` times in one list."""
        evidence = (
            f"{operator} receives the memory of one graph output {times} times: all are from the last replay"
        )
        self.watch.faults.add("output", operator, (evidence,), self.watch.place)


class GraphWatch:
    """The inputs and outputs of one graph, checked between its replays."""

    def __init__(
        self, graphs: Any, graph: Any, capture: Any, marks: list[tuple[str, str]], launched: list[Any]
    ) -> None:
        self.faults = graphs.faults
        self.place = capture.place
        self.index = capture.stream[0]
        self.marks, self.launched = marks, launched
        self.is_spoiled = False
        self._graph = weakref.ref(graph, lambda _: self.faults.remove_watch(self))
        self._graphs = graphs
        self._tape = tape = capture.tape
        storages = {slot.number: slot.storage() for slot in tape.slots}  # held: garbage may go at any time
        for slot in tape.slots:
            slot.is_output = slot.is_new and storages[slot.number] is not None
        read = {view.slot.number for step in tape.steps for view in views((step.args, step.kwargs))}
        outside = [slot for slot in tape.slots if not slot.is_new and slot.number in read]
        for slot in outside:
            slot.is_pooled = graphs.pools.have(storages[slot.number]) or slot.is_resized()
        self.inputs = {storages[slot.number]._cdata: GraphInput(self, slot) for slot in outside}
        outputs = [slot for slot in tape.slots if slot.is_output]
        self.outputs = {storages[slot.number]._cdata: GraphOutput(self, slot) for slot in outputs}
        self._earlier = capture.earlier
        self._stepped: dict[int, int] = {}
        self._held: dict[tuple[int, str], int] = {}
        self._bindings = InputNames(capture.host.frames, self.inputs)
        self._frozen = FrozenNumbers(self, capture.host, tape)
        self._gradients = self._find_gradients(graphs.parameters())
        capture.host.report(self)
        self._check_optimizer_state(capture.host.optimizers)
        self._steps = weakref.WeakSet(capture.host.optimizers)
        capture.host.forget()
        for slot in tape.slots:
            if not slot.is_pooled:  # the pool keeps its memory for as long as there are graphs
                slot.release()

    def graph_replays(self) -> int:
        """Return how often the graph was replayed."""
        graph = self._graph()
        return 0 if graph is None else int(graph.replays)

    def storages_read_and_written(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return tensors over the storages that a replay reads, and over those that it writes."""
        from gapless.emulation.graphs.slots import bytes_of
        from gapless.torch_internals import DisableTorchDispatch, DisableTorchFunction

        with DisableTorchDispatch(), DisableTorchFunction():
            inputs = [used.slot for used in self.inputs.values() if not used.slot.is_written]
            outputs = [slot for slot in self._tape.slots if slot.is_written or slot.is_output]
            reads, writes = (
                [bytes_of(storage) for slot in slots if (storage := slot.storage()) is not None]
                for slots in (inputs, outputs)
            )
            return reads, writes

    # -- replays -------------------------------------------------------------------------------------

    def before_replay(self) -> None:
        """Check names, numbers and inputs before a replay."""
        number = self.graph_replays()
        if number < _CLOSE_REPLAYS or number % _CHECK_INTERVAL == 0:
            frames = user_frames()
            self._check_inputs_alive(self._bindings.find_rebound(self, frames))
            self._frozen.check(frames)
            self._check_kept_outputs(frames)
        for used in self.inputs.values():
            if used.once_whole and used.writes and used.bytes_written() < used.slot.nbytes:
                self._check_partial_input(used)
        for used in self.inputs.values():
            used.mark_read()

    def after_replay(self) -> None:
        """Mark outputs as fresh after a replay, and graphs that share their memory as overwritten."""
        self.is_spoiled = False
        for watched in self.faults.watches:
            if watched is not self and any(earlier() is self._graph() for earlier in watched._earlier):
                watched.is_spoiled = watched.graph_replays() > 0
        self.faults.mark_written(
            [storage._cdata for slot in self._tape.slots if (slot.is_written or slot.is_output)
             and (storage := slot.storage()) is not None]
        )  # fmt: skip
        for used in self.inputs.values():
            used.writes, used.whole = 0, False

    def _check_inputs_alive(self, rebound: set[int]) -> None:
        for used in self.inputs.values():
            slot = used.slot
            name = self._bindings.name(slot) or f"an input of {slot.nbytes:,} bytes"
            where = "CPU memory" if slot.index < 0 else "GPU memory"
            if slot.is_pooled or slot.number in rebound:
                continue
            if slot.is_unreferenced():
                evidence = f"it is no longer referenced, so its place in {where} is given to other tensors"
            elif slot.is_resized():
                evidence = f"it was resized: the graph keeps reading its old place in {where}"
            else:
                continue
            self.faults.add("gone", name, (evidence,), self.place)

    def _check_partial_input(self, used: GraphInput) -> None:
        written = (other for other in self.inputs.values() if other is not used and other.writes)
        whole = [full.slot for full in written if full.bytes_written() == full.slot.nbytes]
        rows = rows_of(self._tape, used.slot)
        if not mixes_rows(self._tape, used.slot) or has_row_mask(self._tape, rows, whole):
            return
        name = self._bindings.name(used.slot) or "an input"
        evidence = (
            f"{used.bytes_written():,} of its {used.slot.nbytes:,} bytes were written before this replay, "
            "but all of them before an earlier one: the rest still has the values of that batch"
        )
        self.faults.add("part", name, (evidence,), self.place)

    def _check_kept_outputs(self, frames: list[FrameType]) -> None:
        """Report a user's list that holds the same output more often than at the last check.

        A new list with repeats is left alone: it may be intended.
        """
        before, self._held = self._held, {}
        outputs = {key for key, output in self.outputs.items() if output.slot.storage() is not None}
        for frame in frames:
            own = stacks.variables(frame)
            scopes = [own, *([] if own is frame.f_globals else [frame.f_globals])]
            for name, value in [item for scope in scopes for item in list(scope.items())]:
                if type(value) not in (list, deque, tuple):
                    continue
                keys = [s._cdata for item in value if isinstance(item, Tensor) and (s := storage_of(item))]
                same = max((keys.count(key) for key in set(keys) & outputs), default=0)
                self._held[id(value), name] = same
                if 0 < before.get((id(value), name), 0) < same:
                    evidence = (
                        f"`{name}` holds the memory of one graph output {same} times: all have the values "
                        "of the last replay"
                    )
                    self.faults.add("output", name, (evidence,), self.place)

    # -- optimizers ----------------------------------------------------------------------------------

    def _check_optimizer_state(self, optimizers: list[Any]) -> None:
        """Report optimizer state created in the capture, which each replay resets."""
        new_storages = {key for key, output in self.outputs.items()}
        for optimizer in optimizers:
            tensors = [t for state in optimizer.state.values() for t in _state_tensors(state)]
            if any((s := storage_of(t)) is not None and s._cdata in new_storages for t in tensors):
                evidence = (
                    "its state was created in the capture: each replay starts with zeros again, as if "
                    "every step were the first"
                )
                self.faults.add(
                    "made-inside", f"{type(optimizer).__name__}.step", (evidence,), self.place, self.place
                )

    def _find_gradients(self, parameters: list[Tensor]) -> dict[int, tuple[Any, GraphSlot]]:
        """Return weak reference and gradient slot of each parameter whose gradient replays write, by id."""
        slots = {key: output.slot for key, output in self.outputs.items()}
        slots.update({key: used.slot for key, used in self.inputs.items() if used.slot.is_written})
        gradients = {}
        for parameter in parameters:
            storage = storage_of(parameter.grad) if parameter.grad is not None else None
            slot = slots.get(storage._cdata) if storage is not None else None
            if slot is not None:
                gradients[id(parameter)] = weakref.ref(parameter), slot
        return gradients

    def before_step(self, optimizer: Any) -> None:
        """Report an eager optimizer step that would not see the gradients of the last replay."""
        replays, before = self.graph_replays(), self._stepped.get(id(optimizer), 0)
        self._stepped[id(optimizer)] = replays
        if replays == before or not self._gradients or optimizer in self._steps:
            return  # with its own step in the graph, one outside is for gradients from outside
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                gradient = self._gradients.get(id(parameter))
                if gradient is None or gradient[0]() is not parameter:
                    continue
                storage = None if parameter.grad is None else storage_of(parameter.grad)
                if storage is None or storage is not gradient[1].storage():
                    kind = type(optimizer).__name__
                    has = "None" if parameter.grad is None else "another tensor"
                    evidence = (
                        f"`.grad` of a parameter is {has}, not the memory that replays write its gradient "
                        "into: the optimizer step does not see it"
                    )
                    self.faults.add("gradients", f"{kind}.step", (evidence,), self.place)
                    return


def _state_tensors(state: Any) -> list[Tensor]:
    return [value for value in state.values() if isinstance(value, Tensor)] if isinstance(state, dict) else []


def rows_of(tape: Tape, slot: GraphSlot) -> int:
    """Return the number of rows of `slot` that its first reader takes; 0 if it has none."""
    for step in tape.steps:
        for view in views((step.args, step.kwargs)):
            if view.slot is slot:
                return view.size[0] if view.size else 0
    return 0


def mixes_rows(tape: Tape, slot: GraphSlot) -> bool:
    """Whether the graph combines rows of `slot`, as in a loss, a mean or the gradient of a weight.

    If each result row depends on one input row, stale rows only spoil results that nobody needs to read.
    """
    rows = rows_of(tape, slot)
    reached = {slot.number}
    for step in tape.steps:
        if reached.isdisjoint(view.slot.number for view in views((step.args, step.kwargs))):
            continue
        results = list(views(step.out))
        if not rows or any(math.prod(view.size) % rows for view in results):
            return True
        reached.update(view.slot.number for view in results)
    return False


def has_row_mask(tape: Tape, rows: int, written: Iterable[GraphSlot]) -> bool:
    """Whether a fully `written` input can say which rows are valid: a mask with one value per row, or an
    integer count."""
    numbers = {slot.number for slot in written}
    return any(
        _is_row_mask(view, rows)
        for step in tape.steps
        for view in views((step.args, step.kwargs))
        if view.slot.number in numbers
    )


def _is_row_mask(view: View, rows: int) -> bool:
    whole = not (view.dtype.is_floating_point or view.dtype.is_complex)
    return view.size[:1] == (rows,) or (math.prod(view.size) == 1 and whole)

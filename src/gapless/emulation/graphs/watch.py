"""`Watch`: one captured graph, looked at where it is replayed: what CUDA does not check."""

from __future__ import annotations

import weakref
from collections import deque
from types import FrameType
from typing import Any

import torch

from gapless.emulation.graphs.bindings import Bindings, user_frames, variables
from gapless.emulation.graphs.frozen import Frozen
from gapless.emulation.graphs.rows import leaves_out, mixes, rows_of
from gapless.emulation.graphs.slots import Slot, storage_of
from gapless.emulation.graphs.tape import views
from gapless.emulation.races.ranges import Range, covered

Tensor = torch.Tensor
_CLOSELY = 64
"""Replays of a graph that are looked at closely; after them each `_THEN`-th is."""
_THEN = 16


class Used:
    """An input of a graph: memory that was there before the capture."""

    def __init__(self, watch: Watch, slot: Slot) -> None:
        self.watch = watch
        self.slot = slot
        self.writes = 0
        self.parts: list[Range] = []
        self.whole = False
        self.once_whole = False

    def wrote(self, part: Range | None) -> None:
        """Something has written into it: all of it, or a part."""
        self.writes += 1
        if part is None or (part.gaps is None and part.end - part.begin >= self.slot.nbytes):
            self.whole = True
        else:
            self.parts.append(part)

    def filled(self) -> int:
        """How many of its bytes have been written since the last replay."""
        if self.whole or not self.writes:
            return self.slot.nbytes
        if any(one.gaps is not None for one in self.parts):
            return covered(self.parts, self.slot.nbytes)
        done, reached = 0, 0
        for begin, end, _ in sorted(self.parts):
            done += max(end - max(begin, reached), 0)
            reached = max(reached, end)
        return done

    def replayed(self) -> None:
        """A replay has read it."""
        self.once_whole = self.once_whole or (self.whole and self.writes > 0)
        self.writes, self.whole = 0, False
        self.parts.clear()


class Output:
    """Memory that a capture made and that was in use when it ended. `own` says that eager code wrote it."""

    def __init__(self, watch: Watch, slot: Slot) -> None:
        self.watch = watch
        self.slot = slot
        self.own = False

    def read(self, operator: str) -> None:
        """Eager code reads it."""
        watch = self.watch
        if watch.graph_replays() == 0:
            told = "no replay has written it: the capture itself computes nothing"
            watch.found.add("output", operator, (told,), watch.place)
        elif watch.spoiled:
            told = (
                "since its replay, another graph of the same memory pool was replayed whose memory overlaps"
            )
            watch.found.add("order", operator, (told,), watch.place)

    def kept(self, operator: str, times: int) -> None:
        """It stands several times in one list."""
        told = (
            f"{operator} receives the memory of one graph output {times} times: all are from the last replay"
        )
        self.watch.found.add("output", operator, (told,), self.watch.place)


class Watch:
    """What a graph reads and writes, and how that changes between replays."""

    def __init__(
        self, graphs: Any, graph: Any, capture: Any, marks: list[tuple[str, str]], launched: list[Any]
    ) -> None:
        self.found = graphs.found
        self.place = capture.place
        self.index = capture.stream[0]
        self.marks, self.launched = marks, launched
        self.spoiled = False
        self._graph = weakref.ref(graph, lambda _: self.found.forget(self))
        self._graphs = graphs
        self._tape = tape = capture.tape
        there = {slot.number: slot.there() for slot in tape.slots}  # held: garbage may go at any time
        for slot in tape.slots:
            slot.known = slot.made and there[slot.number] is not None
        read = {view.slot.number for step in tape.steps for view in views((step.args, step.kwargs))}
        outside = [slot for slot in tape.slots if not slot.made and slot.number in read]
        for slot in outside:
            slot.pooled = graphs.pools.have(there[slot.number]) or slot.moved()
        self.inputs = {there[slot.number]._cdata: Used(self, slot) for slot in outside}
        known = [slot for slot in tape.slots if slot.known]
        self.outputs = {there[slot.number]._cdata: Output(self, slot) for slot in known}
        self._earlier = capture.earlier
        self._stepped: dict[int, int] = {}
        self._held: dict[tuple[int, str], int] = {}
        self._bindings = Bindings(capture.host.frames, self.inputs)
        self._frozen = Frozen(self, capture.host, tape)
        self._gradients = self._of_parameters(graphs.parameters())
        capture.host.tell(self)
        self._state(capture.host.optimizers)
        self._steps = weakref.WeakSet(capture.host.optimizers)
        capture.host.forget()
        for slot in tape.slots:
            if not slot.pooled:  # the pool keeps its memory for as long as there are graphs
                slot.release()

    def graph_replays(self) -> int:
        """How often the graph was replayed."""
        graph = self._graph()
        return 0 if graph is None else int(graph.replays)

    def used(self) -> tuple[list[Tensor], list[Tensor]]:
        """Tensors over what a replay reads and writes."""
        from gapless.emulation.graphs.slots import bytes_of
        from gapless.torch_internals import DisableTorchDispatch, DisableTorchFunction

        with DisableTorchDispatch(), DisableTorchFunction():
            inputs = [one.slot for one in self.inputs.values() if not one.slot.written]
            outputs = [one for one in self._tape.slots if one.written or one.known]
            reads, writes = (
                [bytes_of(storage) for one in slots if (storage := one.there()) is not None]
                for slots in (inputs, outputs)
            )
            return reads, writes

    # -- replays -------------------------------------------------------------------------------------

    def before(self) -> None:
        """The graph is about to be replayed."""
        number = self.graph_replays()
        if number < _CLOSELY or number % _THEN == 0:
            frames = user_frames()
            self._memory(self._bindings.changed(self, frames))
            self._frozen.changed(frames)
            self._kept(frames)
        for used in self.inputs.values():
            if used.once_whole and used.writes and used.filled() < used.slot.nbytes:
                self._in_part(used)
        for used in self.inputs.values():
            used.replayed()

    def after(self) -> None:
        """It has been: what shares its memory is overwritten, and it has values of its own again."""
        self.spoiled = False
        for one in self.found.watches:
            if one is not self and any(earlier() is self._graph() for earlier in one._earlier):
                one.spoiled = one.graph_replays() > 0
        self.found.replayed(
            [storage._cdata for slot in self._tape.slots if (slot.written or slot.known)
             and (storage := slot.there()) is not None]
        )  # fmt: skip
        for used in self.inputs.values():
            used.writes, used.whole = 0, False

    def _memory(self, rebound: set[int]) -> None:
        for used in self.inputs.values():
            slot = used.slot
            name = self._bindings.name(slot) or f"an input of {slot.nbytes:,} bytes"
            where = "CPU memory" if slot.index < 0 else "GPU memory"
            if slot.pooled or slot.number in rebound:
                continue
            if slot.forgotten():
                told = f"it is no longer referenced, so its place in {where} is given to other tensors"
            elif slot.moved():
                told = f"it was resized: the graph keeps reading its old place in {where}"
            else:
                continue
            self.found.add("gone", name, (told,), self.place)

    def _in_part(self, used: Used) -> None:
        others = (one for one in self.inputs.values() if one is not used and one.writes)
        whole = [one.slot for one in others if one.filled() == one.slot.nbytes]
        rows = rows_of(self._tape, used.slot)
        if not mixes(self._tape, used.slot) or leaves_out(self._tape, rows, whole):
            return
        name = self._bindings.name(used.slot) or "an input"
        told = (
            f"{used.filled():,} of its {used.slot.nbytes:,} bytes were written before this replay, but all "
            "of them before an earlier one: the rest still has the values of that batch"
        )
        self.found.add("part", name, (told,), self.place)

    def _kept(self, frames: list[FrameType]) -> None:
        """Lists of the user's that have the same output once more than when they were last looked at.

        One that is made anew may have a tensor beside itself on purpose.
        """
        before, self._held = self._held, {}
        outputs = {key for key, one in self.outputs.items() if one.slot.there() is not None}
        for frame in frames:
            own = variables(frame)
            scopes = [own, *([] if own is frame.f_globals else [frame.f_globals])]
            for name, value in [item for scope in scopes for item in list(scope.items())]:
                if type(value) not in (list, deque, tuple):
                    continue
                keys = [s._cdata for one in value if isinstance(one, Tensor) and (s := storage_of(one))]
                same = max((keys.count(key) for key in set(keys) & outputs), default=0)
                self._held[id(value), name] = same
                if 0 < before.get((id(value), name), 0) < same:
                    told = (
                        f"`{name}` holds the memory of one graph output {same} times: all have the values "
                        "of the last replay"
                    )
                    self.found.add("output", name, (told,), self.place)

    # -- optimizers ----------------------------------------------------------------------------------

    def _state(self, optimizers: list[Any]) -> None:
        """State that the capture made is made anew by each replay."""
        made = {key for key, one in self.outputs.items()}
        for optimizer in optimizers:
            tensors = [t for one in optimizer.state.values() for t in _values(one)]
            if any((s := storage_of(t)) is not None and s._cdata in made for t in tensors):
                told = (
                    "its state was created in the capture: each replay starts with zeros again, as if "
                    "every step were the first"
                )
                self.found.add(
                    "made-inside", f"{type(optimizer).__name__}.step", (told,), self.place, self.place
                )

    def _of_parameters(self, parameters: list[Tensor]) -> dict[int, tuple[Any, Slot]]:
        """The parameters whose gradients replays write, and where."""
        slots = {key: one.slot for key, one in self.outputs.items()}
        slots.update({key: one.slot for key, one in self.inputs.items() if one.slot.written})
        found = {}
        for one in parameters:
            storage = storage_of(one.grad) if one.grad is not None else None
            slot = slots.get(storage._cdata) if storage is not None else None
            if slot is not None:
                found[id(one)] = weakref.ref(one), slot
        return found

    def stepping(self, optimizer: Any) -> None:
        """An optimizer is about to step, outside of a capture."""
        replays, before = self.graph_replays(), self._stepped.get(id(optimizer), 0)
        self._stepped[id(optimizer)] = replays
        if replays == before or not self._gradients or optimizer in self._steps:
            return  # with its own step in the graph, one outside is for gradients from outside
        for group in optimizer.param_groups:
            for one in group["params"]:
                known = self._gradients.get(id(one))
                if known is None or known[0]() is not one:
                    continue
                storage = None if one.grad is None else storage_of(one.grad)
                if storage is None or storage is not known[1].there():
                    kind = type(optimizer).__name__
                    has = "None" if one.grad is None else "another tensor"
                    told = (
                        f"`.grad` of a parameter is {has}, not the memory that replays write its gradient "
                        "into: the optimizer step does not see it"
                    )
                    self.found.add("gradients", f"{kind}.step", (told,), self.place)
                    return


def _values(state: Any) -> list[Tensor]:
    return [one for one in state.values() if isinstance(one, Tensor)] if isinstance(state, dict) else []

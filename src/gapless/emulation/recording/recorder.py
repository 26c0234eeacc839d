"""`WaitRecorder`: counts waits and marks by place and step while the script runs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any

import msgspec

from gapless.emulation.memory.requests import MemoryRecorder
from gapless.emulation.recording.optimizer_groups import Optimizers
from gapless.emulation.recording.programme import ProgrammeRecorder
from gapless.emulation.recording.strands import Strands
from gapless.emulation.support import later, stacks
from gapless.emulation.support.local import local
from gapless.model import Event, Mechanism, Phase, Site, StepMark
from gapless.model.event import WaitedTensor
from gapless.model.later import Later
from gapless.model.source import SourceLine, Stack
from gapless.model.tally import ADVANCING

_Key = tuple[Any, ...]
_RawMark = tuple[str, int, float, str, stacks.RawStack, int]
_MAX_MARKS = 20_000
"""Marks after which those that do not advance the tick are dropped: bounds the memory of long runs."""


class WaitRecorder:
    """Collects waits and marks. Repeats of a wait between two step marks are one event with a count.

    After `later.MAX_TICKS` marks that advance the tick, or `later.MAX_EVENTS` events, only sums are kept.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._began = clock()
        self._lock = threading.Lock()
        self._sites: dict[_Key, int] = {}
        self._counts: dict[tuple[int, int, Phase, int], list[float]] = {}
        self._marks: list[_RawMark] = []
        self._stacks: dict[stacks.RawStack, stacks.RawStack] = {}  # each stored once: marks share them
        self._tensors: dict[int, tuple[WaitedTensor, ...]] = {}
        self._later: later.LaterRecorder | None = None
        self._notes: dict[str, None] = {}
        self._unknown: dict[str, None] = {}
        self.extensions: dict[str, None] = {}  # CUDA extensions that were not built or loaded
        # Convolutions for which cuDNN tries algorithms, with the line and the tick of the first.
        self.tried: dict[Hashable, tuple[SourceLine | None, int]] = {}
        self.strands = Strands()
        self.tick = 0
        self.stepped = 0
        """Optimizer steps, also those of several optimizers in one iteration."""
        self.total = 0
        self.phase: Phase = "train"
        # Lightning ends an evaluation by setting `training` back, without a call of `train()`.
        self.evaluated: Callable[[], Any] = lambda: None
        self.on_mark: Callable[[StepMark], None] | None = None
        self.between_marks: Callable[[float], None] | None = None  # called with seconds at waits and batches
        self.on_wait: list[Callable[[Site], None]] = []
        # Whether waits at a stack end iterations; dropped once anything else does.
        self.ends_iteration: Callable[[Stack], bool] | None = None
        self._ending: dict[int, bool] = {}
        self.programme: ProgrammeRecorder | None = None  # device work, if recorded
        self.optimizers = Optimizers()
        self.memory: MemoryRecorder | None = None  # memory requests, if recorded
        self.pid = os.getpid()
        self.differentiated = False  # a backward pass has begun: the script trains
        self.held: list[tuple[str, str]] | None = None  # marks during a capture: they happen in replays

    def wait(
        self,
        operator: str,
        mechanism: Mechanism,
        *,
        call: str = "",
        detail: str = "",
        waits: int = 1,
        nbytes: int = 0,
        node: str = "",
        forward: stacks.RawStack = (),
        basis: str = "",
        batch: bool | None = None,
        depth: int = 1,
    ) -> int:
        """Count a wait at the stack of the caller's `depth`-th caller; return the number of its site."""
        stack = stacks.capture(depth + 1) + local.above
        key = (operator, mechanism, call, detail, stack, node, forward, basis, batch)
        strand = self.strands.here().number
        with self._lock:
            site = self._sites.setdefault(key, len(self._sites))
            evaluated = self.evaluated()
            phase: Phase = "train" if evaluated is not None and evaluated.training else self.phase
            entry = self._counts.get((site, self.tick, phase, strand))
            if self._later is not None:
                at = self._clock() - self._began
                self._later.wait(_make_event((site, self.tick, phase, strand), (at, 1, waits, nbytes)))
            elif entry is None:
                self._counts[site, self.tick, phase, strand] = [self._clock() - self._began, 1, waits, nbytes]
            else:
                entry[1] += 1
                entry[2] += waits
                entry[3] += nbytes
            self.total += waits
        if self.programme is not None:
            self.programme.wait(site, mechanism, detail, waits, nbytes, operator)
        for listener in tuple(self.on_wait):
            listener(self._make_site(key))
        if self.between_marks is not None and not node:
            self.between_marks(self.duration())
        # What launches no kernels only prepares iterations: a loop that copies weights, one that prints.
        launched = self.programme.launched if self.programme is not None else mechanism != "h2d"
        if self.ends_iteration is not None and self.held is None and not node and launched:
            if site not in self._ending:
                self._ending[site] = self.ends_iteration(stacks.resolve(stack))
            if self._ending[site]:
                self._mark("wait", f"wait#{site}", self.strands.here().thread, stack)
        return site

    def note_tensors(self, site: int, tensors: tuple[WaitedTensor, ...]) -> None:
        """Note what is waited for at a site; forget it where that differs from wait to wait."""
        first = self._tensors.setdefault(site, tensors)
        if first != tensors and not _are_alike(first, tensors):
            self._tensors[site] = ()

    def mark(self, kind: str, name: str = "", depth: int = 1) -> None:
        """Record a mark where a step begins or ends; marks that end steps advance the tick.

        Steps of optimizers inside a backward pass are marked by `backward_over`.
        """
        if self.held is not None:
            self.held.append((kind, name))
            self.stepped += kind == "optimizer"
            return
        if kind != "batch":
            self.ends_iteration = None
        strand = self.strands.here()
        if kind == "optimizer":
            self.stepped += 1
            kind = strand.step_kind(name)
        elif kind == "backward":
            self.differentiated = True
            strand.begin_backward()
        if kind:
            # Tasks that serve requests take turns in their thread; only training has a loop per task.
            number = strand.thread if kind == "forward" else strand.number
            self._mark(kind, name, number, stacks.capture(depth + 1) + local.above)

    def backward_over(self, depth: int = 1) -> None:
        """Mark the steps of the optimizers that stepped inside the backward pass that has ended."""
        strand = self.strands.here()
        names = strand.take_inner_steps()
        if not names:
            return
        stack = stacks.capture(depth + 1) + local.above
        for name in names:
            self._mark(strand.step_kind(name), name, strand.number, stack)

    def _mark(self, kind: str, name: str, strand: int, stack: stacks.RawStack) -> None:
        """Store a mark, advance the tick if it ends a step, and call the listeners."""
        advances = kind in ADVANCING
        with self._lock:
            raw = (kind, self.tick, self._clock() - self._began, name, stack, strand)
            if self._later is not None:
                if advances:
                    self._later.mark(kind, name)
            elif advances or len(self._marks) < _MAX_MARKS:
                self._marks.append((*raw[:4], self._stacks.setdefault(stack, stack), strand))
            if advances:
                self._advance()
        if advances and self.memory is not None:
            self.memory.look()
        if advances or kind == "along":
            if self.on_mark is not None:
                self.on_mark(self._to_mark(raw))
        elif kind != "backward" and self.between_marks is not None:
            self.between_marks(self.duration())

    def _advance(self) -> None:
        """Advance the tick."""
        self.tick += 1
        if self.programme is not None:
            self.programme.cut()
        if self.memory is not None:
            self.memory.cut()
        if self.tick >= later.MAX_TICKS or len(self._counts) >= later.MAX_EVENTS:
            if self._later is None:
                self._later = later.LaterRecorder()
            if self.programme is not None:
                self.programme.finish()

    def note(self, text: str) -> None:
        """Add a remark to the report, once."""
        self._notes.setdefault(text)

    def unknown(self, operator: str) -> None:
        """Note an operator that may make the host wait, which is not known."""
        self._unknown.setdefault(operator)

    # -- reading -----------------------------------------------------------------------------------

    @staticmethod
    def _make_site(key: _Key) -> Site:
        operator, mechanism, call, detail, stack, node, forward, basis, batch = key
        return Site(
            operator=operator,
            mechanism=mechanism,
            call=call,
            detail=detail,
            stack=stacks.resolve(stack),
            node=node,
            forward=stacks.resolve(forward) if forward else (),
            basis=basis,
            batch=batch,
        )

    @staticmethod
    def _to_mark(raw: _RawMark) -> StepMark:
        kind, tick, at, name, stack, strand = raw
        lines = stacks.resolve(stack)
        return StepMark(kind=kind, tick=tick, time=at, name=name, stack=lines, strand=strand)  # type: ignore[arg-type]

    def sites(self) -> tuple[Site, ...]:
        """Return the distinct sites, by their number."""
        return tuple(
            msgspec.structs.replace(self._make_site(key), tensors=self._tensors.get(number, ()))
            for key, number in self._sites.items()
        )

    def raw_stacks(self) -> tuple[stacks.RawStack, ...]:
        """Return the stack of each site as it was captured, by the site's number."""
        return tuple(key[4] for key in self._sites)

    def events(self) -> tuple[Event, ...]:
        """Return all counted events, in order of time."""
        counted = (
            _make_event(key, (at, int(calls), int(waits), int(nbytes)))
            for key, (at, calls, waits, nbytes) in self._counts.items()
        )
        return tuple(sorted(counted, key=lambda event: event.time))

    def marks(self) -> tuple[StepMark, ...]:
        return tuple(self._to_mark(raw) for raw in self._marks)

    def later(self) -> Later | None:
        """Return the sums of later steps; None if every step is kept."""
        return self._later.later() if self._later is not None else None

    def notes(self) -> tuple[str, ...]:
        return tuple(self._notes)

    def unknowns(self) -> tuple[str, ...]:
        """Return the operators not known to wait or not, in the order of their first calls."""
        return tuple(self._unknown)

    def duration(self) -> float:
        """Return the seconds since the start of the recording."""
        return self._clock() - self._began


def _are_alike(first: tuple[WaitedTensor, ...], second: tuple[WaitedTensor, ...]) -> bool:
    """Whether both have the same dtypes and numbers of dimensions."""
    return [(each.dtype, len(each.shape)) for each in first] == [
        (each.dtype, len(each.shape)) for each in second
    ]


def _make_event(key: tuple[int, int, Phase, int], sums: tuple[float, int, int, int]) -> Event:
    site, tick, phase, strand = key
    at, calls, waits, nbytes = sums
    return Event(
        site=site, tick=tick, phase=phase, time=at, calls=calls, waits=waits, bytes=nbytes, strand=strand
    )

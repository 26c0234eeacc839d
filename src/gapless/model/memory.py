"""`MemoryRun`: what a run asked of the GPU's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from gapless.model._disk import SavedFormat
from gapless.model.memory_answer import Refusal
from gapless.model.memory_calls import CallTimes, DriverCalls
from gapless.model.source import SourceLine, Stack, user_line

ALLOC, FREE, DEFER, DONE, EMPTY, STEP, FAILED, RETIRE = range(8)
"""What happens in a `MemoryRun`.

- ``ALLOC``: memory is asked for;
- ``FREE``: it is given back, and can be used again at once;
- ``DEFER``: it is given back while another stream still uses it; ``DONE`` says when that stream has passed;
- ``EMPTY``: ``torch.cuda.empty_cache()``;
- ``STEP``: a training step ends;
- ``FAILED``: memory was asked for, and the recorded run did not get it;
- ``RETIRE``: the last graph of a private pool is gone, so that its cached memory may be given back.
"""

MODULE = "gapless.module="
"""Prefix of a request's metadata that names the module which makes it."""

Kind = Literal[
    "parameter",
    "gradient",
    "optimizer",
    "activation",
    "kept",
    "temporary",
    "forward",
    "backward",
    "batch",
    "workspace",
    "communication",
    "checkpoint",
    "unknown",
]
"""What a tensor is to the training.

A `Place` knows what asks for memory: there ``activation`` is whatever a forward pass asks for, ``backward``
whatever a backward pass does, ``optimizer`` whatever an optimizer does. What became of it tells the rest, in
an `Owner`: an ``activation`` waits for its backward pass, what is ``kept`` is held over from an earlier
step's forward pass, a ``temporary`` does not outlive the pass that made it; ``forward`` and ``backward``
stand where the recording ends too early to tell.
"""


CONTEXT_BYTES = 512 << 20
"""Approximate bytes of a device that CUDA's context and libraries use themselves."""


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where memory is asked for: positions in `MemoryRun.lines`, innermost first; the operator; the kind.

    `module` is the ``nn.Module`` that asks or, of weights, gradients and optimizer state, that owns them: its
    path in the model (``encoder.layer[3].attention``), or the chain of forward calls that leads to it
    (``Encoder > Layer > Attention``); "" where there is none or it is unknown.
    """

    lines: tuple[int, ...] = ()
    operator: str = ""
    kind: Kind = "unknown"
    module: str = ""


class StartBlock(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of a segment when recording began. `ident` is -1 where it is free; `size` includes slack."""

    size: int
    ident: int = -1
    requested: int = 0
    place: int = -1
    deferred: bool = False


class StartSegment(msgspec.Struct, frozen=True, omit_defaults=True):
    """Memory that was reserved when recording began, with its blocks in the order of their addresses."""

    address: int
    size: int
    stream: int = 0
    small: bool = False
    expandable: bool = False
    pool: int = 0
    blocks: tuple[StartBlock, ...] = ()


class Holder(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What keeps memory of step after step: a name of the program, and the lines that add to what it is of.

    `name` is as the program writes it (``self.bank``), `kind` the class of what it is of (``list``), and
    `lines` are those that add to it, the likeliest first (none, where they are not known). It kept `bytes` of
    `steps` steps when that was looked at; `in_graphs` of them only through autograd graphs. `attached` says
    that the tensors in it have graphs. `entries` is how many it had then, of `each` bytes, and `most` how
    many it can ever have (-1: no limit is known). It gets more every `every` steps, `alike` names do the same
    besides, and what one of them says stands for all.
    """

    name: str
    kind: str = ""
    lines: tuple[SourceLine, ...] = ()
    bytes: int = 0
    steps: int = 0
    in_graphs: int = 0
    attached: bool = False
    entries: int = 0
    each: int = 0
    most: int = -1
    every: int = 1
    alike: int = 0

    @property
    def line(self) -> SourceLine | None:
        """The likeliest line that adds to it."""
        return self.lines[0] if self.lines else None

    @property
    def per_step(self) -> int:
        """Bytes added in each step, or every `every` steps."""
        return self.bytes // max(self.steps, 1)

    @property
    def in_the_end(self) -> int:
        """Bytes that it still takes until it is full; -1 if nothing bounds it."""
        return max(self.most - self.entries, 0) * self.each if self.most >= 0 else -1


class Checkpoint(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What ``torch.load`` put on the GPU, and is neither a weight nor optimizer state of the training.

    `line` loads it. `name` is the variable that keeps it while the steps run ("": none does, or it was not
    looked for), `entries` its parts with their bytes, the largest first; `idents` are the allocations.
    """

    line: SourceLine | None = None
    name: str = ""
    entries: tuple[tuple[str, int], ...] = ()
    idents: tuple[int, ...] = ()


class UnusedGraph(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Forward passes with an autograd graph that no backward pass goes through.

    `line` calls the model, which was in training or not; `idents` are the allocations that this made.
    """

    line: SourceLine
    training: bool = False
    idents: tuple[int, ...] = ()


class Recorded(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What the recorded run itself did with the device: what a replay is measured by.

    Numbers of calls to the driver (`mallocs`, `frees`, `maps`, `unmaps`), of `retries` (-1: cannot be told)
    and of `ooms`. `reserved` in bytes, at its peak and at the end. `segments` are the sizes and addresses
    that the driver gave, in order; `spaces` are stream, pool (1: small) and first address of expandable
    segments. `floor` and `ceiling` bound the device's memory: `floor` bytes were reserved at once, `ceiling`
    were refused (-1: nothing was); `told` says that the driver told what was left.
    """

    mallocs: int = 0
    frees: int = 0
    maps: int = 0
    unmaps: int = 0
    retries: int = -1
    ooms: int = 0
    peak_reserved: int = 0
    final_reserved: int = 0
    segments: tuple[tuple[int, int], ...] = ()
    spaces: tuple[tuple[int, int, int], ...] = ()
    floor: int = 0
    ceiling: int = -1
    told: bool = False


class MemoryRun(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """All that a run asked of one device's caching allocator, as columns with one row for each event.

    `action` is one of the constants above. `ident` names an allocation, each its own; -1 where there is none.
    `size` is in bytes, as it was asked for. `place` is a position in `places`. `pool` is a position in
    `pools` (0: none, the default). `time` (nanoseconds since the first), `address` and `pool` are empty
    where they are unknown or all zero. `batches` are the rows of tensors that came from the host, with their
    shapes, where they are known. `used` is for each allocation the row from which on nothing uses it
    any more (-1: nothing ever did), empty where that is unknown.

    `start` is what was reserved when recording began. `settings` are those of the recorded run,
    `total_memory` and `limit` what the device has and what of it this process could get (-1: unknown).

    `classes` are those of modules, by paths in which numbers are left out (``layers[*]``), where known.
    `holders` are the names that keep what step after step leaves behind, where they were looked for,
    `unused_graphs` what forward passes without a backward pass asked for, `checkpoints` what was loaded to
    the GPU and is still there in the steps.

    `began` is the time of the first row on the recording's own clock (nanoseconds, -1: unknown), `refusals`
    what is known of the requests that failed.

    A profile does not tell how memory lay when it began. What it tells instead stands in `allocated` and
    `reserved`, the bytes after each row, and in `calls`.
    """

    origin: str = ""
    path: str = ""
    device: int = 0
    gpu: str = ""
    total_memory: int = -1
    limit: int = -1
    settings: str = ""
    action: tuple[int, ...] = ()
    ident: tuple[int, ...] = ()
    size: tuple[int, ...] = ()
    stream: tuple[int, ...] = ()
    place: tuple[int, ...] = ()
    time: tuple[int, ...] = ()
    address: tuple[int, ...] = ()
    pool: tuple[int, ...] = ()
    pools: tuple[str, ...] = ("",)
    places: tuple[Place, ...] = ()
    lines: tuple[SourceLine, ...] = ()
    batches: tuple[tuple[int, tuple[int, ...]], ...] = ()
    used: tuple[int, ...] = ()
    start: tuple[StartSegment, ...] = ()
    recorded: Recorded | None = None
    times: CallTimes = CallTimes()
    allocated: tuple[int, ...] = ()
    reserved: tuple[int, ...] = ()
    calls: tuple[DriverCalls, ...] = ()
    began: int = -1
    refusals: tuple[Refusal, ...] = ()
    classes: tuple[tuple[str, str], ...] = ()
    holders: tuple[Holder, ...] = ()
    unused_graphs: tuple[UnusedGraph, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.action)

    def stack(self, place: int) -> Stack:
        """Return the calls that lead to `places[place]`, innermost first; empty if unknown."""
        if not 0 <= place < len(self.places):
            return ()
        return tuple(self.lines[line] for line in self.places[place].lines)

    def line(self, place: int) -> SourceLine | None:
        """Return the innermost line of the user's code at `place`, otherwise the innermost line."""
        return user_line(self.stack(place))


def check(run: MemoryRun) -> str:
    """Return what is wrong with `run`; "" if it can be replayed."""
    rows = len(run.action)
    for name in ("ident", "size", "stream", "place"):
        if len(getattr(run, name)) != rows:
            return f"{len(getattr(run, name))} entries in {name} for {rows} events"
    for name in ("time", "address", "pool", "used", "allocated", "reserved"):
        if len(getattr(run, name)) not in (0, rows):
            return f"{len(getattr(run, name))} entries in {name} for {rows} events"
    if not run.total_memory:
        return "a device without memory"
    if any(not 0 <= action <= RETIRE for action in run.action):
        return "an unknown action"
    if any(not 0 <= line < len(run.lines) for place in run.places for line in place.lines):
        return "a place whose line does not exist"
    blocks = [block.place for segment in run.start for block in segment.blocks]
    if max((*run.place, *blocks), default=-1) >= len(run.places):
        return "a place that does not exist"
    if any(not 0 <= pool < len(run.pools) for pool in run.pool):
        return "a pool that does not exist"
    return _check_start(run) or _check_lifetimes(run)


def _check_start(run: MemoryRun) -> str:
    """Return what is wrong with the memory that existed when recording began."""
    idents = [block.ident for segment in run.start for block in segment.blocks if block.ident >= 0]
    if len(set(idents)) != len(idents):
        return "an allocation in two places at once"
    end = 0
    for segment in sorted(run.start, key=lambda start: start.address):
        sizes = [block.size for block in segment.blocks]
        if not sizes or min(sizes) <= 0 or sum(sizes) != segment.size:
            return f"a segment of {segment.size} bytes whose size differs from its blocks' total"
        if segment.address < end or not 0 <= segment.pool < len(run.pools):
            return "a segment at an impossible address"
        end = segment.address + segment.size
    return ""


def _check_lifetimes(run: MemoryRun) -> str:
    """Return an allocation that is not made once and then freed at most once."""
    alive = {block.ident for segment in run.start for block in segment.blocks if block.ident >= 0}
    known_idents = set(alive)
    for action, ident, size in zip(run.action, run.ident, run.size, strict=True):
        if action == ALLOC:
            if ident in known_idents or ident < 0 or size <= 0:
                return f"allocation {ident} of {size} bytes"
            known_idents.add(ident)
            alive.add(ident)
        elif action in (FREE, DEFER):
            if ident not in alive:
                return f"{ident} is freed but is not allocated"
            alive.discard(ident)
        elif action == DONE and ident not in known_idents:
            return f"{ident} is finished but was never allocated"
    return ""


class _Document(msgspec.Struct, omit_defaults=True, kw_only=True):
    format: str = ""
    version: int = 0
    runs: tuple[MemoryRun, ...] = ()


def _checked_runs(document: _Document) -> tuple[MemoryRun, ...]:
    if not document.runs:
        raise ValueError("there is no run in it")
    for run in document.runs:
        problem = check(run)
        if problem:
            raise ValueError(problem)
    return document.runs


SAVED: SavedFormat[Sequence[MemoryRun], tuple[MemoryRun, ...]] = SavedFormat(
    "memory run",
    "gapless-memory",
    1,
    _Document,
    pack=lambda runs: {"runs": tuple(runs)},
    unpack=_checked_runs,
)
"""The file format of the runs of one process, one per device."""
encode, decode, save, load = SAVED.encode, SAVED.decode, SAVED.save, SAVED.load

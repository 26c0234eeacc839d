"""`MemoryRun`: the requests of a run to the GPU's memory."""

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
"""Prefix of a request's metadata that names the requesting module."""

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

A `Place` only knows what requests memory: there ``activation`` is any request of a forward pass, ``backward``
any of a backward pass, ``optimizer`` any of an optimizer. An `Owner` also knows its lifetime: an
``activation`` waits for its backward pass, ``kept`` tensors remain from an earlier step's forward pass, a
``temporary`` does not outlive its pass; ``forward`` and ``backward`` are used if the recording ends too early
to tell.
"""


CONTEXT_BYTES = 512 << 20
"""Approximate bytes of a device that CUDA's context and libraries use themselves."""


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where memory is requested: positions in `MemoryRun.lines`, innermost first; the operator; the kind.

    `module` is the ``nn.Module`` that requests it or, of weights, gradients and optimizer state, that owns
    it: its path in the model (``encoder.layer[3].attention``), or the chain of forward calls (``Encoder >
    Layer > Attention``); "" if there is none or it is unknown.
    """

    lines: tuple[int, ...] = ()
    operator: str = ""
    kind: Kind = "unknown"
    module: str = ""


class StartBlock(msgspec.Struct, frozen=True, omit_defaults=True):
    """A block of a segment when recording began. `ident` is -1 if it is free; `size` includes slack."""

    size: int
    ident: int = -1
    requested: int = 0
    place: int = -1
    deferred: bool = False


class StartSegment(msgspec.Struct, frozen=True, omit_defaults=True):
    """A segment that was reserved when recording began, with its blocks in the order of their addresses."""

    address: int
    size: int
    stream: int = 0
    small: bool = False
    expandable: bool = False
    pool: int = 0
    blocks: tuple[StartBlock, ...] = ()


class Holder(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A name of the program that keeps memory of step after step, and the lines that add to its object.

    - `name`: as the program writes it (``self.bank``); `kind`: its class (``list``).
    - `lines`: those that add to it, the likeliest first; empty if unknown.
    - `bytes`: kept of `steps` steps when examined, `in_graphs` of them only through autograd graphs;
      `attached`: its tensors have graphs.
    - `entries`: their number then, of `each` bytes; `most`: the largest possible number (-1: no known limit).
    - `every`: the interval in steps at which it grows.
    - `alike`: the number of further names that grow likewise, for which this one stands.
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
        """Bytes that it adds until it is full; -1 if nothing bounds it."""
        return max(self.most - self.entries, 0) * self.each if self.most >= 0 else -1


class Checkpoint(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What ``torch.load`` put on the GPU that is neither a weight nor optimizer state of the training.

    `line` loads it. `name` is the variable that keeps it during the steps ("": none does, or not examined),
    `entries` its parts with their bytes, the largest first; `idents` are the allocations.
    """

    line: SourceLine | None = None
    name: str = ""
    entries: tuple[tuple[str, int], ...] = ()
    idents: tuple[int, ...] = ()


class UnusedGraph(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Forward passes with an autograd graph that no backward pass uses.

    `line` calls the model, in training mode or not; `idents` are their allocations.
    """

    line: SourceLine
    training: bool = False
    idents: tuple[int, ...] = ()


class Recorded(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What the recorded run itself did with the device, to compare a replay with.

    - `mallocs`, `frees`, `maps`, `unmaps`: calls to the driver; `retries` (-1: unknown) and `ooms`: their
      counts.
    - `peak_reserved`, `final_reserved`: bytes.
    - `segments`: sizes and addresses from the driver, in order; `spaces`: stream, pool (1: small) and first
      address of expandable segments.
    - `floor`, `ceiling`: bounds of the device's memory: `floor` bytes were reserved at once, `ceiling` were
      refused (-1: none were); `told`: the driver said what was left.
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
    """All requests of a run to one device's caching allocator, in columns with one row for each event.

    - `action`: one of the constants above.
    - `ident`: the number of an allocation; -1 if there is none.
    - `size`: the requested bytes.
    - `place`, `pool`: positions in `places` and `pools` (0: the default pool).
    - `time`: nanoseconds since the first; `time`, `address` and `pool` are empty if unknown or all zero.
    - `used`: for each allocation the row after which nothing uses it (-1: nothing ever did); empty if
      unknown.
    - `batches`: rows of tensors from the host with their shapes, if known.
    - `start`: what was reserved when recording began.
    - `settings`: of the recorded run; `total_memory`: of the device; `limit`: what this process could get
      (-1: unknown).
    - `classes`: classes of modules by path without numbers (``layers[*]``), if known.
    - `holders`: names that keep memory of step after step, if searched; `unused_graphs`: allocations of
      forward passes without a backward pass; `checkpoints`: loaded ones still on the GPU during steps.
    - `began`: time of the first row on the recording's own clock (nanoseconds, -1: unknown); `refusals`: the
      requests that failed.

    A profile does not show the memory's layout when it began. It has the bytes after each row instead
    (`allocated`, `reserved`), and `calls`.
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


class _SavedRuns(msgspec.Struct, omit_defaults=True, kw_only=True):
    format: str = ""
    version: int = 0
    runs: tuple[MemoryRun, ...] = ()


def _checked_runs(document: _SavedRuns) -> tuple[MemoryRun, ...]:
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
    _SavedRuns,
    pack=lambda runs: {"runs": tuple(runs)},
    unpack=_checked_runs,
)
"""The file format of the runs of one process, one per device."""
encode, decode, save, load = SAVED.encode, SAVED.decode, SAVED.save, SAVED.load

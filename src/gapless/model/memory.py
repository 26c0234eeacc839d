"""`MemoryRun`: what a run asked of the GPU's memory; `MemoryReport`: what replaying it says."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

import msgspec

from gapless.errors import UnreadableInput
from gapless.model._disk import read_whole, write_whole
from gapless.model.finding import Finding
from gapless.model.memory_answer import Answer, OtherDevice, OutOfMemory, Refusal
from gapless.model.memory_calls import CallTimes as CallTimes
from gapless.model.memory_calls import DriverCalls as DriverCalls
from gapless.model.source import SourceLine, Stack, user_line
from gapless.model.track import Track

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
"""How metadata of a request begins that names the module which makes it."""

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
    "unknown",
]
"""What a tensor is to the training.

A `Place` knows what asks for memory: there ``activation`` is whatever a forward pass asks for, ``backward``
whatever a backward pass does, ``optimizer`` whatever an optimizer does. What became of it tells the rest, in
an `Owner`: an ``activation`` waits for its backward pass, what is ``kept`` is held over from an earlier
step's forward pass, a ``temporary`` does not outlive the pass that made it; ``forward`` and ``backward``
stand where the recording ends too early to tell.
"""


CONTEXT = 512 << 20
"""Bytes that CUDA's context and libraries keep of a device for themselves, about."""


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
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.action)

    def stack(self, place: int) -> Stack:
        """The calls that lead to `places[place]`, innermost first; empty where they are unknown."""
        if not 0 <= place < len(self.places):
            return ()
        return tuple(self.lines[line] for line in self.places[place].lines)

    def line(self, place: int) -> SourceLine | None:
        """The innermost line of the user's own code there, or the innermost of all."""
        return user_line(self.stack(place))


class Shortage(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The request that could not be met, and what there was when it was made; bytes.

    `event` is the row of the run. `largest` is the largest free block that the request could have used (of
    its pool and stream), `cached` all free memory that is reserved, `unreserved` what the device had left.
    """

    event: int
    size: int
    line: SourceLine | None = None
    allocated: int = 0
    reserved: int = 0
    cached: int = 0
    largest: int = 0
    unreserved: int = -1


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What one replay did: bytes, calls and their price in nanoseconds.

    `allocated` counts blocks with their rounding, as ``torch.cuda.memory_allocated`` does. `retries` are
    failed requests after which all cached memory was given back. `shortage` is where the run ended for lack
    of memory, None where it came to its end; `done` is the share of its events that it came through. Requests
    that failed in the recorded run as well, and did not end it, are `failures`, `failure` the last of them.
    """

    peak_allocated: int = 0
    peak_reserved: int = 0
    final_allocated: int = 0
    final_reserved: int = 0
    mallocs: int = 0
    frees: int = 0
    maps: int = 0
    unmaps: int = 0
    retries: int = 0
    collections: int = 0
    price: int = 0
    shortage: Shortage | None = None
    done: float = 1.0
    failures: int = 0
    failure: Shortage | None = None

    @property
    def calls(self) -> int:
        """All calls to the driver."""
        return self.mallocs + self.frees + self.maps + self.unmaps


class Owner(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Who holds memory at a moment, with `bytes` in `tensors`.

    `module` stands for all modules that differ in their numbers only (``layers[*].mlp``), of which there are
    `modules`. `operator` is the one that asked for most of it ("" where unknown), of `operators`. `before`
    says that it was asked for before recording began, by nobody knows whom; `threaded` that it comes from a
    thread without Python, where others have lines.
    """

    line: SourceLine | None = None
    operator: str = ""
    kind: Kind = "unknown"
    before: bool = False
    bytes: int = 0
    tensors: int = 0
    module: str = ""
    modules: int = 0
    operators: int = 0
    threaded: bool = False


class ModuleShare(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What one part of the model holds at a moment: weights, gradients, activations and all.

    `module` is as in an `Owner`, cut at the first number: ``transformer.h[*]``.
    """

    module: str
    modules: int = 0
    bytes: int = 0
    tensors: int = 0


class Kept(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Memory that a step leaves behind because a name still holds it until the next step assigns it anew.

    In each of `steps` steps `bytes` in `tensors` from `line` outlived the step. `name` is the variable, where
    the source tells it. Without them the most that is ever asked for at once would be `after` bytes, not
    `before`.
    """

    line: SourceLine | None = None
    operator: str = ""
    name: str = ""
    bytes: int = 0
    tensors: int = 0
    steps: int = 0
    before: int = 0
    after: int = 0
    sure: bool = False

    @property
    def saves(self) -> int:
        """Bytes less at the peak."""
        return self.before - self.after


class Moment(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The memory at one event: bytes asked for by line and by kind, the most first; and what lies idle.

    `line` and `operator` are those of the event itself, where they are known.
    `free` is the reserved memory that nobody uses, `free_blocks` in how many pieces, `largest` the largest,
    `small` and `large` in which pool it is. `slack` is what rounding takes, within `allocated`. `modules` are
    the parts of the model, where they are known.
    """

    event: int = 0
    line: SourceLine | None = None
    operator: str = ""
    time: int = -1
    step: int = -1
    allocated: int = 0
    reserved: int = 0
    slack: int = 0
    free: int = 0
    free_blocks: int = 0
    largest: int = 0
    small: int = 0
    large: int = 0
    owners: tuple[Owner, ...] = ()
    kinds: dict[str, int] = {}
    modules: tuple[ModuleShare, ...] = ()


class StepEnd(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where a step ends: the event, bytes then, and calls to the driver since the run began.

    `taken` are calls that take memory from the driver (``cudaMalloc``, mappings), `given` those that give it
    back, `retries` requests that found the device full.
    """

    event: int
    allocated: int = 0
    reserved: int = 0
    taken: int = 0
    given: int = 0
    retries: int = 0


class Growth(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Memory that is asked for in step after step and never given back: `bytes` in `tensors` a step, over
    the last `steps` steps."""

    line: SourceLine | None = None
    operator: str = ""
    kind: Kind = "unknown"
    bytes: int = 0
    tensors: float = 0.0
    steps: int = 0


class Curve(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Memory over the events, thinned to the highest of each stretch: positions and bytes."""

    event: tuple[int, ...] = ()
    allocated: tuple[int, ...] = ()
    reserved: tuple[int, ...] = ()


class Fidelity(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How well replaying the run under its own settings meets what was recorded.

    `exact` says that counts of calls, peak and final reserved memory are all the same; `misses` names those
    that are not. `addresses` of `allocations` were placed where the recorded run had them.
    """

    exact: bool = False
    misses: tuple[str, ...] = ()
    addresses: int = 0
    allocations: int = 0


class Trial(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The run under other settings. `note` says what of them has no effect, or why it cannot be told."""

    settings: str
    outcome: Outcome | None = None
    note: str = ""


class Remedy(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The run with other lengths of its batches, or with them in another order.

    `tokens` is how many more elements than recorded its batches have, as a share of those.
    """

    name: str
    settings: str = ""
    tokens: float = 0.0
    outcome: Outcome | None = None

    @property
    def title(self) -> str:
        """The remedy with its settings."""
        return f"{self.name}, with {self.settings}" if self.settings else self.name


class LargestBatch(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The largest batch that fits, and the largest that fits without a retry, which `outcome` is of.

    Each allocation's size is taken to be a straight line of the batch's, through the `recorded` ones.
    """

    batch: int = 0
    without_retries: int = 0
    outcome: Outcome = Outcome()
    recorded: tuple[int, ...] = ()


class MemoryReport(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a run did with the GPU's memory, and what other settings would do.

    `baseline` is the run under its own settings; `limit` the bytes it may reserve (-1: no limit), `gpu` the
    device that the limit is taken from. `peak` is the moment when most is allocated, `height` when most is
    reserved. `trials` are the other settings, the best first where they were `searched`; `best` is the
    position of the one to take, -1 where none is better. `ends` are the steps' ends, `growth` what grows from
    step to step, `kept` what nothing but a name holds at the peak. `expandable` is the run with expandable
    segments, where that was worth a look. `remedies`
    are other lengths of its batches, the best first, `remedy` the one to take; `findings` is what
    the rules find. `replayed` is False where the numbers are those of a profile, which does not tell enough
    for a replay; `calls` are those it recorded. `track` is there only where a page draws it.

    `needs` is with how many bytes it was seen to come through, where a limit is asked about or met (-1: was
    not looked for); `at_least` that only a part of the run was recorded, `ended` that this part ends with a
    failure. Where a request fails, `lack` says what is missing, `failing` is the memory at that moment, and
    all settings are tried unasked. `advised` is the one setting that the report advises ("": none); every
    rule that advises one names this. `answer` has the first lines, `others` are the other devices of the
    file.
    """

    sentence: str
    path: str = ""
    origin: str = ""
    device: int = 0
    gpu: str = ""
    limit: int = -1
    total_memory: int = -1
    settings: str = ""
    events: int = 0
    allocations: int = 0
    steps: int = 0
    span: int = -1
    baseline: Outcome = Outcome()
    fidelity: Fidelity | None = None
    curve: Curve = Curve()
    peak: Moment = Moment()
    height: Moment = Moment()
    times: CallTimes = CallTimes()
    ends: tuple[StepEnd, ...] = ()
    growth: tuple[Growth, ...] = ()
    kept: tuple[Kept, ...] = ()
    trials: tuple[Trial, ...] = ()
    searched: bool = False
    best: int = -1
    expandable: Outcome | None = None
    remedies: tuple[Remedy, ...] = ()
    remedy: int = -1
    largest: LargestBatch | None = None
    advice: str = ""
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    replayed: bool = True
    calls: tuple[DriverCalls, ...] = ()
    track: Track | None = None
    answer: Answer = Answer()
    needs: int = -1
    at_least: bool = False
    ended: bool = False
    lack: OutOfMemory | None = None
    failing: Moment | None = None
    advised: str = ""
    others: tuple[OtherDevice, ...] = ()


FORMAT = "gapless-memory"
VERSION = 1


class _Document(msgspec.Struct, omit_defaults=True, kw_only=True):
    format: str = ""
    version: int = 0
    runs: tuple[MemoryRun, ...] = ()


def encode(runs: Sequence[MemoryRun]) -> bytes:
    """`runs` as JSON bytes; :func:`decode` gives equal ones back."""
    return msgspec.json.encode(_Document(format=FORMAT, version=VERSION, runs=tuple(runs)))


def decode(data: bytes, name: str = "memory run") -> tuple[MemoryRun, ...]:
    """The runs in `data`; `name` stands for it in messages.

    Raises:
        UnreadableInput: `data` holds no saved memory run, or one of a version this Gapless does not know.
    """
    try:
        document = msgspec.json.decode(data, type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableInput(f"{name} is not a saved memory run: {error}") from None
    if document.format != FORMAT:
        raise UnreadableInput(f'{name} is JSON but not a saved memory run (no "format": "{FORMAT}")')
    if not 1 <= document.version <= VERSION:
        raise UnreadableInput(
            f"{name} is a memory run of version {document.version}; "
            f"this Gapless reads up to {VERSION}: upgrade it"
        )
    for run in document.runs:
        problem = check(run)
        if problem:
            raise UnreadableInput(f"{name} is a damaged memory run: {problem}")
    return document.runs


def save(runs: Sequence[MemoryRun], path: str | os.PathLike[str]) -> None:
    """Write `runs` to `path`, whole or not at all."""
    write_whole(encode(runs), path)


def load(path: str | os.PathLike[str]) -> tuple[MemoryRun, ...]:
    """Read what :func:`save` wrote."""
    return decode(read_whole(path), str(path))


def check(run: MemoryRun) -> str:
    """What is wrong with `run`; "" where it can be replayed."""
    rows = len(run.action)
    for name in ("ident", "size", "stream", "place"):
        if len(getattr(run, name)) != rows:
            return f"{len(getattr(run, name))} entries in {name} for {rows} events"
    for name in ("time", "address", "pool", "used", "allocated", "reserved"):
        if len(getattr(run, name)) not in (0, rows):
            return f"{len(getattr(run, name))} entries in {name} for {rows} events"
    if any(not 0 <= action <= RETIRE for action in run.action):
        return "an action that is none"
    if any(not 0 <= line < len(run.lines) for place in run.places for line in place.lines):
        return "a place with a line that is not there"
    if any(not 0 <= pool < len(run.pools) for pool in run.pool):
        return "a pool that is not there"
    return _start(run) or _lives(run)


def _start(run: MemoryRun) -> str:
    """Whether what was there when recording began can lie so."""
    idents = [block.ident for segment in run.start for block in segment.blocks if block.ident >= 0]
    if len(set(idents)) != len(idents):
        return "an allocation that lies in two places"
    end = 0
    for segment in sorted(run.start, key=lambda one: one.address):
        sizes = [block.size for block in segment.blocks]
        if not sizes or min(sizes) <= 0 or sum(sizes) != segment.size:
            return f"a segment of {segment.size} bytes that is not as large as its blocks"
        if segment.address < end or not 0 <= segment.pool < len(run.pools):
            return "a segment that lies where it cannot"
        end = segment.address + segment.size
    return ""


def _lives(run: MemoryRun) -> str:
    """Whether each allocation is made once, and given back once after that."""
    alive = {block.ident for segment in run.start for block in segment.blocks if block.ident >= 0}
    seen = set(alive)
    for action, ident, size in zip(run.action, run.ident, run.size, strict=True):
        if action == ALLOC:
            if ident in seen or ident < 0 or size <= 0:
                return f"allocation {ident} of {size} bytes"
            seen.add(ident)
            alive.add(ident)
        elif action in (FREE, DEFER):
            if ident not in alive:
                return f"{ident} is freed and is not allocated"
            alive.discard(ident)
        elif action == DONE and ident not in seen:
            return f"{ident} is done and was never allocated"
    return ""

"""`MemoryReport`: the results of replaying a run's memory requests."""

from __future__ import annotations

import msgspec

from gapless.model.finding import Finding
from gapless.model.memory import Holder, Kind
from gapless.model.memory_answer import OtherDevice, OutOfMemory
from gapless.model.memory_calls import CallTimes, DriverCalls
from gapless.model.source import SourceLine
from gapless.model.track import Track
from gapless.model.verdict import Verdict


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
    `before`; a replay without them needs `needs` bytes of the device (-1: not replayed).
    """

    line: SourceLine | None = None
    operator: str = ""
    name: str = ""
    bytes: int = 0
    tensors: int = 0
    steps: int = 0
    before: int = 0
    after: int = 0
    needs: int = -1
    sure: bool = False

    @property
    def saves(self) -> int:
        """Bytes less at the peak."""
        return self.before - self.after


class GraphCost(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What autograd graphs cost that no backward pass goes through.

    `line` calls the model (in training or not). What that asks for takes `bytes` at once at most, and would
    take `without` if each tensor ended after its last use, as under ``torch.no_grad()``. A replay like that
    needs `needs` bytes of the device (-1: not replayed, or the same).
    """

    line: SourceLine
    training: bool = False
    bytes: int = 0
    without: int = 0
    needs: int = -1


class LoadedCopy(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A checkpoint that ``torch.load`` put on the GPU and that is no weight and no state of the training.

    `name` keeps `bytes` of it while the steps run, `entries` are its parts with theirs. A replay without it
    needs `needs` bytes of the device (-1: not replayed).
    """

    line: SourceLine | None = None
    name: str = ""
    bytes: int = 0
    entries: tuple[tuple[str, int], ...] = ()
    needs: int = -1


class Part(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What tensors of one kind hold at a moment.

    `module` is the innermost module that holds half of it or more (``layers[*].mlp``; "": none does), with
    `module_bytes` in `modules` of that name.
    """

    kind: Kind
    bytes: int = 0
    tensors: int = 0
    module: str = ""
    modules: int = 0
    module_bytes: int = 0


class Moment(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The memory at one event: bytes asked for by line and by kind, the most first; and what lies idle.

    `line` and `operator` are those of the event itself, where they are known.
    `free` is the reserved memory that nobody uses, `free_blocks` in how many pieces, `largest` the largest,
    `small` and `large` in which pool it is. `slack` is what rounding takes, within `allocated`. `modules` are
    the parts of the model, where they are known, `parts` the same bytes by kind: weights, gradients,
    optimizer and activations first.
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
    parts: tuple[Part, ...] = ()


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
    """Memory that is asked for in step after step and never given back: `bytes` in `tensors` every `every`
    steps, `steps` times."""

    line: SourceLine | None = None
    operator: str = ""
    kind: Kind = "unknown"
    bytes: int = 0
    tensors: float = 0.0
    steps: int = 0
    every: int = 1


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
    """The run under other settings. `note` says what of them has no effect, or why it cannot be told, `asked`
    that the user named them."""

    settings: str
    outcome: Outcome | None = None
    note: str = ""
    asked: bool = False


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


class LongestBatch(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a run needs if one of its batches is as long as the longest item that its loader is known to have.

    The recorded `batches` were at most `seen` long, that item is `length`. The run then needs `needs` of the
    `has` bytes that the process may have; `most` is about the longest batch with which it `fits`, and then
    takes `cut` bytes. Where that cannot be calculated, `why_not` says why.
    """

    length: int
    seen: int = 0
    batches: int = 0
    needs: int = 0
    has: int = -1
    fits: bool = True
    most: int = 0
    cut: int = 0
    why_not: str = ""


class Buffers(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What NCCL takes of a GPU beside torch's allocator, for the communicators of so many process `groups`.

    Nobody but NCCL knows: between `least` and `most` bytes lie public measurements of as many.
    """

    groups: int
    least: int
    most: int


class MemoryReport(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a run did with the GPU's memory, and what other settings would do.

    `baseline` is the run under its own settings; `limit` the bytes it may reserve (-1: no limit), `gpu` the
    device that the limit is taken from. `peak` is the moment when most is allocated, `height` when most is
    reserved. `trials` are the other settings, the best first where they were `searched`; `best` is the
    position of the one to take, -1 where none is better. `ends` are the steps' ends, `growth` what grows from
    step to step, `holders` the names that keep it, `kept` what nothing but a name holds at the peak.
    `unused_graphs` are graphs that no backward pass goes through, `checkpoints` loaded ones on the GPU.
    `expandable` is the run with expandable segments, where that was worth a look. `remedies`
    are other lengths of its batches the best first, `remedy` the one to take, `longest` is for
    the longest item that its loader is known to have; `findings` is what
    the rules find. `replayed` is False where the numbers are those of a profile, which does not tell enough
    for a replay; `calls` are those it recorded. `track` is there only where a page draws it.

    `finished` says that the program came to its own end: no step follows. `handled` is how many out-of-memory
    errors the recorded run met and went on after, `handler` the program's own line that catches the one which
    `lack` is about.

    `needs` is with how many bytes it was seen to come through, where a limit is asked about or met (-1: was
    not looked for); `at_least` that only a part of the run was recorded, `ended` that this part ends with a
    failure. Where a request fails, `lack` says what is missing, `failing` is the memory at that moment, and
    all settings are tried unasked. `advised` is the one setting that the report advises ("": none); every
    rule that advises one names this. `answer` has the first lines, `others` are the other devices of the
    file. `nccl` is what the collectives of its steps take besides (None: there are none, or it is unknown);
    it is in no other figure.
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
    holders: tuple[Holder, ...] = ()
    kept: tuple[Kept, ...] = ()
    unused_graphs: tuple[GraphCost, ...] = ()
    checkpoints: tuple[LoadedCopy, ...] = ()
    trials: tuple[Trial, ...] = ()
    searched: bool = False
    best: int = -1
    expandable: Outcome | None = None
    remedies: tuple[Remedy, ...] = ()
    remedy: int = -1
    largest: LargestBatch | None = None
    longest: LongestBatch | None = None
    advice: str = ""
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    replayed: bool = True
    calls: tuple[DriverCalls, ...] = ()
    track: Track | None = None
    answer: Verdict = Verdict(sentence="")
    needs: int = -1
    at_least: bool = False
    ended: bool = False
    finished: bool = False
    lack: OutOfMemory | None = None
    handled: int = 0
    handler: SourceLine | None = None
    failing: Moment | None = None
    advised: str = ""
    others: tuple[OtherDevice, ...] = ()
    nccl: Buffers | None = None

    @property
    def ends_it(self) -> bool:
        """Whether the program ends for lack of memory, not handling the error."""
        return self.lack is not None and not self.handled and self.handler is None

    @property
    def room(self) -> int:
        """Bytes that the process can have; -1 if unknown."""
        return self.limit if self.limit >= 0 else self.total_memory

    def time_of(self, outcome: Outcome) -> int:
        """Return the nanoseconds that driver calls take in `outcome`, with the waits of retries if known."""
        return outcome.price + outcome.retries * max(self.times.drain, 0)

    @property
    def grows_every(self) -> int:
        """The interval in steps at which memory grows: 1 if something stays of every step."""
        every = [growth.every for growth in self.growth]
        return 1 if 1 in every else every[0] if every else 0

    @property
    def grows_by(self) -> int:
        """Bytes that each such step leaves behind, including its share of rarer growth."""
        return sum(growth.bytes * self.grows_every // growth.every for growth in self.growth)

    @property
    def lasts(self) -> int:
        """Steps until growing memory fills the GPU; -1 if unknown, or if it is full already."""
        if self.room < 0 or self.lack is not None or not self.grows_by:
            return -1
        return max((self.room - self.baseline.peak_allocated) * self.grows_every // self.grows_by, 0)

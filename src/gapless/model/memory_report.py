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
    """A request that could not be met, and the memory at that moment; bytes.

    `event` is the row of the run. `largest` is the largest free block that the request could have used (of
    its pool and stream), `cached` all reserved but free memory, `unreserved` what the device had left.
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
    """The result of one replay: bytes, calls to the driver and their `price` in nanoseconds.

    - `peak_allocated`, `final_allocated`: with rounding, as in ``torch.cuda.memory_allocated``.
    - `retries`: failed requests after which all cached memory was returned to the driver.
    - `shortage`: the request with which the run ended; None if it succeeded. `done`: the share of events
      replayed.
    - `failures`: requests that failed in the recorded run, too, without ending it; `failure`: the last of
      them.
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
    """Who holds memory at a moment: `bytes` in `tensors`.

    `module` stands for all `modules` whose paths differ only in numbers (``layers[*].mlp``). `operator` is
    the one of `operators` that requested most of it ("": unknown). `before`: requested before recording
    began, by unknown code. `threaded`: requested by a thread without Python frames.
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
    """What one part of the model holds at a moment, in tensors of all kinds.

    `module` is as in an `Owner`, cut at the first number: ``transformer.h[*]``.
    """

    module: str
    modules: int = 0
    bytes: int = 0
    tensors: int = 0


class Kept(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Memory that outlives a step because a name refers to it until the next step rebinds it.

    In each of `steps` steps, `bytes` in `tensors` from `line` outlived the step. `name` is the variable, if
    the source shows it. Without them the peak of requested memory would be `after` bytes, not `before`; a
    replay without them needs `needs` bytes of the device (-1: not replayed).
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
        """Bytes that the peak falls by without it."""
        return self.before - self.after


class GraphCost(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The memory of autograd graphs that no backward pass uses.

    `line` calls the model (in training or not). Its requests peak at `bytes`, and would at `without` if each
    tensor were freed after its last use, as under ``torch.no_grad()``. A replay of that needs `needs` bytes
    of the device (-1: not replayed, or the same).
    """

    line: SourceLine
    training: bool = False
    bytes: int = 0
    without: int = 0
    needs: int = -1


class LoadedCopy(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A checkpoint loaded to the GPU by ``torch.load`` that is neither a weight nor optimizer state.

    `name` refers to `bytes` of it during the steps; `entries` are its parts with their bytes. A replay
    without it needs `needs` bytes of the device (-1: not replayed).
    """

    line: SourceLine | None = None
    name: str = ""
    bytes: int = 0
    entries: tuple[tuple[str, int], ...] = ()
    needs: int = -1


class Part(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What tensors of one kind hold at a moment.

    `module` is the innermost module that holds at least half of it (``layers[*].mlp``; "": none does), with
    `module_bytes` in `modules` of that name.
    """

    kind: Kind
    bytes: int = 0
    tensors: int = 0
    module: str = ""
    modules: int = 0
    module_bytes: int = 0


class Moment(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The memory at one event: requested bytes by line and by kind, largest first, and free memory.

    `line` and `operator` are those of the event, if known. `free` is reserved but unused memory in
    `free_blocks` pieces, the largest `largest`, in the pools for `small` and `large` requests. `slack` is
    lost to rounding, within `allocated`. `modules` are the parts of the model, if known; `parts` the same
    bytes by kind: weights, gradients, optimizer and activations first.
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
    """The end of a step: its event, the bytes then, and the driver calls since the run began.

    `taken` are calls that obtain memory from the driver (``cudaMalloc``, mappings), `given` those that return
    it, `retries` requests that found the device full.
    """

    event: int
    allocated: int = 0
    reserved: int = 0
    taken: int = 0
    given: int = 0
    retries: int = 0


class Growth(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Memory requested in step after step and never freed: `bytes` in `tensors` every `every` steps,
    `steps` times."""

    line: SourceLine | None = None
    operator: str = ""
    kind: Kind = "unknown"
    bytes: int = 0
    tensors: float = 0.0
    steps: int = 0
    every: int = 1


class Curve(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Memory over the events, thinned: each point is the maximum of a group of neighbouring events."""

    event: tuple[int, ...] = ()
    allocated: tuple[int, ...] = ()
    reserved: tuple[int, ...] = ()


class Fidelity(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How closely a replay under the run's own settings matches the recording.

    `exact`: the counts of calls, peak and final reserved memory are all equal; `misses` names those that are
    not. `addresses` of `allocations` were placed as in the recorded run.
    """

    exact: bool = False
    misses: tuple[str, ...] = ()
    addresses: int = 0
    allocations: int = 0


class Trial(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The run under other settings. `note` says which of them have no effect, or why the outcome is
    unknown; `asked` that the user named them."""

    settings: str
    outcome: Outcome | None = None
    note: str = ""
    asked: bool = False


class Remedy(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The run with batches of other lengths, or in another order.

    `tokens` is how many more elements its batches have than the recorded ones, as a share.
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
    """The largest batch that fits, and the largest that fits without a retry, with its `outcome`.

    Each allocation's size is taken to be linear in the batch size, through the `recorded` ones.
    """

    batch: int = 0
    without_retries: int = 0
    outcome: Outcome = Outcome()
    recorded: tuple[int, ...] = ()


class LongestBatch(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a run needs if one of its batches is as long as its loader's longest known item.

    The recorded `batches` were at most `seen` long, that item is `length`. The run then needs `needs` of the
    `has` bytes that the process may have. `most` is about the longest batch with which it fits; cut to it,
    the run needs `cut` bytes. `why_not` says why this cannot be calculated.
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
    """Memory that NCCL takes from the GPU outside of torch's allocator, for the communicators of `groups`
    process groups.

    It is not documented: public measurements of as many groups lie between `least` and `most` bytes.
    """

    groups: int
    least: int
    most: int


class MemoryReport(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a run did with the GPU's memory, and what other settings would do.

    - `baseline`: the outcome under the run's own `settings`; `fidelity`: how well it matches the recording.
    - `limit`: the bytes that the run may reserve (-1: no limit); `gpu`: the device whose limit that is.
    - `peak`, `height`: the moments when most is allocated, and most is reserved.
    - `trials`: other settings, best first if they were `searched`; `best`: the position of the recommended
      one, -1 if none is better. `expandable`: the outcome with expandable segments, if tried.
    - `ends`: the ends of steps; `growth`: what grows from step to step; `holders`: the names that keep it.
    - `kept`: what only a name holds at the peak; `unused_graphs`: graphs without a backward pass;
      `checkpoints`: loaded checkpoints on the GPU.
    - `remedies`: batches of other lengths, best first; `remedy`: the recommended one; `longest`: the run with
      the longest item of its loader.
    - `findings`: what the rules report.
    - `replayed`: False for the numbers of a profile, which records too little for a replay; `calls`: the
      driver calls that it recorded.
    - `track`: the chart of a page; None for other formats.
    - `finished`: the program ended by itself, so that no step follows.
    - `handled`: out-of-memory errors that the recorded run caught; `handler`: the program's line that catches
      the one described in `lack`.
    - `needs`: bytes with which the replay succeeds (-1: not determined); `at_least`: only a part of the run
      was recorded; `ended`: that part ends with a failure.
    - `lack`: what a failed request is missing; `failing`: the memory at that moment. All settings are tried
      then.
    - `advised`: the one setting that the report and its rules recommend ("": none).
    - `answer`: the report's first lines; `others`: the other devices of the file.
    - `nccl`: memory of the collectives, in no other figure (None: there are none, or it is unknown).
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
        """Whether lack of memory ends the program, which does not catch the error."""
        return self.lack is not None and not self.handled and self.handler is None

    @property
    def room(self) -> int:
        """Bytes available to the process; -1 if unknown."""
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

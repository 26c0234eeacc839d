"""`Diagnosis`: what an input pipeline costs, what other settings would give, and which to take."""

from __future__ import annotations

import msgspec

from gapless.model._disk import SavedFormat
from gapless.model.loading_feed import Around, Begin, Column, Padding
from gapless.model.loading_mistakes import Verification
from gapless.model.source import SourceLine

_CLEARLY, _LOOKS = 0.8, 5
_COMPUTES = 0.1
"""Share of the looks that must agree on what is waited for, and their minimum number; and the share of an
item's time below which computing says nothing about delays.
"""
_WAITING = {
    "io": "waiting for I/O",
    "sleep": "sleeping",
    "lock": "waiting for a lock",
    "process": "waiting for another process",
    "": "waiting",
}


class Machine(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What the machine has for this process.

    `allowed` cores by affinity, `quota` cores by the control group (-1: no limit). On the allowed cores
    `others` processes compute all the time, in the mean. `together` is what a core does when all of them
    compute, as a part of what it does alone: 1, or less where two are halves of one core (hyper-threads).
    `memory` and `shared` are free bytes, of all and of the file system for shared memory (-1: unknown).
    `start` is how workers are started: ``fork``, ``spawn`` or ``forkserver``.
    """

    allowed: int = 1
    quota: float = -1.0
    others: float = 0.0
    together: float = 1.0
    memory: int = -1
    shared: int = -1
    start: str = ""

    def __post_init__(self) -> None:
        if self.allowed < 1 or self.others < 0 or not 0 < self.together <= 1 or self.quota == 0:
            raise ValueError("a machine has a core, and all of its numbers make sense")

    @property
    def cores(self) -> float:
        """Cores' worth of work that as many processes as cores get done."""
        return self.share(self.allowed)

    def share(self, processes: int) -> float:
        """Return the cores' worth of work that `processes` get done together in the long run.

        One core's worth is what a single process gets done beside the others.
        """
        if not processes:
            return 0.0
        got = self.allowed * processes / max(processes + self.others, self.allowed)
        speed = self.speed(processes) / self.speed(1)
        return min(got * speed, self.quota if self.quota >= 0 else got)

    def speed(self, processes: int) -> float:
        """Return the speed of each core with `processes` busy ones, relative to a single one."""
        half = self.allowed / 2
        busy = min(processes + self.others, self.allowed)
        return 1.0 if busy <= half else 1.0 - (1.0 - self.together) * (busy - half) / half


class Fetch(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What making batches costs where nothing else has to be done; nanoseconds and bytes.

    `item` is the wall time of one item, of which `item_cpu` is computing and `item_wait` waiting for a disk,
    a network or a sleep; the rest is waiting for a core. `collate` and `collate_cpu` are per batch. `index`
    is what the sampler takes per batch. `batches` are the processor time and the waiting of each batch made,
    collating included. `at_once` says that the items were fetched together (``__getitems__``), and `inside`
    how many items one has that the dataset makes as a batch (0: it does not, or its shapes do not tell).
    `padding` is how much of the batches is none of the items' values (None: it cannot be told), and `columns`
    are the tensors of a batch. `read` are
    the bytes that the storage delivered for a batch, `faults` the pages that were touched for the first time.
    `waits` counts the looks at which it waited, by what for (``io``, ``sleep``, ``lock``, ``process``, or "":
    not told). `others` are the cores that other programs used meanwhile (-1: not told).
    """

    items: int = 0
    item: float = 0.0
    item_cpu: float = 0.0
    item_wait: float = 0.0
    item_bytes: int = 0
    collate: float = 0.0
    collate_cpu: float = 0.0
    index: float = 0.0
    batch_size: float = 0.0
    batch_bytes: int = 0
    tensors: int = 0
    at_once: bool = False
    inside: int = 0
    padding: Padding | None = None
    columns: tuple[Column, ...] = ()
    batches: tuple[tuple[int, int], ...] = ()
    read: float = 0.0
    faults: float = 0.0
    waits: dict[str, int] = {}
    others: float = -1.0

    @property
    def wall(self) -> float:
        """Wall time per batch, including waiting for a core."""
        return self.item * self.batch_size + self.collate

    @property
    def had(self) -> float:
        """The share of the time in which items could be made that they had a core.

        1 if they compute for less than a tenth of their time, where late wake-ups say nothing.
        """
        if self.item_cpu < _COMPUTES * self.item:
            return 1.0
        delayed = max(self.item - self.item_cpu - self.item_wait, 0.0)
        return self.item_cpu / (self.item_cpu + delayed) if self.item_cpu > 0 else 1.0

    @property
    def waiting(self) -> str:
        """What the items wait for, such as ``waiting for I/O``; just ``waiting`` if unclear."""
        looks = sum(self.waits.values())
        named = [kind for kind, number in self.waits.items() if number >= _CLEARLY * looks]
        return _WAITING[named[0]] if named and looks >= _LOOKS else _WAITING[""]

    @property
    def cpu(self) -> float:
        """Processor time per batch."""
        return sum(cpu for cpu, _ in self.batches) / len(self.batches) if self.batches else 0.0

    @property
    def wait(self) -> float:
        """Waiting time per batch."""
        return sum(wait for _, wait in self.batches) / len(self.batches) if self.batches else 0.0


class Transfer(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a worker process adds; nanoseconds per batch, bytes.

    `send` is the worker's processor time besides making the batch; `receive` what receiving takes from a
    worker that answers at once: the training process and the worker compute in turn.
    `latency` is how long the training process waits, once a batch is there, for a worker that is busy with
    the next one. `start` is what starting one worker takes of the training process, `boot` what the worker
    takes until its first batch is begun. `private` is the memory of a worker that it shares with nobody
    after its first batch, `growth` by how much it grows with every batch: `copied` of that are pages of the
    training process that the worker had to copy, of `shared` bytes that it could have to (-1: not told); the
    rest is what it keeps. `pin` and `copy` are copying a batch to pinned memory and from there to the GPU
    (-1: no GPU). `assumed` says that no worker was tried, for want of time, and sending and receiving are
    reckoned by the size of a batch.
    """

    batches: int = 0
    send: float = 0.0
    receive: float = 0.0
    latency: float = 0.0
    start: float = 0.0
    boot: float = 0.0
    first: float = 0.0
    private: int = -1
    growth: float = 0.0
    copied: float = 0.0
    shared: int = -1
    pin: float = -1.0
    copy: float = -1.0
    assumed: bool = False

    def growth_after(self, batches: int) -> int:
        """Return the bytes by which a worker grows over `batches`; it copies no page twice."""
        copied = self.copied * batches
        if self.shared >= 0:
            copied = min(copied, self.shared)
        return int(copied + max(self.growth - self.copied, 0.0) * batches)


class HotLine(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A line of the user's code, with its share of the time in which batches are made."""

    line: SourceLine
    share: float = 0.0


class Setting(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The arguments of a DataLoader that change how fast it is, and nothing else. No `prefetch` is 0."""

    workers: int = 0
    prefetch: int = 0
    persistent: bool = False
    pin: bool = False

    @property
    def arguments(self) -> dict[str, int | bool | None]:
        """The setting as keyword arguments of ``DataLoader``."""
        return {
            "num_workers": self.workers,
            "prefetch_factor": self.prefetch if self.workers else None,
            "persistent_workers": self.persistent and self.workers > 0,
            "pin_memory": self.pin,
        }


class Prediction(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A steady training step under `setting`, in nanoseconds: its length, and how much of it is the wait.

    `first` is how long an epoch's first batch takes, `epoch` the length of an epoch (-1: of unknown length),
    `memory` the bytes that workers and batches in flight take. `ready` is the mean number of batches that are
    ready when the loop asks. `excluded` says why it cannot run here.
    """

    setting: Setting
    step: float = 0.0
    wait: float = 0.0
    first: float = 0.0
    epoch: float = -1.0
    memory: int = 0
    ready: float = 0.0
    excluded: str = ""


class Bound(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """No setting makes a step shorter than `least` nanoseconds, because `stage` alone takes that long."""

    stage: str
    least: float


class Seen(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A loader in use: nanoseconds per step over `batches` steps, and those in ``next``.

    `ready` is the mean number of batches in the queue when the loop asked, -1 where there is no queue.
    `rest_cpu` is the processor time of the loop's own thread outside of ``next``, per step. `had` is the part
    of the time in which the loop and its workers could run that they had a core (-1: not told): less than
    the prediction took for granted where the load of the machine has changed.

    What the run itself shows of it: `made` batches of which each took so much processor time, waiting, and
    waiting for a core (`made_cpu`, `made_wait`, `made_delay`), bytes `read` from storage and `faults` (pages
    touched for the first time); `others` are the cores that other programs used (-1: not told), `stolen` what
    the hypervisor kept from this machine, `throttled` how often the processor slowed down for heat. `again`
    is the step of a second run, where there was one.
    """

    setting: Setting = Setting()
    batches: int = 0
    step: float = 0.0
    wait: float = 0.0
    rest_cpu: float = 0.0
    first: float = 0.0
    ready: float = -1.0
    had: float = -1.0
    predicted: float = -1.0
    made: int = 0
    made_cpu: float = 0.0
    made_wait: float = 0.0
    made_delay: float = 0.0
    read: float = 0.0
    faults: float = 0.0
    others: float = -1.0
    stolen: float = 0.0
    throttled: int = 0
    again: float = 0.0

    @property
    def share(self) -> float:
        """The share of a step that is spent waiting for the next batch."""
        return self.wait / self.step if self.step else 0.0


class Demand(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a step takes without its input: nanoseconds (0: not known), the part in which the host computes,
    and where that is known from.
    """

    step: float = 0.0
    busy: float = 1.0
    source: str = ""


class Doubt(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Why no number is headlined.

    `kind` is ``busy`` (other programs use `others` of the cores), ``refuted`` (a run did not bear the
    prediction out) or ``interrupted``. `reasons` are what was measured of why, in words.
    """

    kind: str
    others: float = 0.0
    reasons: tuple[str, ...] = ()


class Diagnosis(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An input pipeline, measured, and what follows from it.

    `now` is the prediction for the loader's own setting, `best` the shortest of all, `advised` the cheapest
    within 5 % of it; `predictions` are all that were tried, by workers. `seen` is the loader run under its
    own setting, `seen_advised` under the advised one. `recommended` are keyword arguments for ``DataLoader``.
    `correctness` is whether it yields what it should, where that was looked at. With a `doubt` no prediction
    is to be relied on. `interrupted` is the part of the measurement that was cut short, "" where none was.

    With something `around` the DataLoader, `fetch`, `transfer` and `length` are of the DataLoader's own
    batches, and everything per step is of the batches that the loop gets.
    """

    sentence: str = ""
    dataset: str = ""
    line: SourceLine | None = None
    fetched: SourceLine | None = None
    collated: SourceLine | None = None
    iterable: bool = False
    length: int = -1
    setting: Setting = Setting()
    around: Around | None = None
    demand: Demand = Demand()
    machine: Machine = Machine()
    fetch: Fetch = Fetch()
    transfer: Transfer = Transfer()
    begin: Begin = Begin()
    hot: tuple[HotLine, ...] = ()
    bounds: tuple[Bound, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    now: Prediction | None = None
    best: Prediction | None = None
    advised: Prediction | None = None
    recommended: dict[str, int | bool | None] = {}
    seen: Seen | None = None
    seen_advised: Seen | None = msgspec.field(default=None, name="verified")
    correctness: Verification | None = None
    doubt: Doubt | None = None
    interrupted: str = ""
    duration: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def step_now(self) -> float:
        """A step under the loader's own setting: as run, otherwise as predicted; 0 if neither is known."""
        return _measured_step(self.seen) or (self.now.step if self.now is not None else 0.0)

    @property
    def step_advised(self) -> float:
        """A step under the advised setting: as run, otherwise as predicted; 0 if neither is known."""
        return _measured_step(self.seen_advised) or (self.advised.step if self.advised is not None else 0.0)


def _measured_step(run: Seen | None) -> float:
    return run.step if run is not None else 0.0


class _Document(msgspec.Struct, kw_only=True):
    format: str = ""
    version: int = 0
    diagnosis: Diagnosis = Diagnosis()


SAVED: SavedFormat[Diagnosis, Diagnosis] = SavedFormat(
    "diagnosis",
    "gapless-loader",
    1,
    _Document,
    pack=lambda diagnosis: {"diagnosis": diagnosis},
    unpack=lambda document: document.diagnosis,
)
"""The file format of a diagnosis."""
encode, decode, save, load = SAVED.encode, SAVED.decode, SAVED.save, SAVED.load

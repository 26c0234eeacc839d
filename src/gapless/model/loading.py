"""`Diagnosis`: what an input pipeline costs, what other settings would give, and which to take."""

from __future__ import annotations

import os

import msgspec

from gapless.errors import UnreadableInput
from gapless.model._disk import read_whole, write_whole
from gapless.model.loading_mistakes import Verification
from gapless.model.source import SourceLine

FORMAT = "gapless-loader"
VERSION = 1


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
        """Cores' worth of work that as many processes as there are cores get done."""
        return self.share(self.allowed)

    def share(self, processes: int) -> float:
        """Cores' worth of work that so many processes get done together, in the long run.

        One core's worth is what it does for a process that is alone beside the others.
        """
        if not processes:
            return 0.0
        got = self.allowed * processes / max(processes + self.others, self.allowed)
        speed = self.speed(processes) / self.speed(1)
        return min(got * speed, self.quota if self.quota >= 0 else got)

    def speed(self, processes: int) -> float:
        """Of each core when so many processes compute beside the others, as a part of that of one alone."""
        half = self.allowed / 2
        busy = min(processes + self.others, self.allowed)
        return 1.0 if busy <= half else 1.0 - (1.0 - self.together) * (busy - half) / half


class Fetch(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What making batches costs where nothing else has to be done; nanoseconds and bytes.

    `item` is the wall time of one item, of which `item_cpu` is computing and `item_wait` waiting for a disk,
    a network or a sleep; the rest is waiting for a core. `collate` and `collate_cpu` are per batch. `index`
    is what the sampler takes per batch. `batches` are the processor time and the waiting of each batch made,
    collating included. `at_once` says that the items were fetched together (``__getitems__``).
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
    batches: tuple[tuple[int, int], ...] = ()

    @property
    def cpu(self) -> float:
        """Processor time per batch."""
        return sum(cpu for cpu, _ in self.batches) / len(self.batches) if self.batches else 0.0

    @property
    def wait(self) -> float:
        """Waiting per batch."""
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
    (-1: no GPU).
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

    def grown(self, batches: int) -> int:
        """Bytes by which a worker grows that makes so many batches: it copies no page twice."""
        copied = self.copied * batches
        if self.shared >= 0:
            copied = min(copied, self.shared)
        return int(copied + max(self.growth - self.copied, 0.0) * batches)


class HotLine(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A line of the user's and its share of the time in which batches are made."""

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
        """As keyword arguments of ``DataLoader``."""
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
    """No setting makes a step shorter than `least` nanoseconds, for `stage` alone takes that long."""

    stage: str
    least: float


class Seen(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A loader in use: nanoseconds per step over `batches` steps, and those in ``next``.

    `ready` is the mean number of batches in the queue when the loop asked, -1 where there is no queue.
    `rest_cpu` is the processor time of the loop's own thread outside of ``next``, per step. `had` is the part
    of the time in which the loop and its workers could run that they had a core (-1: not told): less than
    the prediction took for granted where the load of the machine has changed.
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

    @property
    def share(self) -> float:
        """The part of a step that is waiting for the next batch."""
        return self.wait / self.step if self.step else 0.0


class Demand(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a step takes without its input: nanoseconds (0: not known), the part in which the host computes,
    and where that is known from.
    """

    step: float = 0.0
    busy: float = 1.0
    source: str = ""


class Diagnosis(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An input pipeline, measured, and what follows from it.

    `now` is the prediction for the loader's own setting, `best` the shortest of all, `advised` the cheapest
    within 5 % of it; `predictions` are all that were tried, by workers. `seen` is the loader run under its
    own setting, `verified` under the advised one. `recommended` are keyword arguments for ``DataLoader``.
    `correctness` is whether it yields what it should, where that was looked at.
    """

    sentence: str = ""
    dataset: str = ""
    fetched: SourceLine | None = None
    collated: SourceLine | None = None
    iterable: bool = False
    length: int = -1
    setting: Setting = Setting()
    demand: Demand = Demand()
    machine: Machine = Machine()
    fetch: Fetch = Fetch()
    transfer: Transfer = Transfer()
    hot: tuple[HotLine, ...] = ()
    bounds: tuple[Bound, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    now: Prediction | None = None
    best: Prediction | None = None
    advised: Prediction | None = None
    recommended: dict[str, int | bool | None] = {}
    seen: Seen | None = None
    verified: Seen | None = None
    correctness: Verification | None = None
    duration: float = 0.0
    notes: tuple[str, ...] = ()


class _Document(msgspec.Struct, kw_only=True):
    format: str = ""
    version: int = 0
    diagnosis: Diagnosis = Diagnosis()


def encode(diagnosis: Diagnosis) -> bytes:
    """`diagnosis` as JSON bytes; :func:`decode` gives an equal one back."""
    return msgspec.json.encode(_Document(format=FORMAT, version=VERSION, diagnosis=diagnosis))


def decode(data: bytes, name: str = "diagnosis") -> Diagnosis:
    """The diagnosis in `data`; `name` stands for it in messages.

    Raises:
        UnreadableInput: `data` holds none, or one of a version this Gapless does not know.
    """
    try:
        document = msgspec.json.decode(data, type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableInput(f"{name} is not a saved diagnosis of a loader: {error}") from None
    if document.format != FORMAT:
        raise UnreadableInput(f'{name} is JSON but no diagnosis of a loader (no "format": "{FORMAT}")')
    if not 1 <= document.version <= VERSION:
        raise UnreadableInput(
            f"{name} is a diagnosis of version {document.version}; "
            f"this Gapless reads up to {VERSION}: upgrade it"
        )
    return document.diagnosis


def save(diagnosis: Diagnosis, path: str | os.PathLike[str]) -> None:
    """Write `diagnosis` to `path`, whole or not at all."""
    write_whole(encode(diagnosis), path)


def load(path: str | os.PathLike[str]) -> Diagnosis:
    """Read what :func:`save` wrote."""
    return decode(read_whole(path), str(path))

"""`Diagnosis`: what an input pipeline costs, what other settings would give, and which to take."""

from __future__ import annotations

import ast

import msgspec

from gapless.model._disk import SavedFormat
from gapless.model.loading_feed import Around, BatchTensor, Begin, Padding
from gapless.model.loading_mistakes import Verification
from gapless.model.source import SourceLine

_MIN_AGREEING_SHARE, _MIN_SAMPLES = 0.8, 5
"""Share of the samples that must agree on what is waited for, and their minimum number."""
_MIN_COMPUTING_SHARE = 0.1
"""Share of an item's time below which its computing says nothing about delays: late wake-ups outweigh it."""
_MAX_STEP_LEFT = 0.95
"""A remedy is advised if it leaves a smaller share of the step under the recommended setting."""
_WAITING = {
    "io": "waiting for I/O",
    "sleep": "sleeping",
    "lock": "waiting for a lock",
    "process": "waiting for another process",
    "": "waiting",
}


class Machine(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The resources of the machine for this process.

    `allowed` cores by affinity, `quota` cores by the control group (-1: no limit). `others` is the mean
    number of other processes that compute on the allowed cores. `together` is the speed of a core when all
    compute, relative to one alone: below 1 if two share a physical core (hyper-threads). `memory` and
    `shared` are free bytes, in all and in the file system for shared memory (-1: unknown). `start` is how
    workers start: ``fork``, ``spawn`` or ``forkserver``.
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
        """The work of as many processes as there are cores, in cores."""
        return self.share(self.allowed)

    def share(self, processes: int) -> float:
        """Return the work of `processes` together in the long run, in cores.

        One core is what a single process achieves beside the other programs.
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
    """What making batches costs if nothing else has to be done; nanoseconds and bytes.

    - `item`: wall time of one item: `item_cpu` computing, `item_wait` waiting for a disk, a network or a
      sleep, the rest waiting for a core.
    - `collate`, `collate_cpu`, `index` (the sampler): per batch.
    - `batches`: processor and waiting time of each batch, with collating.
    - `at_once`: items are fetched together (``__getitems__``).
    - `inside`: items in one that the dataset makes as a batch (0: it does not, or shapes do not show it).
    - `padding`: the share of batches that is padding (None: unknown); `columns`: the tensors of a batch.
    - `read`: bytes that the storage delivered per batch; `faults`: pages touched for the first time.
    - `waits`: the samples in which it waited, by reason (``io``, ``sleep``, ``lock``, ``process``, "":
      unknown).
    - `others`: cores that other programs used meanwhile (-1: unknown).
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
    columns: tuple[BatchTensor, ...] = ()
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
        """The share of the time in which items were runnable that they had a core.

        1 if they compute for less than a tenth of their time, where late wake-ups say nothing.
        """
        if self.item_cpu < _MIN_COMPUTING_SHARE * self.item:
            return 1.0
        delayed = max(self.item - self.item_cpu - self.item_wait, 0.0)
        return self.item_cpu / (self.item_cpu + delayed) if self.item_cpu > 0 else 1.0

    @property
    def waiting(self) -> str:
        """What the items wait for, such as ``waiting for I/O``; just ``waiting`` if unclear."""
        samples = sum(self.waits.values())
        named = [kind for kind, number in self.waits.items() if number >= _MIN_AGREEING_SHARE * samples]
        return _WAITING[named[0]] if named and samples >= _MIN_SAMPLES else _WAITING[""]

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

    - `send`: the worker's processor time besides making the batch.
    - `receive`: the time to receive from a worker that answers at once, so that both compute in turn.
    - `latency`: how long the training process waits for a batch that is ready while the worker is busy with
      the next.
    - `start`: the training process's time to start a worker; `boot`: until the worker begins its first batch.
    - `private`: memory that a worker shares with nobody after its first batch; `growth`: its growth per
      batch, of which `copied` are pages of the training process, of `shared` bytes that it could copy (-1:
      unknown).
    - `pin`, `copy`: copying a batch to pinned memory, and from there to the GPU (-1: no GPU).
    - `assumed`: no worker was tried for lack of time; sending and receiving are estimated from the batch's
      size.
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
    """A line of the user's code, with its share of the time spent making batches."""

    line: SourceLine
    share: float = 0.0


class Setting(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The arguments of a DataLoader that affect only its speed. `prefetch` 0 means none."""

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
    """A steady training step under `setting`, in nanoseconds: its length, and the wait in it.

    `first` is the time of an epoch's first batch, `epoch` the length of an epoch (-1: unknown), `memory` the
    bytes of workers and batches in flight. `ready` is the mean number of batches ready when the loop asks.
    `excluded` says why the setting cannot run here.
    """

    setting: Setting
    step: float = 0.0
    wait: float = 0.0
    first: float = 0.0
    epoch: float = -1.0
    memory: int = 0
    ready: float = 0.0
    excluded: str = ""


class BatchRemedy(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A change in how batches are made, tried in a copy of the process, where the batches were equal.

    - `kind`: ``whole`` (batches are indexed at once, not item by item) or ``tensors`` (lists of numbers are
      made tensors before they are collated).
    - `code`: what to write, without the `Setting`: it ends with the DataLoader's closing parenthesis.
    - `change`: the same in a few words; `differs`: what else the loop gets ("": nothing).
    - `compared`: batches that were made both ways and equal; `batches`: processor and waiting time of each
      that was made this way; `tensors`: in each.
    - `advised`: the prediction under the cheapest setting within 5 % of the best with this change.
    """

    kind: str
    code: str
    change: str = ""
    differs: str = ""
    line: SourceLine | None = None
    compared: int = 0
    batches: tuple[tuple[int, int], ...] = ()
    tensors: int = 0
    advised: Prediction | None = None

    @property
    def batch(self) -> float:
        """Nanoseconds to make a batch."""
        return sum(map(sum, self.batches)) / max(len(self.batches), 1)

    def code_with(self, arguments: str) -> str:
        """Return the code with the DataLoader's `arguments` of a setting added (``num_workers=2``).

        Without workers, how they start is left out: torch refuses it.
        """
        *before, call = self.code.split("\n")
        if "num_workers=0" in arguments.split(", ") and "multiprocessing_context=" in call:
            parsed = ast.parse(call, mode="eval").body
            assert isinstance(parsed, ast.Call)
            parsed.keywords = [word for word in parsed.keywords if word.arg != "multiprocessing_context"]
            call = ast.unparse(parsed)
        return "\n".join((*before, f"{call[:-1]}, {arguments})" if arguments else call))


class Bound(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A lower bound: no setting makes a step shorter than `least` nanoseconds, which `stage` alone takes."""

    stage: str
    least: float


class Seen(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A loader in use: nanoseconds per step over `batches` steps, and the wait in ``next``.

    - `ready`: the mean number of batches in the queue when the loop asked; -1 without a queue.
    - `rest_cpu`: processor time of the loop's own thread outside of ``next``.
    - `had`: the share of the time in which loop and workers were runnable that they had a core (-1: unknown).
    - `made`: batches made, each with `made_cpu` processor time, `made_wait` waiting and `made_delay` waiting
      for a core.
    - `read`: bytes from storage; `faults`: pages touched for the first time.
    - `others`: cores that other programs used (-1: unknown); `stolen`: time that the hypervisor kept;
      `throttled`: how often the processor slowed down for heat.
    - `again`: the step in a second run; 0 if there was none.
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
    """What a step takes without its input: nanoseconds (0: unknown), the share in which the host computes,
    and the source of these."""

    step: float = 0.0
    busy: float = 1.0
    source: str = ""


class Doubt(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Why no number is headlined.

    `kind` is ``busy`` (other programs use `others` of the cores), ``refuted`` (a run contradicted the
    prediction) or ``interrupted``. `reasons` are the measurements that explain it, in words.
    """

    kind: str
    others: float = 0.0
    reasons: tuple[str, ...] = ()


class Diagnosis(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The measurements of an input pipeline, and the conclusions.

    - `now`, `best`, `advised`: predictions for the loader's own setting, the fastest, and the cheapest within
      5 % of it; `predictions`: all, by number of workers.
    - `bounds`: lower bounds of a step.
    - `seen`, `seen_advised`: runs of the loader under its own and the advised setting.
    - `recommended`: keyword arguments for ``DataLoader``.
    - `correctness`: whether the loader yields what it should; None if not checked.
    - `remedies`: changes in how batches are made that were tried; the most effective first.
    - `doubt`: why predictions are unreliable; `interrupted`: the part of the measurement that was cut short
      ("": none).
    - `around`: what wraps the DataLoader. `fetch`, `transfer` and `length` are then of the DataLoader's own
      batches, all times per step of the batches that the loop gets.
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
    remedies: tuple[BatchRemedy, ...] = ()
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

    @property
    def remedy(self) -> BatchRemedy | None:
        """The most effective remedy, if it makes a step clearly shorter than every setting does."""
        for remedy in self.remedies[:1] if self.doubt is None else ():
            if remedy.advised is not None and remedy.advised.step < _MAX_STEP_LEFT * self.step_advised:
                return remedy
        return None


def _measured_step(run: Seen | None) -> float:
    return run.step if run is not None else 0.0


class _SavedDiagnosis(msgspec.Struct, kw_only=True):
    format: str = ""
    version: int = 0
    diagnosis: Diagnosis = Diagnosis()


SAVED: SavedFormat[Diagnosis, Diagnosis] = SavedFormat(
    "diagnosis",
    "gapless-loader",
    1,
    _SavedDiagnosis,
    pack=lambda diagnosis: {"diagnosis": diagnosis},
    unpack=lambda document: document.diagnosis,
)
"""The file format of a diagnosis."""
encode, decode, save, load = SAVED.encode, SAVED.decode, SAVED.save, SAVED.load

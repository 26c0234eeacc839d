"""`diagnose`: an input pipeline measured, predicted under other settings, and the one to take."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import msgspec
import torch
from torch.utils.data import DataLoader

from gapless.loading import foreign, forked, predict
from gapless.loading.batches import is_iterable, length_of, setting_of, start_of
from gapless.loading.blocked import Blocked
from gapless.loading.feed import Feed, understood
from gapless.loading.forked import LoaderError, Stopped, measured
from gapless.loading.hot_lines import hot_lines, note_time
from gapless.loading.lines import definition, maker
from gapless.loading.machine import Others, machine
from gapless.loading.measure_begin import forked_start, measure_begin
from gapless.loading.measure_items import measure_items
from gapless.loading.measure_loop import AT_LEAST, loop, use
from gapless.loading.measure_workers import measure_transfer
from gapless.loading.sentence import notes, sentence
from gapless.loading.trust import REFUTED, calibrated, concluded, off
from gapless.model.loading import Demand, Diagnosis, Fetch, HotLine, Machine, Prediction, Seen, Transfer
from gapless.model.loading_feed import Begin
from gapless.model.wording import duration, number, percent

Progress = Callable[[str, float], None]
"""Called with what is being measured and the part of it that is done."""

_PARTS = {
    "cores": 0.12,
    "items": 0.31,
    "lines": 0.07,
    "begin": 0.03,
    "workers": 0.2,
    "loop": 0.15,
    "advice": 0.15,
}
"""What each measurement gets of the budget."""
_CORES_AT_MOST = 3.0
_PATIENT, _PATIENCE = 10, 60.0
"""How many budgets, or how many seconds at least, the first item may take."""
_RECEIVED = 0.3e6, 0.1e6, 0.2
"""Nanoseconds to receive a batch from a worker where none was tried: of any, of a tensor, of a byte."""


def diagnose(
    loader: Any,
    budget: float = 20.0,
    step: float | None = None,
    *,
    busy: float = 1.0,
    source: str = "",
    check_advice: bool = True,
    progress: Progress | None = None,
) -> Diagnosis:
    """Measure `loader`, predict it under other settings, and recommend one.

    `loader` is a DataLoader, or anything else that yields batches: steps around a DataLoader are measured
    with it, and what has none in it as it is. A dataset is put into a DataLoader.

    `budget` is in seconds; less is taken where less is enough. `step` is what a training step takes without
    its input, in seconds (None: unknown; then the recommendation is for the most batches per second), and
    `busy` the part of it in which the host computes. The loader is run as it is and, with `check_advice`,
    under the recommended setting, both within the budget: where a run and its prediction differ by more
    than a quarter, or other programs have the cores, :attr:`Diagnosis.doubt` says so and why.

    A request to end (Ctrl-C) ends the measurement: what was found until then comes back, with
    :attr:`Diagnosis.interrupted`; it is raised where not one item was made.

    Everything is measured in copies of this process: the dataset, the sampler and all random states are
    afterwards what they were.

    Raises:
        LoaderError: the dataset or the collating function fails, or there is no batch.
        ValueError: `budget` or `step` is negative, or `busy` is no part.
    """
    if budget <= 0 or (step is not None and step < 0) or not 0 <= busy <= 1:
        raise ValueError("budget must be positive, step not negative, and busy between 0 and 1")
    demand = Demand(step=(step or 0.0) * 1e9, busy=busy, source=source or ("given" if step else ""))
    progress = progress or (lambda name, part: None)
    feed = loader if isinstance(loader, Feed) else understood(loader)
    if feed.loader is None:
        at = machine(torch.multiprocessing.get_start_method(), min(_PARTS["cores"] * budget, _CORES_AT_MOST))
        return foreign.as_it_is(feed, at, budget, demand, progress)
    return _Measurement(feed, feed.loader, budget, demand, check_advice, progress).run()


class _Measurement:
    def __init__(
        self,
        feed: Feed,
        loader: DataLoader,
        budget: float,
        demand: Demand,
        check_advice: bool,
        progress: Progress,
    ) -> None:
        self.feed, self.loader = feed, loader
        self.budget, self.demand, self.check_advice = budget, demand, check_advice
        self.progress = progress
        self.began = time.monotonic()
        self.setting = setting_of(loader)
        self.remarks: list[str] = list(feed.remarks)
        self.skip = 0
        self.part = ""
        self.interrupted = ""
        self.machine = Machine(start=start_of(loader))
        self.fetch: Fetch | None = None
        self.hot: list[HotLine] = []
        self.begin = Begin()
        self.transfer: Transfer | None = None
        self.workers = True
        self.seen: Seen | None = None
        self.seen_advised: Seen | None = None

    def run(self) -> Diagnosis:
        made: Diagnosis | None = None
        try:
            self._costs()
            made = self._predicted()
            self._runs(made)
        except Stopped as stopped:
            if self.fetch is None or not isinstance(stopped.request, KeyboardInterrupt):
                raise stopped.request from None
            self.interrupted = self.part
        except KeyboardInterrupt:
            if self.fetch is None:
                raise
            self.interrupted = self.part
        try:
            return self._concluded(made or self._predicted())
        except KeyboardInterrupt:
            self.interrupted = self.part
            return self._concluded(made or self._predicted())

    def _costs(self) -> None:
        """The machine, items and a worker."""
        self.machine = self._cores()
        self.fetch = self._items()
        if self.fetch.item / 1e9 < self._seconds("lines"):
            self.hot = self._measure("lines", list[HotLine], self._hot, note_time)
        self.begin = self._begin(self.fetch)
        problem = unpicklable(self.loader)
        if problem:
            self.remarks.append(problem)
            self.workers = False
        else:
            self.transfer = self._transfer(self.fetch)

    def _predicted(self) -> Diagnosis:
        """What follows from what was measured until now."""
        fetch = self.fetch
        assert fetch is not None
        of = predict.Measured(
            machine=calibrated(self.machine, fetch),
            fetch=fetch,
            transfer=self.transfer or assumed(fetch),
            demand=self.demand,
            length=length_of(self.loader),
            pins=torch.cuda.is_available(),
            workers=self.workers,
            around=self.feed.around,
        )
        predictions = predict.predict_all(of)
        best, advised = predict.choose(of, predictions)
        loader = self.loader
        return Diagnosis(
            dataset=type(loader.dataset).__qualname__,
            fetched=maker(loader.dataset),
            collated=definition(loader.collate_fn),
            iterable=is_iterable(loader),
            length=of.length,
            setting=self.setting,
            around=of.around,
            demand=self.demand,
            machine=of.machine,
            fetch=fetch,
            transfer=of.transfer,
            begin=self.begin,
            hot=tuple(self.hot),
            bounds=predict.bounds(of),
            predictions=tuple(predictions),
            now=predict.predict(of, self.setting),
            best=best,
            advised=advised,
        )

    def _runs(self, diagnosis: Diagnosis) -> None:
        """The loader as it is, and under the setting that is advised; once more where that is refuted."""
        now, advised = diagnosis.now, diagnosis.advised
        assert now is not None
        assert advised is not None
        if self.workers or not self.setting.workers:
            self.seen = self._use("loop", now)
        if not self.check_advice:
            return
        if (now.setting.workers, now.setting.prefetch) == (advised.setting.workers, advised.setting.prefetch):
            self.seen_advised = self.seen
        else:
            self.seen_advised = self._use("advice", advised)
        if (
            self.seen_advised is not None
            and off(self.seen_advised) > REFUTED
            and self._left() > self._seconds("advice")
        ):
            again = self._use("advice", advised)
            step = again.step if again is not None else 0.0
            self.seen_advised = msgspec.structs.replace(self.seen_advised, again=step)

    def _concluded(self, made: Diagnosis) -> Diagnosis:
        made = msgspec.structs.replace(
            made,
            seen=self.seen,
            seen_advised=self.seen_advised,
            interrupted=self.interrupted,
            duration=time.monotonic() - self.began,
        )
        made = concluded(made)
        told = (*self.remarks, *notes(made), *_open_files(self.loader.dataset))
        return msgspec.structs.replace(made, sentence=sentence(made), notes=told)

    def _seconds(self, part: str) -> float:
        return self.budget * _PARTS[part]

    def _left(self) -> float:
        return self.budget - (time.monotonic() - self.began)

    def _measure(
        self,
        part: str,
        kind: Any,
        work: Callable[[forked.Tell], Any],
        look: forked.Look | None = None,
        patience: float = 0.0,
    ) -> Any:
        self.part = part
        seconds = max(self._seconds(part), self.budget, patience)
        try:
            return measured(work, kind, seconds, lambda done: self.progress(part, done), look, keep=True)
        finally:
            self.progress(part, 1.0)

    def _cores(self) -> Machine:
        self.part = "cores"
        self.progress("cores", 0.0)
        found = machine(start_of(self.loader), min(self._seconds("cores"), _CORES_AT_MOST))
        self.progress("cores", 1.0)
        return found

    def _items(self) -> Fetch:
        """What items cost; one that takes longer than all the budget is waited for."""
        seconds, blocked, beside = self._seconds("items"), Blocked(), Others()

        def work(tell: forked.Tell) -> Fetch:
            return measure_items(self.loader, seconds, tell)

        try:
            found = self._measure("items", Fetch, work, blocked, max(_PATIENT * self.budget, _PATIENCE))
        except Stopped as stopped:
            if stopped.result is not None:
                self.fetch = self._looked(stopped.result, blocked, beside)
            raise
        self.skip = len(found.batches)  # other batches next: these are in the system's cache now
        length = length_of(self.loader)
        if 0 <= length < 4 * self.skip:
            self.skip = 0
        return self._looked(found, blocked, beside)

    @staticmethod
    def _looked(found: Fetch, blocked: Blocked, beside: Others) -> Fetch:
        return msgspec.structs.replace(found, waits=blocked.waits(), others=beside.cores())

    def _hot(self, tell: forked.Tell) -> list[HotLine]:
        return hot_lines(self.loader, self._seconds("lines"), tell, skip=self.skip)

    def _begin(self, fetch: Fetch) -> Begin:
        """What an epoch begins with; nothing where that would take long, or fails as the rest would say."""
        seconds = self._seconds("lines")
        if 8 * fetch.wall > seconds * 1e9:
            return Begin()
        try:
            found: Begin = self._measure("begin", Begin, lambda tell: measure_begin(self.loader))
            if self.machine.start != "fork" and forked.available():
                start = self._measure("begin", float, lambda tell: forked_start(self.loader, fetch, found))
                found = msgspec.structs.replace(found, forked=start)
        except LoaderError:
            return Begin()
        return found

    def _transfer(self, fetch: Fetch) -> Transfer | None:
        """What a worker adds; None where there is no time to try one."""
        seconds = self._seconds("workers")
        if fetch.wall / 1e9 > max(seconds, AT_LEAST) / 2:
            self.remarks.append(
                f"no worker was tried: a batch takes {duration(fetch.wall)}, but --budget is "
                f"{number(self.budget)} s"
            )
            return None
        try:
            found: Transfer = self._measure(
                "workers",
                Transfer,
                lambda tell: measure_transfer(self.loader, fetch, seconds, tell, skip=self.skip),
            )
        except LoaderError as error:
            self.remarks.append(f"in a worker {error}")
            self.workers = False
            return Transfer()
        if not found.batches:
            self.remarks.append("no batch came from a worker in the time available: raise --budget")
            return None
        return found

    def _use(self, part: str, prediction: Prediction) -> Seen | None:
        """The loop under the setting of `prediction`, for real; None where it does not come far enough."""
        seconds, demand = self._seconds(part), self.demand
        workers = prediction.setting.workers
        needed = (prediction.first + (2 * workers + 8) * prediction.step) / 1e9
        if needed > max(2 * seconds, AT_LEAST):
            self.remarks.append(
                f"num_workers={workers} was not run: a few of its steps take {duration(1e9 * needed)}, but "
                f"a run gets {percent(_PARTS[part])} of --budget"
            )
            return None
        setting = prediction.setting

        def work(tell: forked.Tell) -> Seen:
            if self.feed.around is None:
                return use(self.loader, setting, demand.step, demand.busy, seconds, tell, skip=self.skip)
            with self.feed.under(setting) as make:
                return loop(make, setting, demand.step, demand.busy, seconds, tell)

        try:
            found: Seen = self._measure(part, Seen, work)
        except LoaderError as error:
            self.remarks.append(f"under num_workers={workers} {error}")
            return None
        if not found.batches:
            self.remarks.append(f"num_workers={workers} did not get far enough in the time available")
            return None
        return msgspec.structs.replace(found, predicted=prediction.step)


def assumed(fetch: Fetch) -> Transfer:
    """A worker that was not tried, on the safe side."""
    some, each, byte = _RECEIVED
    return Transfer(receive=some + each * fetch.tensors + byte * fetch.batch_bytes, assumed=True)


def unpicklable(loader: DataLoader) -> str:
    """Why workers that are not forked cannot start; "" where they can."""
    start = start_of(loader)
    if start == "fork":
        return ""
    parts = {
        "the dataset": loader.dataset,
        "collate_fn": loader.collate_fn,
        "worker_init_fn": loader.worker_init_fn,
    }
    for name, part in parts.items():
        try:
            ForkingPickler(io.BytesIO()).dump(part)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            return (
                f"workers cannot start ({start}): {name} cannot be pickled ({why}); define it at the top "
                "level of a module, and open files on first use"
            )
    return ""


def _open_files(dataset: Any) -> list[str]:
    """A warning where the dataset holds files open, which forked workers then share."""
    found = []
    for name, value in vars(dataset).items() if hasattr(dataset, "__dict__") else ():
        is_file = isinstance(value, io.IOBase) and not isinstance(value, io.BytesIO | io.StringIO)
        foreign = type(value).__module__.split(".")[0] in ("h5py", "lmdb", "zipfile", "tarfile")
        if is_file or (foreign and type(value).__name__ in ("File", "Environment", "ZipFile", "TarFile")):
            found.append(
                f"the dataset holds an open file (self.{name}): forked workers share its position and "
                "disturb each other's reads; open it in each worker on first use"
            )
    return found

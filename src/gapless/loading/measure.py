"""`diagnose`: measure an input pipeline, predict it under other settings, and recommend one."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from typing import Any

import msgspec
import torch
from torch.utils.data import DataLoader

from gapless.loading import foreign, forked, predict
from gapless.loading.batches import is_iterable, length_of, setting_of, start_of
from gapless.loading.blocked import WaitSampler
from gapless.loading.feed import Feed, identify_feed
from gapless.loading.forked import LoaderError, Stopped, run_in_copy
from gapless.loading.hot_lines import find_hot_lines, note_time
from gapless.loading.lines import definition, item_line
from gapless.loading.loader_call import read_call
from gapless.loading.machine import OtherLoad, measure_machine
from gapless.loading.measure_begin import measure_begin, measure_forked_start
from gapless.loading.measure_items import measure_items
from gapless.loading.measure_loop import MIN_SECONDS, run_loop, run_setting
from gapless.loading.measure_workers import measure_transfer
from gapless.loading.number_lists import try_tensors
from gapless.loading.sentence import notes, sentence
from gapless.loading.trust import MAX_PREDICTION_FACTOR, calibrate_load, conclude_runs, prediction_factor
from gapless.loading.whole_batches import try_whole_batches
from gapless.model.loading import (
    BatchRemedy,
    Demand,
    Diagnosis,
    Fetch,
    HotLine,
    Machine,
    Prediction,
    Seen,
    Transfer,
)
from gapless.model.loading_feed import Begin
from gapless.model.wording import duration, number, percent

Progress = Callable[[str, float], None]
"""Called with the name of a measurement and the share of it that is done."""

_BUDGET_SHARES = {
    "cores": 0.12,
    "items": 0.25,
    "lines": 0.07,
    "remedies": 0.06,
    "begin": 0.03,
    "workers": 0.2,
    "loop": 0.15,
    "advice": 0.15,
}
"""The share of the budget of each measurement."""
_MAX_CORES_SECONDS = 3.0
"""Seconds of measuring how cores slow each other down: longer runs change the result little."""
_MAX_BUDGETS, _MIN_PATIENCE_SECONDS = 10, 60.0
"""The first item may take this many budgets, or at least these seconds."""
_TRIAL_PATIENCE, _MIN_TRIAL_SECONDS = 3, 2.0
"""A trial is ended after so many times its seconds, or after these."""
_RECEIVING_NS = 0.3e6, 0.1e6, 0.2
"""Time to receive a batch from a worker if none was tried: fixed, per tensor, per byte."""


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
    with it, and objects without one as they are. A dataset is put into a DataLoader.

    `budget` is in seconds; less is used if less is enough. `step` is the duration of a training step without
    its input, in seconds (None: unknown; then the recommendation maximises batches per second), and `busy`
    the share of it in which the host computes. The loader is run with its current setting and, with
    `check_advice`, with the recommended one, both within the budget: if a run and its prediction differ by
    more than a quarter, or other programs use the cores, :attr:`Diagnosis.doubt` says so and why.

    A request to end (Ctrl-C) ends the measurement: the results so far are returned, with
    :attr:`Diagnosis.interrupted`; it is raised again if not a single item was made.

    Everything is measured in copies of this process: the dataset, the sampler and all random states are
    unchanged afterwards.

    Raises:
        LoaderError: the dataset or the collate function fails, or there is no batch.
        ValueError: `budget` or `step` is negative, or `busy` is not between 0 and 1.
    """
    if budget <= 0 or (step is not None and step < 0) or not 0 <= busy <= 1:
        raise ValueError("budget must be positive, step not negative, and busy between 0 and 1")
    demand = Demand(step=(step or 0.0) * 1e9, busy=busy, source=source or ("given" if step else ""))
    progress = progress or (lambda name, part: None)
    feed = loader if isinstance(loader, Feed) else identify_feed(loader)
    if feed.loader is None:
        at = measure_machine(
            torch.multiprocessing.get_start_method(),
            min(_BUDGET_SHARES["cores"] * budget, _MAX_CORES_SECONDS),
        )
        return foreign.measure_feed(feed, at, budget, demand, progress)
    return _LoaderMeasurement(feed, feed.loader, budget, demand, check_advice, progress).run()


class _LoaderMeasurement:
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
        self.remedies: list[BatchRemedy] = []
        self.begin = Begin()
        self.transfer: Transfer | None = None
        self.workers = True
        self.seen: Seen | None = None
        self.seen_advised: Seen | None = None

    def run(self) -> Diagnosis:
        diagnosis: Diagnosis | None = None
        try:
            self._measure_costs()
            diagnosis = self._predict()
            self._run_settings(diagnosis)
        except Stopped as stopped:
            if self.fetch is None or not isinstance(stopped.request, KeyboardInterrupt):
                raise stopped.request from None
            self.interrupted = self.part
        except KeyboardInterrupt:
            if self.fetch is None:
                raise
            self.interrupted = self.part
        try:
            return self._conclude(diagnosis or self._predict())
        except KeyboardInterrupt:
            self.interrupted = self.part
            return self._conclude(diagnosis or self._predict())

    def _measure_costs(self) -> None:
        """Measure the machine, items and a worker."""
        self.machine = self._measure_cores()
        self.fetch = self._measure_items()
        if self.fetch.item / 1e9 < self._seconds("lines"):
            self.hot = self.measure_part("lines", list[HotLine], self._find_hot_lines, note_time)
        self.remedies = self._try_remedies(self.fetch)
        self.begin = self._measure_begin(self.fetch)
        problem = explain_unpicklable(self.loader)
        if problem:
            self.remarks.append(problem)
            self.workers = False
        else:
            self.transfer = self._measure_transfer(self.fetch)

    def _predict(self) -> Diagnosis:
        """Predict from what was measured so far."""
        fetch = self.fetch
        assert fetch is not None
        measured_costs = predict.MeasuredCosts(
            machine=calibrate_load(self.machine, fetch),
            fetch=fetch,
            transfer=self.transfer or assume_transfer(fetch),
            demand=self.demand,
            length=length_of(self.loader),
            pins=torch.cuda.is_available(),
            workers=self.workers,
            around=self.feed.around,
        )
        predictions = predict.predict_all(measured_costs)
        best, advised = predict.choose(measured_costs, predictions)
        loader = self.loader
        return Diagnosis(
            dataset=type(loader.dataset).__qualname__,
            fetched=item_line(loader.dataset),
            collated=definition(loader.collate_fn),
            iterable=is_iterable(loader),
            length=measured_costs.length,
            setting=self.setting,
            around=measured_costs.around,
            demand=self.demand,
            machine=measured_costs.machine,
            fetch=fetch,
            transfer=measured_costs.transfer,
            begin=self.begin,
            hot=tuple(self.hot),
            bounds=predict.bounds(measured_costs),
            predictions=tuple(predictions),
            now=predict.predict(measured_costs, self.setting),
            best=best,
            advised=advised,
            remedies=predict.predict_remedies(measured_costs, self.remedies),
        )

    def _run_settings(self, diagnosis: Diagnosis) -> None:
        """Run the current and the advised setting; repeat the latter if it refutes its prediction."""
        now, advised = diagnosis.now, diagnosis.advised
        assert now is not None
        assert advised is not None
        if self.workers or not self.setting.workers:
            self.seen = self._run_setting("loop", now)
        if not self.check_advice:
            return
        if (now.setting.workers, now.setting.prefetch) == (advised.setting.workers, advised.setting.prefetch):
            self.seen_advised = self.seen
        else:
            self.seen_advised = self._run_setting("advice", advised)
        if (
            self.seen_advised is not None
            and prediction_factor(self.seen_advised) > MAX_PREDICTION_FACTOR
            and self._left() > self._seconds("advice")
        ):
            again = self._run_setting("advice", advised)
            step = again.step if again is not None else 0.0
            self.seen_advised = msgspec.structs.replace(self.seen_advised, again=step)

    def _conclude(self, diagnosis: Diagnosis) -> Diagnosis:
        diagnosis = msgspec.structs.replace(
            diagnosis,
            seen=self.seen,
            seen_advised=self.seen_advised,
            interrupted=self.interrupted,
            duration=time.monotonic() - self.began,
        )
        diagnosis = conclude_runs(diagnosis)
        all_notes = (*self.remarks, *notes(diagnosis), *_open_files(self.loader.dataset))
        return msgspec.structs.replace(diagnosis, sentence=sentence(diagnosis), notes=all_notes)

    def _seconds(self, part: str) -> float:
        return self.budget * _BUDGET_SHARES[part]

    def _left(self) -> float:
        return self.budget - (time.monotonic() - self.began)

    def measure_part(
        self,
        part: str,
        kind: Any,
        work: Callable[[forked.Tell], Any],
        look: forked.ProcessSampler | None = None,
        patience: float = 0.0,
        trial_seconds: float = 0.0,
    ) -> Any:
        """Return what `work` measures in a copy; one that may do anything is ended after `trial_seconds`."""
        self.part = part
        seconds = trial_seconds or max(self._seconds(part), self.budget, patience)
        try:
            return run_in_copy(
                work,
                kind,
                seconds,
                lambda done: self.progress(part, done),
                look,
                keep=True,
                trial=trial_seconds > 0,
            )
        finally:
            self.progress(part, 1.0)

    def _measure_cores(self) -> Machine:
        self.part = "cores"
        self.progress("cores", 0.0)
        result = measure_machine(start_of(self.loader), min(self._seconds("cores"), _MAX_CORES_SECONDS))
        self.progress("cores", 1.0)
        return result

    def _measure_items(self) -> Fetch:
        """Measure items; one that takes longer than the whole budget is waited for."""
        seconds, blocked, other_load = self._seconds("items"), WaitSampler(), OtherLoad()

        def work(tell: forked.Tell) -> Fetch:
            return measure_items(self.loader, seconds, tell)

        try:
            fetch = self.measure_part(
                "items", Fetch, work, blocked, max(_MAX_BUDGETS * self.budget, _MIN_PATIENCE_SECONDS)
            )
        except Stopped as stopped:
            if stopped.result is not None:
                self.fetch = self._with_waits(stopped.result, blocked, other_load)
            raise
        self.skip = len(fetch.batches)  # use other batches next: these are in the system's cache now
        length = length_of(self.loader)
        if 0 <= length < 4 * self.skip:
            self.skip = 0
        return self._with_waits(fetch, blocked, other_load)

    @staticmethod
    def _with_waits(fetch: Fetch, blocked: WaitSampler, other_load: OtherLoad) -> Fetch:
        return msgspec.structs.replace(fetch, waits=blocked.waits(), others=other_load.cores())

    def _find_hot_lines(self, tell: forked.Tell) -> list[HotLine]:
        return find_hot_lines(self.loader, self._seconds("lines"), tell, skip=self.skip)

    def _try_remedies(self, fetch: Fetch) -> list[BatchRemedy]:
        """Try other ways to make the same batches; each in a copy, as one may fail or never end."""
        if not forked.can_fork():
            return []
        remedies = list[BatchRemedy]()
        seconds, call = self._seconds("remedies") / 2, read_call(self.loader, self.feed.line)
        patience = max(_TRIAL_PATIENCE * seconds, _MIN_TRIAL_SECONDS)
        for attempt in (try_whole_batches, try_tensors):

            def work(tell: forked.Tell, attempt: Any = attempt) -> list[BatchRemedy]:
                remedy = attempt(self.loader, fetch, call, seconds, skip=self.skip)
                return [] if remedy is None else [remedy]

            with suppress(LoaderError):
                remedies += self.measure_part("remedies", list[BatchRemedy], work, trial_seconds=patience)
        return remedies

    def _measure_begin(self, fetch: Fetch) -> Begin:
        """Measure how an epoch begins; nothing if that would take long or fails, as other parts report
        that.
        """
        seconds = self._seconds("lines")
        if 8 * fetch.wall > seconds * 1e9:
            return Begin()
        try:
            begin: Begin = self.measure_part("begin", Begin, lambda tell: measure_begin(self.loader))
            if self.machine.start != "fork" and forked.can_fork():
                start = self.measure_part(
                    "begin", float, lambda tell: measure_forked_start(self.loader, fetch, begin)
                )
                begin = msgspec.structs.replace(begin, forked=start)
        except LoaderError:
            return Begin()
        return begin

    def _measure_transfer(self, fetch: Fetch) -> Transfer | None:
        """Measure what a worker adds; None if there is no time to try one."""
        seconds = self._seconds("workers")
        if fetch.wall / 1e9 > max(seconds, MIN_SECONDS) / 2:
            self.remarks.append(
                f"no worker was tried: a batch takes {duration(fetch.wall)}, but --budget is "
                f"{number(self.budget)} s"
            )
            return None
        try:
            transfer: Transfer = self.measure_part(
                "workers",
                Transfer,
                lambda tell: measure_transfer(self.loader, fetch, seconds, tell, skip=self.skip),
            )
        except LoaderError as error:
            self.remarks.append(f"in a worker {error}")
            self.workers = False
            return Transfer()
        if not transfer.batches:
            self.remarks.append("no batch came from a worker in the time available: raise --budget")
            return None
        return transfer

    def _run_setting(self, part: str, prediction: Prediction) -> Seen | None:
        """Run the loop with the setting of `prediction`; None if it does not get far enough."""
        seconds, demand = self._seconds(part), self.demand
        workers = prediction.setting.workers
        needed = (prediction.first + (2 * workers + 8) * prediction.step) / 1e9
        if needed > max(2 * seconds, MIN_SECONDS):
            self.remarks.append(
                f"num_workers={workers} was not run: a few of its steps take {duration(1e9 * needed)}, but "
                f"a run gets {percent(_BUDGET_SHARES[part])} of --budget"
            )
            return None
        setting = prediction.setting

        def work(tell: forked.Tell) -> Seen:
            if self.feed.around is None:
                return run_setting(
                    self.loader, setting, demand.step, demand.busy, seconds, tell, skip=self.skip
                )
            with self.feed.under(setting) as make:
                return run_loop(make, setting, demand.step, demand.busy, seconds, tell)

        try:
            run: Seen = self.measure_part(part, Seen, work)
        except LoaderError as error:
            self.remarks.append(f"under num_workers={workers} {error}")
            return None
        if not run.batches:
            self.remarks.append(f"num_workers={workers} did not get far enough in the time available")
            return None
        return msgspec.structs.replace(run, predicted=prediction.step)


def assume_transfer(fetch: Fetch) -> Transfer:
    """Return a cautious estimate for a worker that was not tried."""
    some, each, byte = _RECEIVING_NS
    return Transfer(receive=some + each * fetch.tensors + byte * fetch.batch_bytes, assumed=True)


def explain_unpicklable(loader: DataLoader) -> str:
    """Say why workers that are not forked cannot start; "" if they can."""
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
            reason = f"{type(error).__name__}: {error}"
            return (
                f"workers cannot start ({start}): {name} cannot be pickled ({reason}); define it at the top "
                "level of a module, and open files on first use"
            )
    return ""


def _open_files(dataset: Any) -> list[str]:
    """Return a warning if the dataset holds open files, which forked workers would share."""
    warnings = []
    for name, value in vars(dataset).items() if hasattr(dataset, "__dict__") else ():
        is_file = isinstance(value, io.IOBase) and not isinstance(value, io.BytesIO | io.StringIO)
        foreign = type(value).__module__.split(".")[0] in ("h5py", "lmdb", "zipfile", "tarfile")
        if is_file or (foreign and type(value).__name__ in ("File", "Environment", "ZipFile", "TarFile")):
            warnings.append(
                f"the dataset holds an open file (self.{name}): forked workers share its position and "
                "disturb each other's reads; open it in each worker on first use"
            )
    return warnings

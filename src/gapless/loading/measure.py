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

from gapless.loading import forked, predict
from gapless.loading.batches import is_iterable, length_of, setting_of, start_of
from gapless.loading.cores import machine
from gapless.loading.forked import LoaderError, measured
from gapless.loading.lines import definition, maker
from gapless.loading.measure_items import hot_lines, measure_items
from gapless.loading.measure_workers import measure_transfer, use
from gapless.loading.sentence import notes, sentence
from gapless.model.loading import Demand, Diagnosis, Fetch, HotLine, Machine, Prediction, Seen, Transfer

Progress = Callable[[str, float], None]
"""Called with what is being measured and the part of it that is done."""

_PARTS = {"cores": 0.12, "items": 0.31, "lines": 0.07, "workers": 0.2, "loop": 0.15, "advice": 0.15}
"""What each measurement gets of the budget."""
_CORES_AT_MOST = 3.0


def diagnose(
    loader: DataLoader,
    budget: float = 20.0,
    step: float | None = None,
    *,
    busy: float = 1.0,
    source: str = "",
    verify: bool = False,
    progress: Progress | None = None,
) -> Diagnosis:
    """Measure `loader`, predict it under other settings, and recommend one.

    `budget` is in seconds; less is taken where less is enough. `step` is what a training step takes without
    its input, in seconds (None: unknown; then the recommendation is for the most batches per second), and
    `busy` the part of it in which the host computes. With `verify` the recommended setting is run, too.

    Everything is measured in copies of this process: the dataset, the sampler and all random states are
    afterwards what they were.

    Raises:
        LoaderError: the dataset or the collating function fails, or there is no batch.
        ValueError: `budget` or `step` is negative, or `busy` is no part.
    """
    if budget <= 0 or (step is not None and step < 0) or not 0 <= busy <= 1:
        raise ValueError("budget must be positive, step not negative, and busy between 0 and 1")
    demand = Demand(step=(step or 0.0) * 1e9, busy=busy, source=source or ("given" if step else ""))
    return _Measurement(loader, budget, demand, verify, progress or (lambda name, part: None)).run()


class _Measurement:
    def __init__(
        self, loader: DataLoader, budget: float, demand: Demand, verify: bool, progress: Progress
    ) -> None:
        self.loader, self.budget, self.demand, self.verify = loader, budget, demand, verify
        self.progress = progress
        self.began = time.monotonic()
        self.setting = setting_of(loader)
        self.remarks: list[str] = []
        self.skip = 0

    def run(self) -> Diagnosis:
        at = self._cores()
        fetch = self._fetch()
        hot = self._measure("lines", list[HotLine], self._hot)
        problem = unpicklable(self.loader)
        if problem:
            self.remarks.append(problem)
            transfer = Transfer()
        else:
            transfer = self._transfer(fetch)
        of = predict.Measured(
            machine=at,
            fetch=fetch,
            transfer=transfer,
            demand=self.demand,
            length=length_of(self.loader),
            pins=torch.cuda.is_available(),
            workers=not problem and transfer.batches > 0,
        )
        return self._conclude(of, hot)

    def _conclude(self, of: predict.Measured, hot: list[HotLine]) -> Diagnosis:
        predictions = predict.predict_all(of)
        best, advised = predict.choose(of, predictions)
        now = predict.predict(of, self.setting)
        seen = verified = None
        if of.workers or not self.setting.workers:
            seen = self._use("loop", now)
        if self.verify:
            verified = self._use("advice", advised)
        loader = self.loader
        made = Diagnosis(
            dataset=type(loader.dataset).__qualname__,
            fetched=maker(loader.dataset),
            collated=definition(loader.collate_fn),
            iterable=is_iterable(loader),
            length=of.length,
            setting=self.setting,
            demand=self.demand,
            machine=of.machine,
            fetch=of.fetch,
            transfer=of.transfer,
            hot=tuple(hot),
            bounds=predict.bounds(of),
            predictions=tuple(predictions),
            now=now,
            best=best,
            advised=advised,
            recommended=advised.setting.arguments,
            seen=seen,
            verified=verified,
            duration=time.monotonic() - self.began,
        )
        told = (*self.remarks, *notes(made), *_open_files(loader.dataset))
        return msgspec.structs.replace(made, sentence=sentence(made), notes=told)

    def _seconds(self, part: str) -> float:
        return self.budget * _PARTS[part]

    def _measure(self, part: str, kind: Any, work: Callable[[forked.Tell], Any]) -> Any:
        seconds = self._seconds(part)
        try:
            return measured(work, kind, max(seconds, self.budget), lambda done: self.progress(part, done))
        finally:
            self.progress(part, 1.0)

    def _cores(self) -> Machine:
        self.progress("cores", 0.0)
        found = machine(start_of(self.loader), min(self._seconds("cores"), _CORES_AT_MOST))
        self.progress("cores", 1.0)
        return found

    def _fetch(self) -> Fetch:
        seconds = self._seconds("items")
        found: Fetch = self._measure("items", Fetch, lambda tell: measure_items(self.loader, seconds, tell))
        self.skip = len(found.batches)  # other batches next: these are in the system's cache now
        length = length_of(self.loader)
        if 0 <= length < 4 * self.skip:
            self.skip = 0
        return found

    def _hot(self, tell: forked.Tell) -> list[HotLine]:
        return hot_lines(self.loader, self._seconds("lines"), tell, skip=self.skip)

    def _transfer(self, fetch: Fetch) -> Transfer:
        seconds = self._seconds("workers")
        try:
            found: Transfer = self._measure(
                "workers",
                Transfer,
                lambda tell: measure_transfer(self.loader, fetch, seconds, tell, skip=self.skip),
            )
        except LoaderError as error:
            self.remarks.append(f"in a worker {error}")
            return Transfer()
        if not found.batches:
            self.remarks.append("no batch came from a worker within the time given: raise --budget")
        return found

    def _use(self, part: str, prediction: Prediction) -> Seen | None:
        """The loop under the setting of `prediction`, for real; None where it does not come far enough."""
        seconds, demand = self._seconds(part), self.demand
        try:
            found: Seen = self._measure(
                part,
                Seen,
                lambda tell: use(
                    self.loader, prediction.setting, demand.step, demand.busy, seconds, tell, skip=self.skip
                ),
            )
        except LoaderError as error:
            self.remarks.append(f"under num_workers={prediction.setting.workers} {error}")
            return None
        if not found.batches:
            return None
        return msgspec.structs.replace(found, predicted=prediction.step)


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
                f"workers cannot start ({start}): {name} cannot be pickled ({why}); "
                "define it at the top of a module and open files when they are first used"
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
                f"the dataset holds an open file (self.{name}): forked workers share its position and read "
                "over each other; open it in each worker when it is first used"
            )
    return found

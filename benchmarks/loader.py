"""How well the time of a step is predicted from one measurement, for loaders with 0 to 4 workers.

    python benchmarks/loader.py             # a quarter of an hour
    python benchmarks/loader.py --write     # writes benchmarks/sheets/loader.md
    python benchmarks/loader.py --quick     # one try each
    python benchmarks/loader.py computing   # one kind of items only

Datasets that compute, that wait, and that do both are measured by `diagnose` as a user would have it, alone
and beside one process that computes all the time; then each number of workers is run for real. The middle of
several tries is shown, with all of them beside it, and the part of the time in which the processes could run
that they had a core. Who else computes is looked at before and after each try; one beside which somebody
came or went is made again.
Exits with 1 when one is off by more than a tenth.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

import _sheet
import torch
from torch.utils.data import DataLoader, Dataset

from gapless.loading.forked import Tell, run_in_copy
from gapless.loading.machine import measure_other_load
from gapless.loading.measure import diagnose
from gapless.loading.measure_items import MAX_BATCHES, measure_items
from gapless.loading.measure_loop import run_setting
from gapless.loading.predict import MeasuredCosts, predict
from gapless.model.loading import Seen, Setting

BATCH_SIZE = 8
STEP_SECONDS = 0.020
CASES = {"computing": (5.0, 0.0), "waiting": (0.1, 20.0), "mixed": (2.5, 5.0)}
"""Milliseconds of an item: computing, waiting."""
BUSY = {"sleeps": 0.0, "computes": 1.0}
"""The host's activity in a step, and the share of it spent computing."""
WORKERS = (0, 1, 2, 3, 4)
MAX_ERROR = 0.10
MAX_LOAD_CHANGE = 0.15
"""Mean change in other processes' load (cores) above which a try does not count."""


class Items(Dataset):
    """Items that take so many seconds of CPU time and of waiting.

    CPU time, not loop turns: shared cores change speed by a third within seconds, which is not to be
    predicted.
    """

    def __init__(self, computing: float, wait: float) -> None:
        self.computing, self.wait = int(computing * 1e9), wait

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.wait:
            time.sleep(self.wait)
        end = time.thread_time_ns() + self.computing
        while time.thread_time_ns() < end:
            pass
        return torch.zeros(3, 64, 64), index


def burn() -> None:
    """Compute until killed."""
    while True:
        pass


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Run `count` computing processes beside."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=burn, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def ignore_progress(part: float) -> None:
    """Take progress and ignore it."""


def _run_steadily(loader: DataLoader, setting: Setting, of: MeasuredCosts, seconds: float) -> Seen:
    """Run the loader for `seconds`, or longer until enough batches were timed."""

    def loop(tell: Tell) -> Seen:
        return run_setting(loader, setting, of.demand.step, of.demand.busy, seconds, tell)

    observed = run_in_copy(loop, Seen, 9 * seconds, ignore_progress)
    if observed.batches >= 4 * max(setting.workers, 2) and observed.had > 0:
        return observed
    return _run_steadily(loader, setting, of, 2 * seconds)


def run_times(loader: DataLoader, of: MeasuredCosts, workers: int, count: int, seconds: float) -> list[Seen]:
    """Return `count` runs during which the machine's load stayed the same."""
    runs: list[Seen] = []
    setting = Setting(workers=workers, prefetch=2 if workers else 0)
    for _ in range(10 * count):
        before = measure_other_load(of.machine.allowed, 0.6)
        observed = _run_steadily(loader, setting, of, seconds)
        after = measure_other_load(of.machine.allowed, 0.6)
        if max(abs(load - of.machine.others) for load in (before, after)) < MAX_LOAD_CHANGE:
            runs.append(observed)
            if len(runs) == count:
                return runs
    raise SystemExit("the load of this machine changes all the time: try again when it is quiet")


def predict_and_measure(
    cases: Iterable[str], count: int, seconds: float
) -> Iterator[tuple[list[object], float]]:
    """Yield a row for each case, and its prediction's relative error."""
    for name in cases:
        cpu, wait = CASES[name]
        for host, busy in BUSY.items():
            loader = DataLoader(Items(cpu / 1e3, wait / 1e3), batch_size=BATCH_SIZE, num_workers=1)
            for count_beside in (0, 1):
                with neighbours(count_beside):
                    diagnosis = diagnose(loader, 12.0, STEP_SECONDS, busy=busy)
                    of = MeasuredCosts(
                        machine=diagnosis.machine,
                        fetch=diagnosis.fetch,
                        transfer=diagnosis.transfer,
                        demand=diagnosis.demand,
                        length=diagnosis.length,
                    )
                    for workers in WORKERS:
                        setting = Setting(workers=workers, prefetch=2 if workers else 0)
                        predicted = predict(of, setting).step
                        runs = run_times(loader, of, workers, count, seconds)
                        yield _row(predicted, runs, name, host, count_beside, workers)


def _row(
    predicted: float, runs: list[Seen], name: str, host: str, count_beside: int, workers: int
) -> tuple[list[object], float]:
    measured_step = statistics.median(observed.step for observed in runs)
    off = predicted / measured_step - 1
    row: list[object] = [
        name,
        host,
        count_beside,
        workers,
        f"{predicted / 1e6:.1f}",
        f"{measured_step / 1e6:.1f}",
        f"{100 * off:+.1f} %",
        ", ".join(f"{observed.step / 1e6:.1f}" for observed in runs),
        f"{100 * statistics.median(observed.had for observed in runs):.0f} %",
    ]
    print(*row, sep="  ", flush=True)
    return row, off


def overhead_table() -> str:
    """Return the CPU time that measuring adds to a batch, in µs and relative to some lengths."""
    from gapless.loading import timed

    loader = DataLoader(Items(0, 0.0), batch_size=BATCH_SIZE)
    plain, loop, probe = [], [], []
    for _ in range(25):
        plain.append(_time_per_batch(lambda: _drain(loader)))
        loop.append(_time_per_batch(lambda: _drain(timed(loader))))
        probe.append(_time_per_batch(lambda: measure_items(loader, 60.0, ignore_progress)))
    base = min(plain)
    table: list[list[object]] = []
    for name, tried in (("timed()", loop), ("diagnose, in its copy of the process", probe)):
        adds = max(min(tried) - base, 0.0)
        parts = [f"{100 * adds / (length * 1e6):.2f} %" for length in (1, 10, 100)]
        table.append([name, f"{adds / 1e3:.1f} µs", *parts])
    return _sheet.table(["", "adds to a batch", "of 1 ms", "of 10 ms", "of 100 ms"], table)


def _time_per_batch(work: Callable[[], object]) -> float:
    """Return the CPU nanoseconds per batch of `work`."""
    begin = time.process_time_ns()
    work()
    return (time.process_time_ns() - begin) / MAX_BATCHES


def _drain(loader: Iterable[object]) -> None:
    """Iterate over as many batches as are measured at most."""
    for _ in islice(loader, MAX_BATCHES):
        pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--write", action="store_true", help="write benchmarks/sheets/loader.md")
    parser.add_argument("--quick", action="store_true", help="one try each")
    options = parser.parse_args()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    table_rows = list(
        predict_and_measure(options.cases, 1 if options.quick else 3, 2.0 if options.quick else 3.0)
    )
    columns = [
        "items",
        "host in a step",
        "neighbours",
        "workers",
        "predicted ms",
        "measured ms",
        "off",
        "each try",
        "had a core",
    ]
    worst = max(abs(off) for _, off in table_rows)
    within = sum(abs(off) <= MAX_ERROR for _, off in table_rows)
    text = f"{within} of {len(table_rows)} within a tenth; the worst is off by {100 * worst:.0f} %.\n\n"
    text += _sheet.table(columns, [row for row, _ in table_rows])
    text += "\n## What measuring adds\n\n" + overhead_table()
    print(text)
    if options.write:
        head = _sheet.header(
            "Loaders: the step predicted and measured",
            "python benchmarks/loader.py --write",
            f"batches of {BATCH_SIZE}, steps of {1e3 * STEP_SECONDS:.0f} ms without input, workers by fork; "
            "items of "
            + "; ".join(
                f"{name}: {cpu} ms of processor time and {wait} ms of waiting"
                for name, (cpu, wait) in CASES.items()
            )
            + "; one measurement by diagnose for each five rows; the middle of "
            f'{1 if options.quick else 3} tries, all of them in column "each try"; load before: {load:.1f}',
        )
        _sheet.write("loader", head + text)
    return 0 if worst <= MAX_ERROR else 1


if __name__ == "__main__":
    sys.exit(main())

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

BATCH = 8
STEP = 0.020
CASES = {"computing": (5.0, 0.0), "waiting": (0.1, 20.0), "mixed": (2.5, 5.0)}
"""Milliseconds of an item: computing and waiting."""
BUSY = {"sleeps": 0.0, "computes": 1.0}
"""What the host does in a step, and the part of it in which it computes."""
WORKERS = (0, 1, 2, 3, 4)
LIMIT = 0.10
CHANGED = 0.15
"""Processes of others that come or go, in the mean, so that a try does not count."""


class Items(Dataset):
    """Items that take so many seconds of processor time, and so many of waiting.

    Not so many turns of a loop: the speed of cores that are shared with other machines changes by a third
    within seconds, and that is not what is to be predicted here.
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
    """Compute until somebody ends it."""
    while True:
        pass


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """So many processes that compute beside."""
    context = multiprocessing.get_context("fork")
    others = [context.Process(target=burn, daemon=True) for _ in range(count)]
    for one in others:
        one.start()
    try:
        yield
    finally:
        for one in others:
            one.kill()
            one.join()


def quiet(part: float) -> None:
    """Progress that nobody follows."""


def _run(loader: DataLoader, setting: Setting, of: MeasuredCosts, seconds: float) -> Seen:
    """A loop that is steady for a while, however long that takes here."""

    def loop(tell: Tell) -> Seen:
        return run_setting(loader, setting, of.demand.step, of.demand.busy, seconds, tell)

    seen = run_in_copy(loop, Seen, 9 * seconds, quiet)
    if seen.batches >= 4 * max(setting.workers, 2) and seen.had > 0:
        return seen
    return _run(loader, setting, of, 2 * seconds)


def tries(loader: DataLoader, of: MeasuredCosts, workers: int, count: int, seconds: float) -> list[Seen]:
    """Some runs, while nobody comes or goes."""
    found: list[Seen] = []
    setting = Setting(workers=workers, prefetch=2 if workers else 0)
    for _ in range(10 * count):
        before = measure_other_load(of.machine.allowed, 0.6)
        seen = _run(loader, setting, of, seconds)
        after = measure_other_load(of.machine.allowed, 0.6)
        if max(abs(others - of.machine.others) for others in (before, after)) < CHANGED:
            found.append(seen)
            if len(found) == count:
                return found
    raise SystemExit("the load of this machine changes all the time: try again when it is quiet")


def rows(cases: Iterable[str], count: int, seconds: float) -> Iterator[tuple[list[object], float]]:
    """A row for each case, and by how much its prediction is off."""
    for name in cases:
        cpu, wait = CASES[name]
        for host, busy in BUSY.items():
            loader = DataLoader(Items(cpu / 1e3, wait / 1e3), batch_size=BATCH, num_workers=1)
            for others in (0, 1):
                with neighbours(others):
                    told = diagnose(loader, 12.0, STEP, busy=busy)
                    of = MeasuredCosts(
                        machine=told.machine,
                        fetch=told.fetch,
                        transfer=told.transfer,
                        demand=told.demand,
                        length=told.length,
                    )
                    for workers in WORKERS:
                        setting = Setting(workers=workers, prefetch=2 if workers else 0)
                        predicted = predict(of, setting).step
                        found = tries(loader, of, workers, count, seconds)
                        yield _row(predicted, found, name, host, others, workers)


def _row(
    predicted: float, found: list[Seen], name: str, host: str, others: int, workers: int
) -> tuple[list[object], float]:
    measured_step = statistics.median(one.step for one in found)
    off = predicted / measured_step - 1
    row: list[object] = [
        name,
        host,
        others,
        workers,
        f"{predicted / 1e6:.1f}",
        f"{measured_step / 1e6:.1f}",
        f"{100 * off:+.1f} %",
        ", ".join(f"{one.step / 1e6:.1f}" for one in found),
        f"{100 * statistics.median(one.had for one in found):.0f} %",
    ]
    print(*row, sep="  ", flush=True)
    return row, off


def overhead() -> str:
    """Processor time that measuring adds to a batch, whatever its items take; and as part of some batches."""
    from gapless.loading import timed

    loader = DataLoader(Items(0, 0.0), batch_size=BATCH)
    plain, loop, probe = [], [], []
    for _ in range(25):
        plain.append(_each(lambda: _drain(loader)))
        loop.append(_each(lambda: _drain(timed(loader))))
        probe.append(_each(lambda: measure_items(loader, 60.0, quiet)))
    base = min(plain)
    table: list[list[object]] = []
    for name, tried in (("timed()", loop), ("diagnose, in its copy of the process", probe)):
        adds = max(min(tried) - base, 0.0)
        parts = [f"{100 * adds / (length * 1e6):.2f} %" for length in (1, 10, 100)]
        table.append([name, f"{adds / 1e3:.1f} µs", *parts])
    return _sheet.table(["", "adds to a batch", "of 1 ms", "of 10 ms", "of 100 ms"], table)


def _each(work: Callable[[], object]) -> float:
    """Nanoseconds of processor time for each of the batches that `work` makes."""
    begin = time.process_time_ns()
    work()
    return (time.process_time_ns() - begin) / MAX_BATCHES


def _drain(loader: Iterable[object]) -> None:
    """As many batches as are measured at most."""
    for _ in islice(loader, MAX_BATCHES):
        pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--write", action="store_true", help="write benchmarks/sheets/loader.md")
    parser.add_argument("--quick", action="store_true", help="one try each")
    wishes = parser.parse_args()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    made = list(rows(wishes.cases, 1 if wishes.quick else 3, 2.0 if wishes.quick else 3.0))
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
    worst = max(abs(off) for _, off in made)
    within = sum(abs(off) <= LIMIT for _, off in made)
    text = f"{within} of {len(made)} within a tenth; the worst is off by {100 * worst:.0f} %.\n\n"
    text += _sheet.table(columns, [row for row, _ in made])
    text += "\n## What measuring adds\n\n" + overhead()
    print(text)
    if wishes.write:
        head = _sheet.header(
            "Loaders: the step predicted and measured",
            "python benchmarks/loader.py --write",
            f"batches of {BATCH}, steps of {1e3 * STEP:.0f} ms without input, workers by fork; items of "
            + "; ".join(
                f"{name}: {cpu} ms of processor time and {wait} ms of waiting"
                for name, (cpu, wait) in CASES.items()
            )
            + "; one measurement by diagnose for each five rows; the middle of "
            f'{1 if wishes.quick else 3} tries, all of them in column "each try"; load before: {load:.1f}',
        )
        _sheet.write("loader", head + text)
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())

"""What `gapless loader` says of ten datasets, against a plain loop in turns with it.

    flock -x LOCK python benchmarks/loader_datasets.py png jpeg   # some of them, kept in --kept
    python benchmarks/loader_datasets.py --write                  # the sheet of all that is kept

Images, audio, text, tables, archives and graphs, of files that the script writes itself, are each gone
through with no worker to three, on an idle machine and beside two processes that compute all the time. The
plain loop is the script's own: nothing of Gapless is in it. It runs before and after each measurement, and
once under the setting that is advised; where the two runs before and after differ by more than a tenth the
machine changed meanwhile, and that is shown. An idle machine is waited for, and what somebody came into the
midst of is made again. Exits with 1 when a headline is off by more than a quarter.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import _sheet
import torch
from _datasets import DATASETS, Make, shape, write_dataset
from loader import neighbours
from torch.utils.data import DataLoader

from gapless.loading import diagnose, tune
from gapless.loading.machine import OtherLoad
from gapless.model.loading import Diagnosis

STEP_SECONDS = 0.020
WORKERS = (0, 1, 2, 3)
BUSY_PROCESSES = (0, 2)
CLOSE, WRONG = 0.10, 0.25
LOOP_SECONDS, DIAGNOSE_SECONDS = 1.5, 6.0
MAX_IDLE_LOAD = 0.25
"""Cores that others may use on a machine that counts as idle."""


def spin(seconds: float) -> None:
    """Compute for `seconds` of thread time, as the host does in a training step."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def _loop(loader: DataLoader, seconds: float, connection: Any) -> None:
    """Send the mean milliseconds of a step, without those at the beginning of a pass; runs in a child
    process."""
    torch.set_num_threads(1)
    warm = 2 * loader.num_workers + 2
    total = count = 0.0
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds or not count:
        before = 0.0
        for number, _ in enumerate(loader):
            spin(STEP_SECONDS)
            now = time.perf_counter()
            if number > warm:
                total, count = total + now - before, count + 1
            before = now
            if now - begin > seconds and count > 8:
                break
    connection.send(1e3 * total / count)


def time_plain_loop(loader: DataLoader, seconds: float = LOOP_SECONDS) -> float:
    """Return the milliseconds of a step of a plain loop."""
    context = multiprocessing.get_context("fork")
    here, writer = context.Pipe(duplex=False)
    process = context.Process(target=_loop, args=(loader, seconds, writer))
    process.start()
    writer.close()
    took: float = here.recv()
    process.join()
    return took


def measure_case(name: str, make: Make, workers: int, busy: int) -> dict[str, Any]:
    """Measure the loader between two plain loops, then a loop under the recommended setting."""
    loader = make(workers)
    with neighbours(busy):
        time.sleep(0.5 * bool(busy))
        before = time_plain_loop(loader)
        diagnosis = diagnose(loader, DIAGNOSE_SECONDS, STEP_SECONDS)
        after = time_plain_loop(loader)
        advised = time_plain_loop(tune(loader, **diagnosis.recommended)) if diagnosis.recommended else 0.0
    return {
        "dataset": name,
        "workers": workers,
        "busy": busy,
        "before": before,
        "after": after,
        "loop": advised,
        **_diagnosis_fields(diagnosis),
    }


def measure_when_idle(
    name: str, make: Make, workers: int, busy: int, patience: float
) -> dict[str, Any] | None:
    """Measure the case while nobody else uses the machine; None if it is not idle within `patience`
    seconds."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        load = OtherLoad()
        time.sleep(1.0)
        if not busy and load.cores() > MAX_IDLE_LOAD:
            continue
        load = OtherLoad()
        measured_row = measure_case(name, make, workers, busy)
        if busy or load.cores() <= MAX_IDLE_LOAD:
            return measured_row
    return None


def _diagnosis_fields(diagnosis: Diagnosis) -> dict[str, Any]:
    assert diagnosis.now is not None
    assert diagnosis.advised is not None
    return {
        "batch": diagnosis.fetch.cpu / 1e6,
        "waiting": diagnosis.fetch.wait / 1e6,
        "doubt": diagnosis.doubt.kind if diagnosis.doubt is not None else "",
        "why": list(diagnosis.doubt.reasons) if diagnosis.doubt is not None else [],
        "now": diagnosis.step_now / 1e6,
        "predicted": diagnosis.now.step / 1e6,
        "take": diagnosis.advised.setting.workers,
        "then": diagnosis.step_advised / 1e6,
        "sentence": diagnosis.sentence,
    }


def headline_error(row: dict[str, Any]) -> float:
    """Return the relative error of the headline's current step against the plain loops."""
    return float(row["now"] / ((row["before"] + row["after"]) / 2) - 1)


def advice_error(row: dict[str, Any]) -> float:
    """Return the relative error of the step predicted for the recommended setting."""
    return float(row["then"] / row["loop"] - 1) if row["loop"] else 0.0


def table(kept: list[dict[str, Any]]) -> Iterator[list[object]]:
    """Yield the rows of the sheet."""
    for row in kept:
        is_stated = not row["doubt"]
        yield [
            row["dataset"],
            row["busy"],
            row["workers"],
            f"{row['before']:.1f}, {row['after']:.1f}",
            f"{row['predicted']:.1f}",
            f"{row['now']:.1f}" if is_stated else f"withheld: {row['doubt']}",
            f"{100 * headline_error(row):+.0f} %" if is_stated else "",
            row["take"] if is_stated else "",
            f"{row['loop']:.1f}" if is_stated else "",
            f"{row['then']:.1f}" if is_stated else "",
            f"{100 * advice_error(row):+.0f} %" if is_stated else "",
        ]


def summary(kept: list[dict[str, Any]]) -> tuple[str, bool]:
    """Summarize how many headlines are stated and how close; and whether none is wrong."""
    text, good = [], True
    for busy in BUSY_PROCESSES:
        rows = [row for row in kept if row["busy"] == busy]
        stated = [row for row in rows if not row["doubt"]]
        steady = [row for row in stated if abs(row["after"] / row["before"] - 1) <= CLOSE]
        offs = [abs(each) for row in stated for each in (headline_error(row), advice_error(row))]
        sure = [abs(headline_error(row)) for row in steady] + [abs(advice_error(row)) for row in steady]
        name = "beside two busy processes" if busy else "idle"
        if not offs:
            text.append(f"{name}: all {len(rows)} withheld")
            continue
        text.append(
            f"{name}: {len(stated)} of {len(rows)} told, {sum(each <= CLOSE for each in offs)} of "
            f"{len(offs)} numbers within a tenth of the plain loop, the worst off by {100 * max(offs):.0f} % "
            f"(where the plain loop itself stayed within a tenth: {sum(each <= CLOSE for each in sure)} of "
            f"{len(sure)}, worst {100 * max(sure, default=0):.0f} %)"
        )
        good = good and max(offs) <= WRONG
    return ".\n".join(text) + ".\n\n", good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("datasets", nargs="*", metavar="DATASET", help=", ".join(DATASETS))
    parser.add_argument("--busy", type=int, choices=BUSY_PROCESSES, help="only beside so many processes")
    parser.add_argument("--kept", type=Path, default=Path(tempfile.gettempdir()) / "loader_datasets.jsonl")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds to wait for an idle machine")
    parser.add_argument("--write", action="store_true", help="write the sheet of what is kept")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    kept = [json.loads(row) for row in options.kept.read_text().splitlines()] if options.kept.exists() else []
    done = {(row["dataset"], row["workers"], row["busy"]) for row in kept}
    for name in options.datasets:
        with tempfile.TemporaryDirectory() as folder:
            make = write_dataset(name, Path(folder))
            print(name, "a batch:", shape(next(iter(make(0)))), flush=True)
            for busy in BUSY_PROCESSES if options.busy is None else (options.busy,):
                for workers in WORKERS:
                    if (name, workers, busy) in done:
                        continue
                    measured_row = measure_when_idle(name, make, workers, busy, options.patience)
                    if measured_row is None:
                        print(name, busy, workers, "the machine was not idle", flush=True)
                        continue
                    kept.append(measured_row)
                    print(*next(table(kept[-1:])), kept[-1]["why"], sep="  ", flush=True)
                    with options.kept.open("a") as file:
                        file.write(json.dumps(kept[-1]) + "\n")
    order = list(DATASETS)
    kept.sort(key=lambda row: (order.index(row["dataset"]), row["busy"], row["workers"]))
    text, good = summary(kept)
    print(text)
    if options.write:
        columns = [
            "data",
            "busy",
            "workers",
            "plain loop, before and after ms",
            "simulated ms",
            "headline ms",
        ]
        columns += ["off", "take", "plain loop then ms", "headline then ms", "off"]
        head = _sheet.header(
            "Loaders of ten datasets: the headline and a plain loop",
            "python benchmarks/loader_datasets.py --write",
            f"steps of {1e3 * STEP_SECONDS:.0f} ms in which the host computes, workers by fork, files in the "
            f"page cache; `diagnose` with a budget of {DIAGNOSE_SECONDS:.0f} s between two plain loops of "
            f"{LOOP_SECONDS} s each, then one under the setting advised",
        )
        _sheet.write("loader_datasets", head + text + _sheet.table(columns, list(table(kept))))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

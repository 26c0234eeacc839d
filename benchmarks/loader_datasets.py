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

STEP = 0.020
WORKERS = (0, 1, 2, 3)
BUSY = (0, 2)
WITHIN, WRONG = 0.10, 0.25
SECONDS, BUDGET = 1.5, 6.0
QUIET = 0.25
"""Cores that others may use on an idle machine."""


def spin(seconds: float) -> None:
    """A training step: the host computes all the time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def _loop(loader: DataLoader, seconds: float, told: Any) -> None:
    """Milliseconds of a step, without those at the beginning of a pass; in a process of its own."""
    torch.set_num_threads(1)
    warm = 2 * loader.num_workers + 2
    total = count = 0.0
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds or not count:
        before = 0.0
        for number, _ in enumerate(loader):
            spin(STEP)
            now = time.perf_counter()
            if number > warm:
                total, count = total + now - before, count + 1
            before = now
            if now - begin > seconds and count > 8:
                break
    told.send(1e3 * total / count)


def plain(loader: DataLoader, seconds: float = SECONDS) -> float:
    """What a step of a plain loop takes, in milliseconds."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_loop, args=(loader, seconds, there))
    process.start()
    there.close()
    took: float = here.recv()
    process.join()
    return took


def case(name: str, make: Make, workers: int, busy: int) -> dict[str, Any]:
    """One measurement between two plain loops, and a loop under what is advised."""
    loader = make(workers)
    with neighbours(busy):
        time.sleep(0.5 * bool(busy))
        before = plain(loader)
        made = diagnose(loader, BUDGET, STEP)
        after = plain(loader)
        advised = plain(tune(loader, **made.recommended)) if made.recommended else 0.0
    return {
        "dataset": name,
        "workers": workers,
        "busy": busy,
        "before": before,
        "after": after,
        "loop": advised,
        **_said(made),
    }


def attempts(name: str, make: Make, workers: int, busy: int, patience: float) -> dict[str, Any] | None:
    """The case, if idle on a machine that nobody else used; None where it never was for so long."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        others = OtherLoad()
        time.sleep(1.0)
        if not busy and others.cores() > QUIET:
            continue
        others = OtherLoad()
        one = case(name, make, workers, busy)
        if busy or others.cores() <= QUIET:
            return one
    return None


def _said(made: Diagnosis) -> dict[str, Any]:
    assert made.now is not None
    assert made.advised is not None
    return {
        "batch": made.fetch.cpu / 1e6,
        "waiting": made.fetch.wait / 1e6,
        "doubt": made.doubt.kind if made.doubt is not None else "",
        "why": list(made.doubt.reasons) if made.doubt is not None else [],
        "now": made.step_now / 1e6,
        "predicted": made.now.step / 1e6,
        "take": made.advised.setting.workers,
        "then": made.step_advised / 1e6,
        "sentence": made.sentence,
    }


def off(row: dict[str, Any]) -> float:
    """By which part the headline's step of the loader as it is differs from the plain loops."""
    return float(row["now"] / ((row["before"] + row["after"]) / 2) - 1)


def off_then(row: dict[str, Any]) -> float:
    """The same of the setting that is advised."""
    return float(row["then"] / row["loop"] - 1) if row["loop"] else 0.0


def table(kept: list[dict[str, Any]]) -> Iterator[list[object]]:
    """Rows of the sheet."""
    for one in kept:
        told = not one["doubt"]
        yield [
            one["dataset"],
            one["busy"],
            one["workers"],
            f"{one['before']:.1f}, {one['after']:.1f}",
            f"{one['predicted']:.1f}",
            f"{one['now']:.1f}" if told else f"withheld: {one['doubt']}",
            f"{100 * off(one):+.0f} %" if told else "",
            one["take"] if told else "",
            f"{one['loop']:.1f}" if told else "",
            f"{one['then']:.1f}" if told else "",
            f"{100 * off_then(one):+.0f} %" if told else "",
        ]


def summary(kept: list[dict[str, Any]]) -> tuple[str, bool]:
    """How many are told, and how close; whether none is wrong."""
    text, good = [], True
    for busy in BUSY:
        rows = [one for one in kept if one["busy"] == busy]
        told = [one for one in rows if not one["doubt"]]
        steady = [one for one in told if abs(one["after"] / one["before"] - 1) <= WITHIN]
        offs = [abs(each) for one in told for each in (off(one), off_then(one))]
        sure = [abs(off(one)) for one in steady] + [abs(off_then(one)) for one in steady]
        name = "beside two busy processes" if busy else "idle"
        if not offs:
            text.append(f"{name}: all {len(rows)} withheld")
            continue
        text.append(
            f"{name}: {len(told)} of {len(rows)} told, {sum(each <= WITHIN for each in offs)} of {len(offs)} "
            f"numbers within a tenth of the plain loop, the worst off by {100 * max(offs):.0f} % "
            f"(where the plain loop itself stayed within a tenth: {sum(each <= WITHIN for each in sure)} of "
            f"{len(sure)}, worst {100 * max(sure, default=0):.0f} %)"
        )
        good = good and max(offs) <= WRONG
    return ".\n".join(text) + ".\n\n", good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("datasets", nargs="*", metavar="DATASET", help=", ".join(DATASETS))
    parser.add_argument("--busy", type=int, choices=BUSY, help="only beside so many processes")
    parser.add_argument("--kept", type=Path, default=Path(tempfile.gettempdir()) / "loader_datasets.jsonl")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds to wait for an idle machine")
    parser.add_argument("--write", action="store_true", help="write the sheet of what is kept")
    wishes = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    kept = [json.loads(row) for row in wishes.kept.read_text().splitlines()] if wishes.kept.exists() else []
    done = {(one["dataset"], one["workers"], one["busy"]) for one in kept}
    for name in wishes.datasets:
        with tempfile.TemporaryDirectory() as folder:
            make = write_dataset(name, Path(folder))
            print(name, "a batch:", shape(next(iter(make(0)))), flush=True)
            for busy in BUSY if wishes.busy is None else (wishes.busy,):
                for workers in WORKERS:
                    if (name, workers, busy) in done:
                        continue
                    one = attempts(name, make, workers, busy, wishes.patience)
                    if one is None:
                        print(name, busy, workers, "the machine was not idle", flush=True)
                        continue
                    kept.append(one)
                    print(*next(table(kept[-1:])), kept[-1]["why"], sep="  ", flush=True)
                    with wishes.kept.open("a") as file:
                        file.write(json.dumps(kept[-1]) + "\n")
    order = list(DATASETS)
    kept.sort(key=lambda one: (order.index(one["dataset"]), one["busy"], one["workers"]))
    text, good = summary(kept)
    print(text)
    if wishes.write:
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
            f"steps of {1e3 * STEP:.0f} ms in which the host computes, workers by fork, files in the page "
            f"cache; `diagnose` with a budget of {BUDGET:.0f} s between two plain loops of {SECONDS} s each, "
            "then one under the setting advised",
        )
        _sheet.write("loader_datasets", head + text + _sheet.table(columns, list(table(kept))))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

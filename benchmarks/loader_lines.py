"""The lines that `gapless loader` charges a batch's time to, against a clock that is read at every line.

    python benchmarks/loader_lines.py            # every dataset of `_line_datasets.py`
    python benchmarks/loader_lines.py --write    # writes benchmarks/sheets/loader_lines.md

The clock is a trace function: read when it is entered and left, so that its own time is left out, except for
Python's way to it, which is measured beside (an empty loop with and without) and taken off for each event.
Where lines are shorter than that, the clock stands around functions, and lines are added up by function.
The cost of sampling is batches made with it against batches made without, in turns. Exits with 1 when a
share is off by more than a tenth of the whole.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import _line_datasets
import _sheet
import torch
from _line_datasets import CASES, Case
from torch.utils.data import DataLoader

from gapless.loading import hot_lines as sampling
from gapless.loading.batches import BatchMaker, indices_of
from gapless.loading.forked import run_in_copy
from gapless.loading.hot_lines import find_hot_lines, note_time

SECONDS, ROUNDS = 4.0, 5
"""Seconds that each of the two observes a dataset, in so many turns."""
MAX_SHARE_ERROR = 0.10
FILE = _line_datasets.__file__


class LineClock:
    """Trace function that sums nanoseconds at each line of `_line_datasets.py`."""

    def __init__(self) -> None:
        self.spent: Counter[Any] = Counter()
        self.events: Counter[Any] = Counter()
        self.place: Any = None
        self.since = time.perf_counter_ns()

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        self.spent[self.place] += time.perf_counter_ns() - self.since
        self.events[self.place] += 1
        if frame.f_code.co_filename != FILE:
            self.since = time.perf_counter_ns()
            return None
        at: FrameType | None = frame.f_back if event == "return" else frame
        while at is not None and at.f_code.co_filename != FILE:
            at = at.f_back
        self.place = at.f_lineno if at is not None else None
        self.since = time.perf_counter_ns()
        return self

    def taken(self, each: float) -> dict[Any, float]:
        """Return the nanoseconds of each line, less `each` per event for Python's call of the trace
        function."""
        return {place: max(0.0, took - each * self.events[place]) for place, took in self.spent.items()}


class FunctionClock:
    """Sums nanoseconds in each function of a dataset whose functions are called only from `load`."""

    def __init__(self, dataset: Any) -> None:
        self.spent: Counter[Any] = Counter()
        for name, function in vars(type(dataset)).items():
            if not name.startswith("__") and name != "load":
                setattr(dataset, name, partial(self.call, name, partial(function, dataset)))

    def call(self, name: str, function: Any, *words: Any) -> Any:
        begin = time.perf_counter_ns()
        result = function(*words)
        self.spent[name] += time.perf_counter_ns() - begin
        return result


def event_cost() -> float:
    """Return the nanoseconds of Python's call of a trace function that it cannot measure itself."""

    def lines() -> float:
        begin = time.perf_counter_ns()
        for _ in range(20_000):
            pass
        return (time.perf_counter_ns() - begin) / 20_000

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        begin = time.perf_counter_ns()
        nonlocal inside
        inside += time.perf_counter_ns() - begin
        return trace

    plain = statistics.median(lines() for _ in range(5))
    costs_found = []
    for _ in range(5):
        inside = 0
        sys.settrace(trace)
        took = lines()
        sys.settrace(None)
        costs_found.append(took - inside / 20_000 - plain)
    return max(0.0, statistics.median(costs_found))


def run_under_clock(loader: DataLoader, functions: bool) -> list[Any]:
    """Return the clock's nanoseconds by place; runs in a child process."""
    each = 0.0 if functions else event_cost()
    clock = FunctionClock(loader.dataset) if functions else LineClock()
    maker = BatchMaker(loader)
    begin = time.perf_counter_ns()
    if isinstance(clock, LineClock):
        sys.settrace(clock)
    for indices in indices_of(loader):
        maker.collate([step() for step in maker.steps(indices)])
        if time.perf_counter_ns() - begin > 1e9 * SECONDS / ROUNDS:
            break
    sys.settrace(None)
    if isinstance(clock, LineClock):
        return list(clock.taken(each).items())
    rest = time.perf_counter_ns() - begin - sum(clock.spent.values())
    return [*clock.spent.items(), (None, rest)]


def sampling_cost(loader: DataLoader) -> float:
    """Return the share by which sampling makes batches slower; runs in a child process."""
    maker, took = BatchMaker(loader), {True: [], False: []}
    indices = indices_of(loader)
    for turn in range(12):
        with sampling._samples(Counter()) if turn % 2 else nullcontext():
            begin, count = time.process_time_ns(), 0
            while time.process_time_ns() - begin < 60e6 and count < 40:
                for index in islice(indices, 1):
                    maker.collate([step() for step in maker.steps(index)])
                count += 1
            took[bool(turn % 2)].append((time.process_time_ns() - begin) / count)
    return min(took[True]) / min(took[False]) - 1


def ignore_progress(part: float) -> None:
    """Take progress and ignore it."""


def sample_shares(loader: DataLoader, functions: bool) -> Counter[Any]:
    """Return Gapless's shares by place."""
    seconds = SECONDS / ROUNDS
    lines = run_in_copy(
        lambda tell: find_hot_lines(loader, seconds, tell), list, 20, ignore_progress, note_time
    )
    shares: Counter[Any] = Counter()
    for row in lines:
        line: dict[str, Any] = row["line"]
        place = line["line"]
        shares[_function_at(place) if functions else place] += row["share"]
    return shares


def _function_at(line: int) -> str:
    lines = Path(FILE).read_text().splitlines()[:line]
    return next(row.split("def ")[1].split("(")[0] for row in reversed(lines) if "def " in row)


def compare(case: Case) -> tuple[list[object], float]:
    """Return a row of the sheet, and the largest error of a share."""
    ours, truth = Counter[Any](), Counter[Any]()
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        loader = case.make(Path(folder))
        for _ in range(ROUNDS):
            ours.update(sample_shares(loader, case.functions))
            times = dict(
                run_in_copy(lambda tell: run_under_clock(loader, case.functions), list, 20, ignore_progress)
            )
            whole = sum(times.values())
            truth.update({place: took / whole for place, took in times.items()})
        slower = run_in_copy(lambda tell: sampling_cost(loader), float, 60, ignore_progress)
    del truth[None]
    off = {place: (ours[place] - truth[place]) / ROUNDS for place in [*ours, *truth]}
    worst = max(abs(part) for part in off.values())
    largest, named_first = max(truth, key=truth.__getitem__), max(ours, key=ours.__getitem__)
    row: list[object] = [
        case.name,
        "functions" if case.functions else "lines",
        place_text(largest),
        f"{truth[largest] / ROUNDS:.1%}",
        f"{ours[largest] / ROUNDS:.1%}",
        "yes" if named_first == largest else f"no: {place_text(named_first)}",
        f"{100 * worst:.1f}",
        f"{slower:+.0%}",
    ]
    return row, worst


def place_text(place: Any) -> str:
    """Return the code of a line, or the name of a function."""
    if isinstance(place, str):
        return f"`{place}()`"
    return "`" + Path(FILE).read_text().splitlines()[place - 1].strip()[:48] + "`"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    rows, offs = [], []
    for case in CASES:
        if options.names and case.name not in options.names:
            continue
        row, off = compare(case)
        rows.append(row)
        offs.append(off)
        print(*row, sep=" | ", flush=True)
    columns = [
        "dataset",
        "clock at",
        "most time at",
        "clock",
        "Gapless",
        "the same first",
        "worst, points",
        "cost",
    ]
    text = _sheet.table(columns, rows)
    text += (
        f"\n{sum(off <= 0.05 for off in offs)} of {len(offs)} datasets have every share within 5 points "
        f"of the clock's, the worst is {100 * max(offs):.1f} points off. *Cost* is the processor time "
        "that batches take in addition while they are sampled.\n"
    )
    if options.write:
        method = "see the script; 4 s for each clock, in five turns, in copies of one process"
        header = _sheet.header("Lines of a loader", "python benchmarks/loader_lines.py --write", method)
        (_sheet.SHEETS / "loader_lines.md").write_text(header + text)
    return int(max(offs) > MAX_SHARE_ERROR)


if __name__ == "__main__":
    raise SystemExit(main())

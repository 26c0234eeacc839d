"""Races on a GPU: each wrong pattern shows its wrong number, its corrected twin the right one.

    python benchmarks/gpu/races.py                 # on a machine with a GPU: writes races.md
    python benchmarks/gpu/races.py --self-check    # anywhere: the emulated device, which finds the races

The other stream is given long work first (``torch.cuda._sleep``), so that whoever does not wait for it comes
too early for certain. Each version runs several times, each pattern in a process of its own; beside it stands
the rule that `gapless.emulate()` finds in the same function. GAP806 needs no GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import _experiment
import _sheet
import torch
from _experiment import Results

TIMES = 5
N = 1 << 20
CYCLES = 200_000_000
"""About a tenth of a second."""
Case = Callable[[bool], tuple[float, float]]
CASES: dict[str, tuple[str, Case]] = {}


def case(rule: str) -> Callable[[Case], Case]:
    def register(function: Case) -> Case:
        CASES[function.__name__.replace("_", " ")] = (rule, function)
        return function

    return register


def slow() -> None:
    """Keep the current stream busy for a while."""
    torch.cuda._sleep(CYCLES)


def full(value: float) -> torch.Tensor:
    return torch.full((N,), value, device="cuda")


def pinned(value: float) -> torch.Tensor:
    return torch.full((N,), value).pin_memory()


def current() -> torch.cuda.Stream:
    return torch.cuda.current_stream()


def mean(x: torch.Tensor) -> torch.Tensor:
    """Return the mean of equal numbers, which is exact."""
    return x.double().mean()


SIDE: list[torch.cuda.Stream] = []


def beside() -> torch.cuda.Stream:
    """Return a second stream, idle and always the same, so that its memory is allocated."""
    if not SIDE:
        SIDE.append(torch.cuda.Stream())
    torch.cuda.synchronize()
    return SIDE[0]


@case("GAP801")
def copy_read_too_early(right: bool) -> tuple[float, float]:
    x, host = full(7), pinned(-1)
    slow()
    host.copy_(x, non_blocking=True)
    if right:
        current().synchronize()
    return float(mean(host)), 7


@case("GAP801")
def loss_logged_too_early(right: bool) -> tuple[float, float]:
    losses, copied, done = [], [], []
    host = [torch.zeros(1).pin_memory() for _ in range(3)]
    for step in range(3):
        slow()
        loss = torch.full((1,), float(step + 1), device="cuda")
        host[step].copy_(loss, non_blocking=True)
        done.append(current().record_event())
        copied.append(host[step])
    for value, event in zip(copied, done, strict=True):
        if right:
            event.synchronize()
        losses.append(value.item())
    return sum(losses), 6


@case("GAP801")
def event_recorded_before_the_copy(right: bool) -> tuple[float, float]:
    x, host, copied = full(7), pinned(-1), torch.cuda.Event()
    if not right:
        copied.record()
    slow()
    host.copy_(x, non_blocking=True)
    if right:
        copied.record()
    copied.synchronize()
    return float(mean(host)), 7


@case("GAP802")
def staging_refilled_too_early(right: bool) -> tuple[float, float]:
    host, x = pinned(1), full(0)
    slow()
    x.copy_(host, non_blocking=True)
    if right:
        current().synchronize()
    host.fill_(2)
    return float(mean(x)), 1


@case("GAP803")
def made_there_used_here(right: bool) -> tuple[float, float]:
    y, side = full(0), beside()
    with torch.cuda.stream(side):
        slow()
        y.fill_(5)
    if right:
        current().wait_stream(side)
    return float(mean(y)), 5


@case("GAP803")
def made_here_used_there(right: bool) -> tuple[float, float]:
    x, side = full(0), beside()
    slow()
    x.fill_(5)
    if right:
        side.wait_stream(current())
    with torch.cuda.stream(side):
        y = mean(x)
        return y.item(), 5


@case("GAP803")
def overwritten_while_it_is_read(right: bool) -> tuple[float, float]:
    x, side = full(3), beside()
    with torch.cuda.stream(side):
        slow()
        y = x * 2
    if right:
        current().wait_stream(side)
    x.zero_()
    current().wait_stream(side)
    return float(mean(y)), 6


@case("GAP803")
def event_recorded_too_early(right: bool) -> tuple[float, float]:
    y, side, ready = full(0), beside(), torch.cuda.Event()
    with torch.cuda.stream(side):
        if not right:
            ready.record()
        slow()
        y.fill_(5)
        if right:
            ready.record()
    current().wait_event(ready)
    return float(mean(y)), 5


@case("GAP803")
def batch_prefetched_and_not_waited_for(right: bool) -> tuple[float, float]:
    host, batch, side = pinned(4), full(0), beside()
    with torch.cuda.stream(side):
        slow()
        batch.copy_(host, non_blocking=True)
    if right:
        current().wait_stream(side)
    return float(mean(batch)), 4


@case("GAP804")
def freed_while_another_stream_reads_it(right: bool) -> tuple[float, float]:
    x = full(3)
    side = beside()
    side.wait_stream(current())
    with torch.cuda.stream(side):
        slow()
        y = x * 1
    if right:
        x.record_stream(side)
    del x
    z = full(9)  # of the same size: the same memory, unless it was recorded
    current().wait_stream(side)
    got = float(mean(y))
    del z
    return got, 3


@case("GAP804")
def made_by_another_stream_and_freed_there(right: bool) -> tuple[float, float]:
    side = beside()
    with torch.cuda.stream(side):
        x = full(3)
    current().wait_stream(side)
    slow()
    y = x * 1
    if right:
        x.record_stream(current())
    with torch.cuda.stream(side):
        del x
        z = full(9)
    current().wait_stream(side)
    got = float(mean(y))
    del z
    return got, 3


@case("GAP805")
def gathered_and_not_waited_for(right: bool) -> tuple[float, float]:
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    x, out = full(0), full(0)
    # The collective's stream waits for this one, and is late as long as that is busy.
    with torch.cuda.stream(beside()):
        slow()
        x.fill_(5)
        work = dist.all_gather_into_tensor(out, x, async_op=True)
    if right:
        work.wait()
    got = float(mean(out))
    torch.cuda.synchronize()
    return got, 5


def part(name: str, emulated: bool) -> Any:
    way, _, which = name.partition(" ")
    function = CASES[which][1]
    if way == "predicted":
        return rules(function)
    results_of: Results = {}
    with _experiment.device(emulated):
        function(True)  # kernels are loaded, and memory is there
        for version in ("wrong", "right"):
            results_of[version] = []
            for _ in range(1 if emulated else TIMES):
                torch.cuda.synchronize()
                results_of[version].append(function(version == "right"))
    return results_of


def rules(function: Case) -> Results:
    """Return the rules found in both versions without a GPU."""
    import gapless
    from gapless.analyze.findings.race_findings import findings

    codes: Results = {}
    for version in ("wrong", "right"):
        SIDE.clear()
        with gapless.emulate() as emulated:
            function(version == "right")
        codes[version] = sorted({finding.code for finding in findings(emulated.session.races)})
    return codes


def sheet(results: Results) -> tuple[str, list[str]]:
    rows: list[list[object]] = []
    wrong = []
    for name, (rule, _) in CASES.items():
        said = results.get(f"predicted {name}", {})
        cells: list[object] = [name, rule, ", ".join(said.get("wrong", [])) or "–"]
        for version in ("wrong", "right"):
            runs = results.get(f"measured {name}", {}).get(version)
            if runs is None:
                cells.append("not measured")
                continue
            off = [got for got, wanted in runs if got != wanted]
            numbers = ", ".join(f"{got:g}" for got in dict.fromkeys(off))
            cells.append(f"{len(off)} of {len(runs)}" + (f": {numbers} for {runs[0][1]:g}" if off else ""))
            if version == "right" and off:
                wrong.append(f"{name}: the right version gives {numbers}")
        rows.append(cells)
        if said and (said["wrong"] != [rule] or said["right"]):
            wrong.append(f"{name}: found {said}, and not {rule} in the wrong version alone")
    columns = ["pattern", "rule", "found without a GPU", "wrong numbers of the wrong version", "of the right"]
    return _sheet.table(columns, rows), wrong


def script() -> _experiment.Script:
    measured = list(CASES)[::4] if _experiment.SELF_CHECK else list(CASES)
    names = [f"measured {name}" for name in measured] + [f"predicted {name}" for name in CASES]
    return _experiment.Script(
        __doc__, __file__, "Races on a GPU",
        f"{TIMES} runs of each version, {CYCLES:,} cycles of sleep on the stream that is not waited for",
        part, sheet, names, seconds=60,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(script().main())

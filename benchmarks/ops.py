"""Each operation of gapless.ops beside the line it replaces: time, waits, operators launched."""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import _sheet
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

import gapless
from gapless import ops

CLASSES = 10


class Data:
    """Random tensors of `rows` rows on `device`; `density` of the masks' elements are true."""

    def __init__(self, rows: int, density: float, device: str) -> None:
        random = torch.Generator().manual_seed(0)

        def put(value: Tensor) -> Tensor:
            return value.to(device)

        self.rows, self.kept = rows, max(int(rows * density * 1.2) + 8, 1)
        self.x = put(torch.randn(rows, CLASSES, generator=random)).requires_grad_()
        self.y = put(torch.rand(rows, CLASSES, generator=random))
        self.column = put(torch.randn(rows, generator=random))
        self.chosen = put(torch.rand(rows, generator=random) < density)
        self.mask = put(torch.rand(rows, CLASSES, generator=random) < density)
        self.labels = put(torch.randint(CLASSES, (rows,), generator=random))
        self.repeats = put(torch.randint(3, (rows,), generator=random))
        self.source = put(torch.randn(rows * CLASSES, generator=random)).requires_grad_()
        self.flag = put(torch.tensor(True))


@dataclass(frozen=True)
class Case:
    """Two ways to one result; `masked` if their times depend on a mask."""

    name: str
    theirs: Callable[[Data], Any]
    ours: Callable[[Data], Any]
    masked: bool = False


def _assign(d: Data) -> Tensor:
    x = d.x.clone()
    x[d.mask] = d.y[d.mask]
    return x


def _assign_number(d: Data) -> Tensor:
    x = d.y.clone()
    x[d.labels] = 0.5
    return x


CASES = [
    Case("masked_mean", lambda d: d.x[d.mask].mean(), lambda d: ops.masked_mean(d.x, d.mask), True),
    Case("masked_var", lambda d: d.x[d.mask].var(), lambda d: ops.masked_var(d.x, d.mask), True),
    Case(
        "cross_entropy",
        lambda d: F.cross_entropy(d.x[d.chosen], d.labels[d.chosen]),
        lambda d: ops.cross_entropy(d.x, d.labels, mask=d.chosen),
        True,
    ),
    Case(
        "mse_loss",
        lambda d: F.mse_loss(d.x[d.mask], d.y[d.mask]),
        lambda d: ops.mse_loss(d.x, d.y, d.mask),
        True,
    ),
    Case(
        "compact",
        lambda d: d.x[d.chosen],
        lambda d: ops.compact(d.x, d.chosen, size=d.kept, fill_value=-1).values,
        True,
    ),
    Case(
        "nonzero",
        lambda d: d.chosen.nonzero(),
        lambda d: ops.nonzero(d.chosen, size=d.kept, fill_value=-1).values,
        True,
    ),
    Case("assign", _assign, lambda d: ops.assign(d.x, d.mask, d.y), True),
    Case(
        "masked_scatter",
        lambda d: d.x.masked_scatter(d.mask, d.source),
        lambda d: ops.masked_scatter(d.x, d.mask, d.source),
        True,
    ),
    Case("assign, a number", _assign_number, lambda d: ops.assign(d.y, d.labels, 0.5)),
    Case(
        "repeat_interleave",
        lambda d: d.x.repeat_interleave(d.repeats, dim=0),
        lambda d: ops.repeat_interleave(d.x, d.repeats, dim=0, output_size=2 * d.rows).values,
    ),
    Case(
        "unique",
        lambda d: torch.unique(d.labels),
        lambda d: ops.unique(d.labels, size=CLASSES, fill_value=-1).values,
    ),
    Case("count_unique", lambda d: torch.unique(d.labels).numel(), lambda d: ops.count_unique(d.labels)),
    Case(
        "count_unique, bounded",
        lambda d: torch.unique(d.labels).numel(),
        lambda d: ops.count_unique(d.labels, high=CLASSES),
    ),
    Case(
        "bincount",
        lambda d: torch.bincount(d.labels, minlength=CLASSES),
        lambda d: ops.bincount(d.labels, size=CLASSES),
    ),
    Case("histc", lambda d: torch.histc(d.column, 50), lambda d: ops.histc(d.column, 50)),
    Case(
        "histogram",
        lambda d: torch.histogram(d.column.cpu(), 50)[0],
        lambda d: ops.histogram(d.column, 50)[0],
    ),
    Case("one_hot", lambda d: F.one_hot(d.labels), lambda d: ops.one_hot(d.labels, CLASSES)),
    Case("scalar", lambda d: torch.tensor(0.5, device=d.x.device), lambda d: ops.scalar(0.5, d.x.device)),
    Case(
        "choose",
        lambda d: d.column if d.flag else -d.column,
        lambda d: ops.choose(d.flag, d.column, -d.column),
    ),
    Case("all_finite", lambda d: bool(d.y.isfinite().all()), lambda d: ops.all_finite(d.y)),
]


def run_with_backward(call: Callable[[Data], Any], data: Data) -> None:
    """Run the call, and its backward pass if it has one."""
    result = call(data)
    if isinstance(result, Tensor) and result.requires_grad:
        leaves = [leaf for leaf in (data.x, data.source) if leaf.requires_grad]
        torch.autograd.grad(result.sum(), leaves, allow_unused=True)


def time_both(case: Case, data: Data, rounds: int, calls: int) -> tuple[list[float], list[float]]:
    """Return the seconds per call of `theirs` and `ours`, in turn; on a GPU until its work ends."""
    finish = torch.cuda.synchronize if data.x.is_cuda else lambda: None
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds + 1):
        for way, times in zip((case.theirs, case.ours), seconds, strict=True):
            finish()
            began = time.perf_counter()
            for _ in range(calls):
                run_with_backward(way, data)
            finish()
            if turn:  # the first warms up
                times.append((time.perf_counter() - began) / calls)
    return seconds


def count_waits(case: Case, data: Data) -> list[int]:
    """Return the waits of one call of each: warnings of torch's debug mode, or counts of the emulated
    device."""
    counts = []
    if data.x.is_cuda:
        for way in (case.theirs, case.ours):
            torch.cuda.set_sync_debug_mode("warn")
            try:
                with warnings.catch_warnings(record=True) as heard:
                    warnings.simplefilter("always")
                    run_with_backward(way, data)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            counts.append(sum("synchronizing CUDA operation" in str(warning.message) for warning in heard))
        return counts
    with gapless.emulate() as emulated:
        data = Data(64, 0.5, "cuda")
        for way in (case.theirs, case.ours):
            before = emulated.waits
            run_with_backward(way, data)
            counts.append(emulated.waits - before)
    return counts


class LaunchCounter(TorchDispatchMode):
    """Counts operators that compute or copy; views launch nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
        self.count += not view and not func._schema.name.startswith("aten::empty")
        return func(*args, **(kwargs or {}))


def count_launches(case: Case, data: Data) -> list[int]:
    """Return the kernels and copies of one call of each; without a GPU, operators that would launch some."""
    counts = []
    for way in (case.theirs, case.ours):
        run_with_backward(way, data)
        if data.x.is_cuda:
            with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as recorded:
                run_with_backward(way, data)
                torch.cuda.synchronize()
            counts.append(
                sum(event.device_type == torch.autograd.DeviceType.CUDA for event in recorded.events())
            )
        else:
            with LaunchCounter() as counted:
                run_with_backward(way, data)
            counts.append(counted.count)
    return counts


def row(case: Case, density: float | None, data: Data, rounds: int, calls: int) -> list[object]:
    theirs, ours = (statistics.median(times) for times in time_both(case, data, rounds, calls))
    before, after = count_waits(case, data)
    more, less = count_launches(case, data)
    return [
        case.name,
        "" if density is None else f"{density:g}",
        f"{theirs * 1e6:,.0f}",
        f"{ours * 1e6:,.0f}",
        f"{ours / theirs:.2f}",
        f"{before} → {after}",
        f"{more} → {less}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1 << 20 if torch.cuda.is_available() else 1 << 16)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=50 if torch.cuda.is_available() else 5)
    parser.add_argument("--density", type=float, nargs="+", default=[0.001, 0.1, 0.5, 1.0])
    args = parser.parse_args()
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = []
    for case in CASES:
        for density in args.density if case.masked else [None]:
            data = Data(args.rows, 0.5 if density is None else density, device)
            rows.append(row(case, density, data, args.rounds, args.calls))
    where = "by torch's debug mode" if device == "cuda" else "on the emulated device"
    kind = "kernels and copies" if device == "cuda" else "operators that launch something"
    text = _sheet.header(
        f"gapless.ops beside the lines they replace, on {'a GPU' if device == 'cuda' else 'the CPU'}",
        "python benchmarks/ops.py",
        f"{args.rows:,} rows of {CLASSES} columns, float32, forward and backward; both in turn, "
        f"{args.rounds} rounds of {args.calls} calls after one that warms up, medians; one thread; waits "
        f"{where}; launches: {kind} in one call",
    )
    text += (
        "Ratios above 1: the operation takes longer by itself than the line it replaces. On the CPU nothing "
        "waits, so that is all that can be seen; on a GPU the line also stops the host, which calls repeated "
        "by themselves hardly show: `gapless trace` prices the wait in its step.\n\n"
    )
    text += _sheet.table(
        ["operation", "density", "original, µs", "gapless.ops, µs", "ratio", "waits", "launches"], rows
    )
    print(_sheet.write("ops_gpu" if device == "cuda" else "ops", text).read_text())


if __name__ == "__main__":
    main()

"""Every metric and operation of Gapless on the GPU: the CPU's values, and no synchronization.

    python benchmarks/gpu/values.py                 # on a machine with a GPU: writes values.md
    python benchmarks/gpu/values.py --self-check    # anywhere: the emulated device in the GPU's place

Each sample of the tests (tests/metrics/samples.py) is updated, reset, called and computed on the device while
every synchronization that torch knows of is an error; its result is compared with that of the same batches on
the CPU. Then each operation of gapless.ops (benchmarks/ops.py), forward and backward, with the gradient.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import _experiment
import _sheet
import torch
from _experiment import Results
from torch.utils._pytree import tree_flatten

SHARDS = 4
"""Processes that share the samples."""
ROWS = 4096
"""Rows of an operation's input."""
TOLERANCE = 1e-4
"""Largest difference from the CPU's value, relative to it where it is above 1: float32 sums in another
order."""


@contextmanager
def syncs_are_errors() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def use(sample: Any, device: str) -> Any:
    """Update, reset and compute a metric as a training loop does; return its value."""
    metric = sample.make().to(device)
    batches = [sample.data(seed, device) for seed in range(4)]
    if device == "cpu":
        return run(metric, batches, sample.may_wait)
    torch.cuda.synchronize()
    if sample.may_wait:
        return run(metric, batches, True)
    with syncs_are_errors():
        return run(metric, batches, False)


def run(metric: Any, batches: list[Any], may_wait: bool) -> Any:
    for batch in batches[:2]:
        metric.update(*batch)
    metric.reset()
    if not may_wait:
        metric(*batches[2])
        metric.compute()
    metric.update(*batches[3])
    return metric.compute()


def apart(value: Any, wanted: Any) -> float:
    """Return the largest difference of two results, as `TOLERANCE` measures it; infinity where their shapes
    differ or one alone is not a number."""
    values, places = tree_flatten(value)
    wanteds, wanted_places = tree_flatten(wanted)
    if len(values) != len(wanteds) or str(places) != str(wanted_places):
        return float("inf")
    largest = 0.0
    for own, other in zip(values, wanteds, strict=True):
        if not isinstance(own, torch.Tensor):
            largest = max(largest, 0.0 if own == other else float("inf"))
            continue
        own, other = own.detach().cpu().double(), other.detach().cpu().double()
        if own.shape != other.shape or not torch.equal(own.isnan(), other.isnan()):
            return float("inf")
        difference = (own - other).nan_to_num(0.0, 0.0, 0.0).abs() / other.nan_to_num().abs().clamp(min=1)
        infinite = (own.isinf() | other.isinf()) & (own != other)
        largest = (
            float("inf") if infinite.any() else max(largest, float(difference.max()) if own.numel() else 0)
        )
    return largest


def metric_outcomes(shard: int) -> Results:
    """Return for each sample of a shard how far its value is off, or its error."""
    module = _experiment.load_script(_experiment.ROOT / "tests" / "metrics" / "samples.py", "metric_samples")
    return outcomes(
        (sample.label, lambda sample=sample: apart(use(sample, "cuda"), use(sample, "cpu")))
        for sample in module.SAMPLES[shard::SHARDS]
    )


def operation_outcomes() -> Results:
    """Return for each operation how far its result and gradients are off those on the CPU, or its error."""
    module = _experiment.load_benchmark("ops")

    def compare(case: Any) -> float:
        results = []
        for device in ("cuda", "cpu"):
            data = module.Data(ROWS, 0.3, device)
            if device == "cuda":
                torch.cuda.synchronize()
                with syncs_are_errors():
                    module.run_with_backward(case.ours, data)
                    result = case.ours(data)
            else:
                module.run_with_backward(case.ours, data)
                result = case.ours(data)
            gradients = [tensor.grad for tensor in (data.x, data.source) if tensor.grad is not None]
            results.append([result, gradients])
        return apart(*results)

    return outcomes((case.name, lambda case=case: compare(case)) for case in module.CASES)


def outcomes(named: Iterator[tuple[str, Callable[[], float]]]) -> Results:
    differences: Results = {}
    for name, compare in named:
        try:
            differences[name] = compare()
        except Exception as error:
            torch.cuda.set_sync_debug_mode("default")
            differences[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160]}"
    return differences


def part(name: str, emulated: bool) -> Any:
    way, _, shard = name.partition(" ")
    warnings.simplefilter("ignore")
    with _experiment.device(emulated):
        return metric_outcomes(int(shard)) if way == "metrics" else operation_outcomes()


def sheet(results: Results) -> tuple[str, list[str]]:
    text, wrong = "", []
    shards = [result for name, result in results.items() if name.startswith("metrics")]
    metrics = {name: off for shard in shards for name, off in shard.items()}
    for title, off_by in (("metrics", metrics), ("operations", results.get("operations", {}))):
        bad = {name: off for name, off in off_by.items() if isinstance(off, str) or off > TOLERANCE}
        wrong += [f"{name}: {off}" for name, off in bad.items()]
        text += (
            f"{len(off_by) - len(bad)} of {len(off_by)} {title} give the CPU's values and do not wait.\n\n"
        )
        if bad:
            rows: list[list[object]] = [
                [name, off if isinstance(off, str) else f"off by {off:.1e}"] for name, off in bad.items()
            ]
            text += _sheet.table([title, "what"], rows) + "\n"
    return text, wrong


def script() -> _experiment.Script:
    return _experiment.Script(
        __doc__, __file__, "Metrics and operations on a GPU",
        f"every sample of the tests, every operation with {ROWS:,} rows; torch's debug mode raises on a "
        "synchronization, except where a result's length depends on the data; largest difference "
        f"{TOLERANCE:g}",
        part, sheet, [*(f"metrics {shard}" for shard in range(SHARDS)), "operations"], seconds=100,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(script().main())

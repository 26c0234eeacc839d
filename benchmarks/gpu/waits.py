"""Ground truth for the table of waits: what Gapless predicts without a GPU, beside what a real GPU does.

    python benchmarks/gpu/waits.py                 # on a machine with a GPU: writes waits.md and waits.json
    python benchmarks/gpu/waits.py --self-check    # anywhere: the emulated device, some operators

Each entry of torch's ``op_db`` runs forward and backward with its own sample inputs on the device, in four
ways: while torch's synchronization debug mode warns; behind work that keeps the stream busy, where a call
that waits for it takes as long, whatever anyone says; under the profiler with shapes, for `gapless trace
--evidence`; and on the emulated device, in a process that cannot see the GPU. Debug mode does not see
explicit waits, nor copies from pageable memory that were asked not to block; neither occurs in these calls.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _experiment
import _seen
import _sheet
import op_db
import torch
from _experiment import Results

SAMPLES = _experiment.choose(4, 2)
"""Of each entry."""
SHARDS = 4
"""Processes that share the entries."""
CYCLES = 20_000_000
"""About ten milliseconds."""
AWAKE = 0.005
"""Seconds; a device that sleeps less does not sleep, which tells nothing."""
SOME = ("a", "b", "index", "linalg.inv", "masked", "nn.functional.ctc", "nonzero", "unique")
"""Prefixes of the entries the self-check runs."""
Counts = dict[str, int]


def calls(emulated: bool, shard: int) -> list[Any]:
    """Return the cases of the first dtype of each entry of a shard."""
    cases_found = []
    for op in op_db.op_db[shard::SHARDS]:
        if emulated and not op.name.startswith(SOME):
            continue
        try:
            cases = [case for case in op_db.cases(op, SAMPLES) if case.variant == "function"]
        except Exception:
            continue
        cases_found += [case for case in cases if case.dtype is cases[0].dtype]
    return cases_found


def over_all(emulated: bool, shard: int, look: Callable[[Callable[[], None]], int]) -> Counts:
    """Return what `look` returns for each call; -1 if the call fails. A first run warms up."""
    counts: Counts = {}
    for case in calls(emulated, shard):
        try:
            prepare(case)()
            call = prepare(case)
            torch.cuda.synchronize()
            counts[str(case)] = look(call)
        except Exception:
            torch.cuda.set_sync_debug_mode("default")
            counts[str(case)] = -1
    return counts


def prepare(case: Any) -> Callable[[], None]:
    """Return the call, forward and backward, with its inputs on the device."""
    sample = case.sample
    inputs = [op_db.copy_to(value, "cuda") for value in (sample.input, *sample.args)]
    options = op_db.copy_to(sample.kwargs, "cuda")

    def call() -> None:
        out = op_db.callable_of(case)(*inputs, **options)
        if op_db._differentiable(case):
            op_db.backward(sample.output_process_fn_grad(out))

    return call


class QueueProbe:
    """Tells whether a call takes as long as work queued before it; -1 where that cannot be told."""

    def __init__(self) -> None:
        self.asleep = min(
            seconds(lambda: (torch.cuda._sleep(CYCLES), torch.cuda.synchronize())) for _ in "12"
        )
        self(lambda: torch.ones(1, device="cuda"))  # the first call of a process takes long by itself

    def __call__(self, call: Callable[[], object]) -> int:
        if self.asleep < AWAKE:
            return -1
        alone = seconds(call)
        torch.cuda.synchronize()
        torch.cuda._sleep(CYCLES)
        behind = seconds(call)
        torch.cuda.synchronize()
        return -1 if alone > self.asleep / 2 else int(behind - alone > self.asleep / 2)


def seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def evidence(emulated: bool, shard: int) -> int:
    """Profile a shard's calls with shapes; return the number of rows of `gapless trace --evidence`, which
    are kept."""
    with _seen.profiler(not emulated, record_shapes=True, stacks=False) as profiler:
        for case in calls(emulated, shard):
            try:
                call = prepare(case)
                with torch.profiler.record_function(str(case)):
                    call()
            except Exception:
                continue
        torch.cuda.synchronize()
    with _experiment.kept("evidence", emulated) as folder:
        target = folder / f"op_db-{shard}.tsv"
        with tempfile.TemporaryDirectory() as temporary:
            trace = str(Path(temporary) / "op_db.json")
            profiler.export_chrome_trace(trace)
            words = ["-m", "gapless", "trace", "--evidence", "-o", str(target), trace]
            subprocess.run([sys.executable, *words], check=True, env=_experiment.environment_without_gpu())
        return sum(not line.startswith("#") for line in target.read_text().splitlines())


def part(name: str, emulated: bool) -> Any:
    way, shard = name.split(" ")
    with _experiment.device(emulated or way == "predicted"):
        if way == "evidence":
            return evidence(emulated, int(shard))
        return over_all(emulated, int(shard), QueueProbe() if way == "queued" else _seen.count_waits)


def joined(results: Results, way: str) -> Counts | None:
    """Return the counts of all shards that were run; None if none was."""
    shards = [counts for name, counts in results.items() if name.startswith(f"{way} ")]
    return {name: count for counts in shards for name, count in counts.items()} if shards else None


def compare(real: Counts, predicted: Counts) -> tuple[str, list[str]]:
    """Return the comparison as Markdown, and the calls whose number of waits differs."""
    both = [name for name in real if real[name] >= 0 and predicted.get(name, -1) >= 0]
    waits = {name for name in both if real[name]}
    said = {name for name in both if predicted[name]}
    right = waits & said
    wrong = sorted(name for name in both if real[name] != predicted[name])
    rows: list[list[object]] = [
        ["calls that run on both", len(both)],
        ["calls that wait", len(waits)],
        ["precision: of the calls said to wait, those that do", f"{len(right) / max(len(said), 1):.3f}"],
        ["recall: of the calls that wait, those said to", f"{len(right) / max(len(waits), 1):.3f}"],
        ["calls whose number of waits is right", f"{1 - len(wrong) / max(len(both), 1):.3f}"],
        ["calls that run only on the GPU", sum(real[name] >= 0 > predicted.get(name, -1) for name in real)],
        ["calls that run only emulated", sum(real[name] < 0 <= predicted.get(name, -1) for name in real)],
    ]
    misses: list[list[object]] = [[name, real[name], predicted[name]] for name in wrong]
    text = _sheet.table(["", ""], rows) + f"\n### {len(wrong)} calls differ\n\n"
    return text + _sheet.table(["call", "GPU", "predicted"], misses) + "\n", wrong


def sheet(results: Results) -> tuple[str, list[str]]:
    text, wrong = "", []
    said, real, queued = (joined(results, way) for way in ("predicted", "real", "queued"))
    if said is not None and real is not None:
        comparison, wrong = compare(real, said)
        text += f"## By debug mode\n\n{comparison}"
    if said is not None and queued is not None:
        flags = {name: min(waits, 1) for name, waits in said.items()}
        comparison, _ = compare(queued, flags)
        text += f"## By the clock: whether the call waits for work before it\n\n{comparison}"
    rows = [count for name, count in results.items() if name.startswith("evidence ")]
    if rows:
        text += f"`gapless trace --evidence` gives {sum(rows)} rows of the calls' profiles.\n"
        wrong += [] if sum(rows) else ["no evidence"]
    if real is not None and not _experiment.SELF_CHECK:
        (_experiment.HERE / "waits.json").write_text(json.dumps(real, indent=0) + "\n")
    return text, wrong


def script() -> _experiment.Script:
    shards = range(SHARDS)
    return _experiment.Script(
        __doc__, __file__, "The table of waits against a real GPU",
        f"op_db, first type of each entry, {SAMPLES} samples, forward and backward, second run of two",
        part, sheet, [f"{way} {shard}" for way in ("real", "predicted", "evidence") for shard in shards],
        [f"queued {shard}" for shard in shards], 150,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(script().main())

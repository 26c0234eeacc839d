"""Build memory records of training runs, their reports, and diagnoses of loaders."""

from __future__ import annotations

import msgspec

from gapless.analyze.memory_report import findings
from gapless.memory.recorder import Recorder
from gapless.memory.report import ReportOptions, report
from gapless.memory.sizes import MIB
from gapless.memory.tracking import build_track
from gapless.memory.trials import TrialConditions
from gapless.model.loading import (
    Bound,
    Demand,
    Diagnosis,
    Fetch,
    HotLine,
    Prediction,
    Seen,
    Setting,
    Transfer,
)
from gapless.model.loading_mistakes import Mistake, Verification
from gapless.model.memory import MemoryRun
from gapless.model.memory_report import MemoryReport
from gapless.model.source import SourceLine

MS = 1_000_000


def trained(steps: int = 6, name: str = "model", **fields: object) -> MemoryRun:
    """A model whose batches become longer from step to step: no cached block ever fits."""
    line = SourceLine(f"/work/{name}.py", 10, name, f"y = {name}(x)")
    batch = SourceLine(f"/work/{name}.py", 20, "main", "x = batch.to(device)")
    recorder = Recorder()
    now = 0

    def at() -> int:
        nonlocal now
        now += 50_000
        return now

    recorder.alloc("weights", 30 * MIB, stack=[line], kind="parameter", time=at())
    for step in range(steps):
        recorder.alloc("x", (3 + step) * MIB, stack=[batch], kind="batch", time=at())
        for layer in range(3):
            recorder.alloc(layer, (20 + 2 * step) * MIB, stack=[line], kind="activation", time=at())
        for layer in range(3):
            recorder.free(layer, time=at())
        recorder.step(time=at())
    return recorder.run(**fields)


def remembered(run: MemoryRun | None = None, options: ReportOptions | None = None) -> MemoryReport:
    """The report of `run`, drawn."""
    run = trained() if run is None else run
    options = options or ReportOptions()
    memory_report = report(run, options)
    drawn = build_track(run, memory_report, TrialConditions(options.capacity, options.total, options.begin))
    return msgspec.structs.replace(memory_report, findings=findings(memory_report), track=drawn)


def diagnosed(name: str = "data") -> Diagnosis:
    """A loader that waits for its disk, with predictions and two runs; `name` is wherever a name can be."""
    line = SourceLine(f"/work/{name}.py", 7, name, f"image = {name}.open(path)")
    predictions = tuple(
        Prediction(
            setting=Setting(workers=workers, prefetch=prefetch if workers else 0),
            step=(40 + 60 / (workers + 1)) * MS,
            wait=60 * MS / (workers + 1),
            first=80 * MS,
            memory=2_000_000 * (1 + workers),
            ready=float(workers),
            excluded="more than the memory" if workers == 4 else "",
        )
        for workers in range(5)
        for prefetch in ((2, 4) if workers else (2,))
    )
    return Diagnosis(
        sentence=f"a batch of {name} takes 60 ms to make",
        dataset=name,
        length=500,
        demand=Demand(step=40 * MS, source="given"),
        fetch=Fetch(
            items=80,
            item=8 * MS,
            item_cpu=2 * MS,
            item_wait=5 * MS,
            collate_cpu=1 * MS,
            batch_size=8,
            batch_bytes=3_000_000,
            item_bytes=375_000,
            tensors=2,
            batches=((16 * MS, 40 * MS),) * 9,
        ),
        transfer=Transfer(batches=9, send=MS, receive=MS / 2, latency=MS / 4, first=90 * MS, pin=MS),
        hot=(HotLine(line=line, share=0.7), HotLine(line=SourceLine(f"/work/{name}.py", 9), share=0.2)),
        bounds=(Bound(stage="the step", least=40.0 * MS),),
        predictions=predictions,
        now=predictions[0],
        best=predictions[6],
        advised=predictions[3],
        recommended=predictions[3].setting.arguments,
        seen=Seen(setting=Setting(), batches=12, step=98 * MS, wait=58 * MS, predicted=100 * MS),
        seen_advised=Seen(
            setting=predictions[3].setting,
            batches=14,
            step=63 * MS,
            wait=21 * MS,
            ready=1.5,
            predicted=60 * MS,
        ),
        correctness=Verification(
            mistakes=(
                Mistake(
                    code="GAP311",
                    name="items-repeated",
                    seen=f"each item comes twice from {name}",
                    remedy="`gapless.loading.shard`",
                    line=line,
                ),
            ),
            items=16,
        ),
        notes=(f"{name} is read from a network",),
    )

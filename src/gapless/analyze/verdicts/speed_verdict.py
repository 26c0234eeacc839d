"""What the verdict says of the length of a step, its throughput, and the whole run."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.analyze.phrases.speed import format_utilisation, speed_text, time_range
from gapless.model import Report
from gapless.model.estimate import Estimate
from gapless.model.wording import span, spans, three_figures

_MAX_SAME_RATIO = 1.05
"""Ratio of an interval's ends below which no interval is shown."""


def speed_facts(report: Report, estimate: Estimate | None) -> Iterator[str]:
    """Yield the throughput of steps, and how long the whole run takes."""
    if estimate is None:
        return
    done, whole = estimate.throughput, estimate.whole
    counts = (("samples", done.samples), ("tokens", done.tokens)) if done is not None else ()
    parts = [
        f"{speed_text(counted.number, whole)} {name}/s" for name, counted in counts if counted is not None
    ]
    if parts and done is not None and done.flops and done.peak:
        peak = f"{three_figures(done.peak)} TFLOP/s in {done.unit}"
        parts.append(f"MFU {format_utilisation(done, whole)} of {peak}")
    if parts:
        of_rank = " of this rank" if report.environment.world_size > 1 else ""
        yield f"Speed{of_rank}: {', '.join(parts)}"
    yield from _whole_run_sentence(report, estimate)


def _whole_run_sentence(report: Report, estimate: Estimate) -> Iterator[str]:
    """Yield ``All 2,560 steps (20 passes) take 2.9 min (2–4 min)``."""
    planned, each = report.planned, estimate.whole
    if not planned.steps or not each.likely:
        return
    passes = f" in {planned.passes:,} passes" if planned.passes > 1 else ""
    least, likely, most = (planned.steps * time for time in (each.least, each.likely, each.most))
    between = "" if most < _MAX_SAME_RATIO * least else f" ({spans(least, most)})"
    limit = "at most " if planned.most else ""
    subject = (
        "run" if report.steps.noun == "step" else "loop"
    )  # an inference script may do more than its loop
    yield f"The whole {subject}: {limit}{planned.steps:,} steps{passes}, {span(likely)}{between}"


def confidence(report: Report, estimate: Estimate | None) -> str:
    """Return what the numbers are based on: ``A100, estimated: step 8.8 ms (7–11 ms)``."""
    if estimate is None:
        return f"counted on an emulated {report.environment.device}" if report.environment.emulated else ""
    basis = "times from a real profile" if estimate.calibrated else "estimated"
    gpu = (estimate.gpu or report.environment.device).removeprefix("NVIDIA ")
    on_time = f"; {time_range(estimate.step)} if every batch were on time" if estimate.waiting.likely else ""
    return f"{gpu}, {basis}: step {time_range(estimate.whole)}{on_time}"

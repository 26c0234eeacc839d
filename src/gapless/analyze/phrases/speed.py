"""Say in words what a step gets done: samples and tokens per second, share of the peak, phases."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model.estimate import Range, StepThroughput
from gapless.model.wording import duration, duration_range, number, percent, three_digits, three_figures


def time_range(time: Range) -> str:
    """Return ``502 µs (320–860 µs)``; without the interval if its ends look alike."""
    ends = {duration(each) for each in (time.least, time.likely, time.most)}
    return duration(time.likely) + (f" ({duration_range(time.least, time.most)})" if len(ends) > 1 else "")


def speed_rows(done: StepThroughput, step: Range) -> Iterator[tuple[str, str]]:
    """Yield a label and a value for each number of what steps of length `step` get done."""
    for name, counted in (("samples", done.samples), ("tokens", done.tokens)):
        if counted is not None:
            per_step = number(round(counted.number, 2))
            yield f"{name} per second, {per_step} per step", speed_text(counted.number, step)
    if done.flops and done.peak:
        unit = f"{three_figures(done.peak)} TFLOP/s in {done.unit}"
        yield (
            f"share of the peak, {unit}, that the model's arithmetic uses (MFU)",
            format_utilisation(done, step),
        )
        yield "arithmetic per step, in TFLOP", three_digits(done.flops / 1e12)
    if done.repeated:
        yield "recomputed by checkpointing, in TFLOP", three_digits(done.repeated / 1e12)
    total = sum(done.phases.values())
    for phase, time in done.phases.items():
        yield f"share of the GPU's work: {phase}", f"{percent(time / total)}"


def samples_or_tokens(done: StepThroughput | None) -> tuple[float, str]:
    """Return the tokens, else samples, per step and that unit's name; 0 and "" if neither is counted."""
    if done is None:
        return 0.0, ""
    if done.tokens is not None:
        return done.tokens.number, "tokens"
    return (done.samples.number, "samples") if done.samples is not None else (0.0, "")


def speed_text(each: float, step: Range) -> str:
    """Return how many per second if a step has `each`: ``3,050 (1,530–4,720)``."""
    least, likely, most = (
        three_figures(each * 1e9 / length) for length in (step.most, step.likely, step.least)
    )
    return f"{likely} ({least}–{most})"


MIN_PERCENT_SHOWN = 0.1
"""Percent of the peak below which no number is shown: it would be all rounding."""


def format_utilisation(done: StepThroughput, step: Range) -> str:
    """Return the share of the peak: ``41 % (32–48)``."""
    least, likely, most = (100 * done.utilisation(length) for length in (step.most, step.likely, step.least))
    if likely < MIN_PERCENT_SHOWN:
        return f"below {MIN_PERCENT_SHOWN} %"
    return f"{three_digits(likely)} % ({three_digits(least)}–{three_digits(most)})"


def counting_notes(done: StepThroughput | None) -> Iterator[str]:
    """Yield how samples, tokens and operations are counted."""
    if done is not None:
        for name, counted in (("samples", done.samples), ("tokens", done.tokens)):
            if counted is not None:
                yield f"{name} by {counted.told}"
        if done.flops:
            yield (
                "counts products, convolutions and attention (in full, causal or not); a multiplication "
                "and an addition count as two"
            )

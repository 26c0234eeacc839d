"""The table that compares GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from gapless.analyze.phrases.fit import cheapest_offer, gpu_short_name, until_full
from gapless.analyze.phrases.speed import MIN_PERCENT_SHOWN
from gapless.memory.nccl import cell, note
from gapless.model import Report, Table
from gapless.model.memory_report import Buffers
from gapless.model.offer import Offer
from gapless.model.table import Row, Tone, table
from gapless.model.wording import (
    binary_size,
    duration,
    duration_range,
    in_unit,
    money,
    three_digits,
    three_figures,
    unit_of,
)


def offers_table(report: Report) -> Table | None:
    """Return a row per GPU: whether it fits, step, speed and cost; None without GPUs to compare."""
    results = report.offers
    if not any(offer.fits is not None or offer.step.likely > 0 for offer in results):
        return None
    unit = next((offer.unit for offer in results if offer.unit), "")
    named = [
        ("fits", any(offer.fits is not None for offer in results)),
        ("memory", any(offer.fits is not None for offer in results)),
        ("step", True),
        (f"{unit}/s", bool(unit)),
        ("MFU", any(offer.throughput is not None and offer.throughput.flops for offer in results)),
        (f"1M {unit}", any(offer.cost >= 0 for offer in results)),
        ("epoch", any(offer.epoch >= 0 for offer in results)),
        ("whole run", any(offer.run >= 0 for offer in results)),
    ]
    best = cheapest_offer(results)
    nccl = next((memory.nccl for memory in report.memory), None)
    rows = [_row(offer, [wanted for _, wanted in named], nccl, offer is best) for offer in results]
    columns = " | ".join(name for name, wanted in named if wanted)
    return table("GPU", columns, rows, where="before", notes=_notes(report))


def _row(offer: Offer, wanted: Sequence[bool], nccl: Buffers | None, best: bool) -> Row:
    """Return the row of one GPU, with the `wanted` cells."""
    cells = (text for text, shown in zip(_cells(offer, nccl), wanted, strict=True) if shown)
    return Row((gpu_short_name(offer.gpu), *cells), _tone(offer, best))


def _tone(offer: Offer, best: bool) -> Tone:
    """Return bad for a GPU that the run does not fit for good, and good for the `best`."""
    if offer.fits is False or offer.lasts >= 0:
        return "bad"
    return "good" if best else ""


def _fits(offer: Offer, nccl: Buffers | None) -> str:
    """Say whether, or for how long, the run fits."""
    if offer.fits is None:
        return "?"
    return until_full(offer.lasts) or cell(offer.fits, -offer.short, nccl)


def _share(percent: float) -> str:
    """Return a percentage, ``<0.1 %`` if it is tiny."""
    return f"{three_digits(percent)} %" if percent >= MIN_PERCENT_SHOWN else f"<{MIN_PERCENT_SHOWN} %"


def _cells(offer: Offer, nccl: Buffers | None) -> tuple[str, ...]:
    """Return all cells of a GPU's row; "" for what is unknown."""
    done, step = offer.throughput, offer.whole.likely if offer.step.likely else 0
    has_step = done is not None and step > 0
    return (
        _fits(offer, nccl),
        _memory(offer),
        duration(step) if step else "not known",
        three_figures(offer.each * 1e9 / step) if offer.each and step else "",
        _share(100 * done.utilisation(step)) if done is not None and has_step and done.flops else "",
        money(offer.cost) if offer.cost >= 0 else "",
        money(offer.epoch) if offer.epoch >= 0 else "",
        money(offer.run) if offer.run >= 0 else "",
    )


def _memory(offer: Offer) -> str:
    """Return ``66.7 of 78.7 GiB``; "" if unknown."""
    if offer.fits is None:
        return ""
    unit = unit_of(offer.has)
    needs = in_unit(offer.needs, unit) if unit_of(offer.needs) == unit else binary_size(offer.needs)
    return f"{needs} of {binary_size(offer.has)}"


def _notes(report: Report) -> tuple[str, ...]:
    """Return what these numbers are based on."""
    offers = report.offers
    prices = [
        f"{gpu_short_name(offer.gpu)} {three_digits(offer.price)}" for offer in offers if offer.price >= 0
    ]
    ranges = [
        f"{duration_range(offer.whole.least, offer.whole.most)} on the {gpu_short_name(offer.gpu)}"
        for offer in offers
        if offer.step.likely
    ]
    late = any(offer.waiting.likely for offer in offers)
    planned = report.planned
    sheets = sorted({offer.source for offer in offers if offer.source})
    lines = ", ".join(dict.fromkeys(line.short for line in report.asked))
    notes = [
        f"the script ran once, on an emulated {report.environment.device.removeprefix('NVIDIA ')}; the "
        "same memory requests and the same work are assumed for every GPU",
        f"the script asks which GPU it has ({lines}) and may behave differently on another one"
        if lines
        else "",
        f"price per hour: {', '.join(prices)}; the last columns are what that work costs" if prices else "",
        f"a step may take {', '.join(ranges)}" if ranges else "",
        "a step includes the time it waits for its batch" if late else "",
        f"the whole run: {'at most ' if planned.most else ''}{planned.steps:,} steps"
        if any(offer.run >= 0 for offer in offers)
        else "",
        *(
            f"no step on the {gpu_short_name(offer.gpu)}: {offer.refused}"
            for offer in offers
            if offer.refused
        ),
        *(
            f"the {gpu_short_name(offer.gpu)} runs full {offer.retries} times, and the cache is emptied each "
            "time"
            for offer in offers
            if offer.fits and offer.retries
        ),
        note(
            next((memory.nccl for memory in report.memory), None),
            [(f"the {gpu_short_name(offer.gpu)}", -offer.short) for offer in offers if offer.fits],
        ),
        "AMD GPUs are assumed to reach the same shares of their peaks as NVIDIA GPUs"
        if any(offer.gpu.startswith("AMD") for offer in offers)
        else "",
        f"figures: {'; '.join(sheets)}" if sheets else "",
    ]
    return tuple(filter(None, notes))

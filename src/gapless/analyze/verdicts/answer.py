"""Put the answer to a question about memory or cost first in the verdict."""

from __future__ import annotations

import msgspec

from gapless.analyze.verdicts.memory_verdict import first_to_fill
from gapless.analyze.verdicts.offers_verdict import offers_sentence
from gapless.memory.parts import allowed_bytes, describe_fit
from gapless.model import Report, Verdict
from gapless.model.memory_report import MemoryReport
from gapless.model.wording import binary_size, in_unit, unit_of


def with_answer(verdict: Verdict, report: Report) -> Verdict:
    """Return `verdict` preceded by whether the run fits, where and at what cost."""
    if first_to_fill(report.memory) is not None:
        return verdict  # it says already for how long the run fits
    answer = next(offers_sentence(report), "") or _fits(report)
    if not answer:
        return verdict
    return msgspec.structs.replace(verdict, sentence=f"{answer}. {verdict.sentence}")


def _fits(report: Report) -> str:
    """Return ``Fits the A100-SXM4-80GB: peak 42 MiB of 78.7 GiB`` of the fullest device; "" if unknown."""
    fitting = [memory for memory in report.memory if describe_fit(memory).startswith("fits")]
    if not fitting or len(fitting) < len(report.memory):
        return ""
    fullest = max(fitting, key=lambda memory: memory.baseline.peak_reserved / max(allowed_bytes(memory), 1))
    gpu = fullest.gpu.removeprefix("NVIDIA ")
    where = f" the {gpu}" if gpu else ""
    fullest_of = f" of {len(fitting)} GPUs the fullest" if len(fitting) > 1 else ""
    rest = describe_fit(fullest).removeprefix("fits")
    return f"Fits{where}:{fullest_of} peak {_peak_of(fullest)} reserved{rest}"


def _peak_of(report: MemoryReport) -> str:
    """Return the reserved peak and the limit: ``42 MiB of 78.7 GiB``."""
    peak, limit = report.baseline.peak_reserved, allowed_bytes(report)
    unit = unit_of(limit)
    needs = in_unit(peak, unit) if unit_of(peak) == unit else binary_size(peak)
    return f"{needs} of {binary_size(limit)}"

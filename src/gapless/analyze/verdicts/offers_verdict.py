"""What the verdict says of the GPUs to compare."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.analyze.phrases.fit import cheapest_offer, gpu_short_name
from gapless.memory.nccl import cell
from gapless.model import Report
from gapless.model.wording import money, three_figures

_MIN_SAME_RATIO = 0.95
"""Ratio of steps from which they count as equally long: then the CPU takes the time."""


def offers_sentence(report: Report) -> Iterator[str]:
    """Yield ``It fits 2 of 3 GPUs (not the L4); cheapest: A100 at 0.12 per million tokens; fastest:
    H100``."""
    offers, nccl = report.offers, next((memory.nccl for memory in report.memory), None)
    if not offers:
        return
    decided = [offer for offer in offers if offer.fits is not None]
    fitting = [offer for offer in decided if offer.fits]
    parts = []
    if decided:
        none = [gpu_short_name(offer.gpu) for offer in decided if not offer.fits]
        scarce = [gpu_short_name(offer.gpu) for offer in fitting if cell(True, -offer.short, nccl) != "yes"]
        notes = f" (not the {', '.join(none)})" if none and fitting else ""
        notes += f" (too little is left for NCCL on the {', '.join(scarce)})" if scarce else ""
        parts.append(
            f"it fits {_part_of(len(fitting), len(decided))} GPUs{notes}"
            if len(decided) > 1
            else f"it {'fits' if fitting else 'does not fit'} the {gpu_short_name(decided[0].gpu)}{notes}"
        )
    best = cheapest_offer(offers)
    if best is not None:
        whole = f", {money(best.run)} for the whole run" if best.run >= 0 else ""
        parts.append(
            f"cheapest: {gpu_short_name(best.gpu)} at {money(best.cost)} per million {best.unit}{whole}"
        )
    speeds = [offer for offer in offers if offer.fits is not False and offer.each and offer.step.likely]
    fast = min(speeds, key=lambda offer: offer.whole.likely, default=None)
    if fast is not None and fast.whole.likely < _MIN_SAME_RATIO * max(offer.whole.likely for offer in speeds):
        each = three_figures(fast.each * 1e9 / fast.whole.likely)
        parts.append(f"fastest: {gpu_short_name(fast.gpu)} with about {each} {fast.unit}/s")
    if parts:
        text = "; ".join(parts)
        yield text[:1].upper() + text[1:]


def _part_of(part: int, whole: int) -> str:
    """Return ``2 of 3``, ``both`` or ``all 3``."""
    if part < whole:
        return f"{part} of {whole}"
    return "both" if whole == 2 else f"all {whole}"

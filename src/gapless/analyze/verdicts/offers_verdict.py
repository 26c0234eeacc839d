"""What the verdict says of the GPUs that were asked about."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.analyze.phrases.fit import cheapest, short_name
from gapless.memory.nccl import cell
from gapless.model import Report
from gapless.model.wording import about, places

_SAME = 0.95
"""Steps that differ by less are as long: then the CPU is what takes the time."""


def of_offers(report: Report) -> Iterator[str]:
    """``It fits 2 of 3 GPUs (not the L4); cheapest: A100 at 0.12 per million tokens; fastest: H100``."""
    found, nccl = report.offers, next((made.nccl for made in report.memory), None)
    if not found:
        return
    known = [one for one in found if one.fits is not None]
    fitting = [one for one in known if one.fits]
    parts = []
    if known:
        none = [short_name(one.gpu) for one in known if not one.fits]
        scarce = [short_name(one.gpu) for one in fitting if cell(True, -one.short, nccl) != "yes"]
        which = f" (not the {', '.join(none)})" if none and fitting else ""
        which += f" (too little is left for NCCL on the {', '.join(scarce)})" if scarce else ""
        parts.append(
            f"it fits {_of(len(fitting), len(known))} GPUs{which}"
            if len(known) > 1
            else f"it {'fits' if fitting else 'does not fit'} the {short_name(known[0].gpu)}{which}"
        )
    best = cheapest(found)
    if best is not None:
        whole = f", {places(best.run)} for the whole run" if best.run >= 0 else ""
        parts.append(
            f"cheapest: {short_name(best.gpu)} at {places(best.cost)} per million {best.unit}{whole}"
        )
    speeds = [one for one in found if one.fits is not False and one.each and one.step.likely]
    fast = min(speeds, key=lambda one: one.whole.likely, default=None)
    if fast is not None and fast.whole.likely < _SAME * max(one.whole.likely for one in speeds):
        each = about(fast.each * 1e9 / fast.whole.likely)
        parts.append(f"fastest: {short_name(fast.gpu)} with about {each} {fast.unit}/s")
    if parts:
        told = "; ".join(parts)
        yield told[:1].upper() + told[1:]


def _of(part: int, whole: int) -> str:
    """``2 of 3``, ``both``, ``all 3``."""
    if part < whole:
        return f"{part} of {whole}"
    return "both" if whole == 2 else f"all {whole}"

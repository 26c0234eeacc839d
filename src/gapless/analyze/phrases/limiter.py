"""Say in words what limits a step."""

from __future__ import annotations

from gapless.model.estimate import MIN_SURE_SHARE, Estimate
from gapless.model.wording import describe_host, percent

_LIMIT_WORDS = {
    "host": ("the CPU", ", which launches the kernels"),
    "device": ("the GPU", ""),
    "input": ("the data loader", ""),
    "communication": ("communication", " between ranks"),
    "copies": ("copies", " between CPU and GPU"),
}


def limit_sentence(estimate: Estimate) -> str:
    """Return a sentence on what limits a step and how sure that is.

    ``Almost certainly limited by the CPU, which launches the work (its speed is …)``, or, if no limit holds
    for most of the drawn machines, ``Cannot tell what limits it: the GPU (54 %) or the CPU (46 %)``.
    """
    limit, speed = limiter(estimate), estimate.speed
    if not estimate.clear:
        assumed = "host" in [*estimate.limiters][:2] and not estimate.calibrated and speed is None
        speed_note = "; the CPU's speed is assumed (--calibrate)" if assumed else ""
        return f"Cannot tell what limits it: {limit}{speed_note}"
    certainty = f"Probably ({percent(estimate.sure)})"
    if estimate.sure >= MIN_SURE_SHARE:
        certainty = "Almost certainly"
    speed_note = ""
    if estimate.limiter == "host" and not estimate.calibrated:
        speed_note = " (its speed is assumed: --calibrate)"
        if speed is not None:
            speed_note = f" ({describe_host(speed)})"
    return f"{certainty} limited by {limit}{speed_note}"


def limiter(estimate: Estimate) -> str:
    """Name what limits a step; the two likeliest limits with their shares if neither is clear."""
    if estimate.clear:
        return "".join(_LIMIT_WORDS[estimate.limiter])
    two = [*estimate.limiters.items()][:2]
    return " or ".join(f"{_LIMIT_WORDS[name][0]} ({percent(share)})" for name, share in two)

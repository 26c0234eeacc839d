"""``--host``: how fast the CPU beside the GPU is that an estimate is for."""

from __future__ import annotations

from gapless.errors import UsageError
from gapless.model.programme import HostSpeed

CLASSES = {"fast": 0.6, "slow": 1.7}
"""Of the usual time for an operator; hosts of public profiles differ by six between the quickest and the
slowest, and most by less than two from the usual."""


def known(text: str) -> HostSpeed | None:
    """What `text` says; None for a usual host, and where the speed is to be measured.

    Raises:
        UsageError: it says nothing.
    """
    if text in ("measure", "usual"):
        return None
    try:
        factor = CLASSES.get(text) or float(text)
    except ValueError:
        factor = 0.0
    if not 0.01 <= factor <= 100:
        raise UsageError(f"--host {text}: must be measure, fast, usual, slow, or a number such as 0.8")
    return HostSpeed(factor=factor)


def speed(text: str) -> HostSpeed | None:
    """The host's speed, measured if that is asked for; None: a usual one's."""
    if text != "measure":
        return known(text)
    from gapless.capture.host_speed import host_speed

    return host_speed()

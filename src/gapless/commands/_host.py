"""``--host``: the speed of the CPU next to the GPU that an estimate is for."""

from __future__ import annotations

from gapless.errors import UsageError
from gapless.model.programme import HostSpeed

HOST_FACTORS = {"fast": 0.6, "slow": 1.7}
"""Factors of the usual time per operator; the quickest and slowest hosts of public profiles differ by six,
and most are within two of the usual.
"""


def parse_host_speed(text: str) -> HostSpeed | None:
    """Parse the option; None for a usual host, or if the speed is to be measured.

    Raises:
        UsageError: it is neither a known word nor a factor from 0.01 to 100.
    """
    if text in ("measure", "usual"):
        return None
    try:
        factor = HOST_FACTORS.get(text) or float(text)
    except ValueError:
        factor = 0.0
    if not 0.01 <= factor <= 100:
        raise UsageError(f"--host {text}: must be measure, fast, usual, slow, or a number such as 0.8")
    return HostSpeed(factor=factor)


def resolve_host_speed(text: str) -> HostSpeed | None:
    """Return the host's speed, measured if `text` is "measure"; None for a usual host."""
    if text != "measure":
        return parse_host_speed(text)
    from gapless.capture.host_speed import host_speed

    return host_speed()

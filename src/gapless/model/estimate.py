"""`Estimate`: what a step would take on the GPU that was emulated, and why that may be off."""

from __future__ import annotations

import msgspec

from gapless.model.profile import Prices


class Range(msgspec.Struct, frozen=True, array_like=True):
    """Nanoseconds: a likely value between the least and the most that the assumptions allow."""

    least: int = 0
    likely: int = 0
    most: int = 0


class Estimate(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A step on the GPU `gpu`, imagined; all times in nanoseconds per step.

    `step` is its length, `device` the time in which the device has work, `host` what the host needs besides
    its waits. `prices` are those of the findings (`Finding.price`), of one step and not of a profile's span.
    `looked_at` steps were recorded. `calibrated` is the path of the real profile that the times are from,
    `covered` the share of the device's time that it gave; else they are estimates. `assumptions` are
    sentences. `reasons` say why the numbers are bounds; `refused` why there are none.
    """

    gpu: str = ""
    step: Range = Range()
    device: int = 0
    host: int = 0
    prices: Prices = Prices()
    saved: Range = Range()
    looked_at: int = 0
    calibrated: str = ""
    covered: float = 0.0
    assumptions: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    refused: str = ""

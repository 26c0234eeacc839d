"""Say in words whether runs fit GPUs."""

from __future__ import annotations

from collections.abc import Iterable

from gapless.model.attempt import Attempt
from gapless.model.offer import Offer
from gapless.model.wording import binary_size, in_unit, unit_of


def until_full(lasts: int) -> str:
    """Return how long growing memory still fits, ``for 12 more steps``; "" if it does not grow."""
    return f"for {lasts:,} more step{'' if lasts == 1 else 's'}" if lasts >= 0 else ""


def format_memory(attempt: Attempt) -> str:
    """Return ``66.7 of 78.7 GiB``; only what is needed if the capacity is unknown."""
    if attempt.has < 0:
        return binary_size(attempt.needs)
    unit = unit_of(attempt.has)
    needs = in_unit(attempt.needs, unit) if unit_of(attempt.needs) == unit else binary_size(attempt.needs)
    return f"{needs} of {binary_size(attempt.has)}"


def cheapest_offer(offers: Iterable[Offer]) -> Offer | None:
    """Return the offer that fits and costs least per unit of work; None if no price is known."""
    priced = [offer for offer in offers if offer.cost >= 0 and offer.fits is not False]
    return min(priced, key=lambda offer: offer.cost, default=None)


def gpu_short_name(gpu: str) -> str:
    """Return the GPU's name without its vendor."""
    return gpu.removeprefix("NVIDIA ").removeprefix("AMD ").removeprefix("GeForce ")

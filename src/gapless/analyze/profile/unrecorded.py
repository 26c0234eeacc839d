"""What recording adds to a step: idle time of the GPU that no change of the training gives back."""

from __future__ import annotations

import msgspec

from gapless.model import Profile
from gapless.model.profile import Price, Prices
from gapless.model.wording import duration, percent


def without_recording(profile: Profile) -> Profile:
    """Return `profile` with prices that are at most what the GPU idles without the profiler, and a note.

    Copies of pageable memory that get shorter save more than idle time.
    """
    without, recorded = profile.unrecorded_step, profile.steps.mean
    if without == recorded:
        return profile
    shorter_copies = sum(copy.alone for copy in profile.copies if copy.memory == "pageable")
    most = int(profile.unrecorded_idle) + shorter_copies
    note = (
        f"Recorded steps take {percent(recorded / without - 1)} longer than unrecorded ones "
        f"({duration(without)}): savings are at most what the GPU idles without recording"
    )
    prices = profile.prices
    return msgspec.structs.replace(
        profile,
        prices=_bound_prices(prices, most) if prices is not None else None,
        notes=(*profile.notes, note),
    )


def _bound_prices(prices: Prices, most: int) -> Prices:
    """Return `prices` of at most `most` nanoseconds."""
    return msgspec.structs.replace(
        prices,
        all=min(prices.all, most),
        least_all=min(prices.least_all, most),
        each=tuple(_bound_price(price, most) for price in prices.each),
        saved=tuple(min(saved, most) for saved in prices.saved),
    )


def _bound_price(price: Price, most: int) -> Price:
    names = ("alone", "last", "least_alone", "least_last")
    return msgspec.structs.replace(price, **{name: min(getattr(price, name), most) for name in names})

"""``--gpu A100,H100 --price a100=1.80``: the GPU to emulate, and those to estimate the run for."""

from __future__ import annotations

import math

from gapless.errors import UsageError
from gapless.model.gpus import Card, Gpu, find, find_card
from gapless.model.offer import Wanted


def choose_gpus(gpus: str | None, price: str) -> tuple[str | None, Wanted | None]:
    """Return the GPU to emulate (None: the default), and the GPUs and prices to estimate for, if any.

    The first name that can be emulated is. A single GPU without a price needs no estimates.

    >>> choose_gpus("a100,mi300x", "a100=1.8")[0]
    'a100'

    Raises:
        UsageError: a name is unknown, none can be emulated, or a price is invalid.
    """
    names = _split_names(gpus or "", "--gpu") if gpus is not None else []
    cards = [find_card(name) for name in names]
    emulated = next(
        (name for name, card in zip(names, cards, strict=True) if isinstance(card, Gpu)),
        names[0] if names else None,
    )
    if emulated is not None:
        find(emulated)  # raises an error that says why it cannot be emulated
    prices = _parse_prices(price)
    if len(names) < 2 and not prices:
        return emulated, None
    if not names:
        raise UsageError(
            "--price is the price per hour of a GPU named by --gpu: --gpu a100,h100 --price a100=1.80"
        )
    _check_priced_gpus(prices, names, cards)
    return emulated, Wanted(gpus=tuple(names), prices=prices)


def _check_priced_gpus(prices: dict[str, float], names: list[str], cards: list[Card]) -> None:
    for name in prices:
        if find_card(name) not in cards:
            raise UsageError(f"--price {name}=…: {name} is not in --gpu {','.join(names)}")


def _parse_prices(text: str) -> dict[str, float]:
    """Parse ``a100=1.80,h100=2.99`` into prices per hour by lower-case name."""
    prices: dict[str, float] = {}
    for part in _split_names(text, "--price") if text else ():
        name, equals, amount = (field.strip() for field in part.partition("="))
        try:
            price = float(amount)
        except ValueError:
            price = math.nan
        if not (name and equals and 0 <= price < math.inf):
            raise UsageError(f"{part!r} is not a price per hour: write --price a100=1.80,h100=2.99")
        if name.lower() in prices:
            raise UsageError(f"--price names {name} twice")
        prices[name.lower()] = price
    return prices


def _split_names(text: str, option: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise UsageError(f"{option} {text!r} has an empty name between two commas")
    return parts

"""``--gpu A100,H100 --price a100=1.80``: the GPU to emulate, and those to reckon the run for."""

from __future__ import annotations

import math

from gapless.errors import UsageError
from gapless.model.gpus import Card, Gpu, find, find_card
from gapless.model.offer import Wanted


def chosen(gpus: str | None, price: str) -> tuple[str | None, Wanted | None]:
    """The GPU to emulate (None: the default one), and what is to be reckoned; None where nothing is.

    The first that can be emulated is. One GPU without a price needs no table.

    >>> chosen("a100,mi300x", "a100=1.8")[0]
    'a100'

    Raises:
        UsageError: a name is not known, none can be emulated, or a price is no price.
    """
    names = _parts(gpus or "", "--gpu") if gpus is not None else []
    cards = [find_card(name) for name in names]
    emulated = next(
        (name for name, card in zip(names, cards, strict=True) if isinstance(card, Gpu)),
        names[0] if names else None,
    )
    if emulated is not None:
        find(emulated)  # says why it cannot be
    prices = _prices(price)
    if len(names) < 2 and not prices:
        return emulated, None
    if not names:
        raise UsageError(
            "--price is the price per hour of a GPU named by --gpu: --gpu a100,h100 --price a100=1.80"
        )
    _priced(prices, names, cards)
    return emulated, Wanted(gpus=tuple(names), prices=prices)


def _priced(prices: dict[str, float], names: list[str], cards: list[Card]) -> None:
    for name in prices:
        if find_card(name) not in cards:
            raise UsageError(f"--price {name}=…: {name} is not in --gpu {','.join(names)}")


def _prices(text: str) -> dict[str, float]:
    """``a100=1.80,h100=2.99``."""
    found: dict[str, float] = {}
    for part in _parts(text, "--price") if text else ():
        name, equals, amount = (one.strip() for one in part.partition("="))
        try:
            price = float(amount)
        except ValueError:
            price = math.nan
        if not (name and equals and 0 <= price < math.inf):
            raise UsageError(f"{part!r} is not a price per hour: write --price a100=1.80,h100=2.99")
        if name.lower() in found:
            raise UsageError(f"--price names {name} twice")
        found[name.lower()] = price
    return found


def _parts(text: str, option: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise UsageError(f"{option} {text!r} has an empty name between two commas")
    return parts

"""Copies to the host that arrive when something makes them, and not before: with ``--late-copies``.

What such a copy has brought is taken away again and kept, and the memory is filled with values that show:
NaN, and numbers that are out of any range. It is put back as soon as the host has waited for the copy. What
reads too early then gives other numbers than it should, or fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from gapless.emulation.races.content import content
from gapless.emulation.races.flights import Flight


def take(flight: Flight, host: torch.Tensor) -> None:
    """Keep what the copy has brought, and let `host` show that it is not there yet."""
    storage = flight.storage()
    if storage is None or flight.bytes.gaps is not None or flight.bytes.begin == flight.bytes.end:
        return
    raw = content(storage, flight.bytes)
    flight.landed = raw.copy()
    if host.dtype is torch.bool:
        raw ^= 1
    else:
        raw[:] = 0xFF if host.is_floating_point() or host.is_complex() else 0x7E


def put(flight: Flight) -> None:
    """The copy has arrived."""
    storage = flight.storage()
    if flight.landed is not None and storage is not None:
        content(storage, flight.bytes)[:] = flight.landed
        flight.landed = None


def superseded(flights: Iterable[Flight], later: Flight) -> None:
    """A later copy to the same bytes takes the place of those before it."""
    for one in flights:
        if one is not later and one.landed is not None and later.bytes.covers(one.bytes):
            one.landed = None


@contextmanager
def there(flights: Iterable[Flight]) -> Iterator[None]:
    """For a copy on a stream that comes behind those `flights` they have arrived; not so for the host."""
    shown: list[tuple[np.ndarray, np.ndarray]] = []
    for one in flights:
        storage = one.storage()
        if one.landed is not None and storage is not None:
            raw = content(storage, one.bytes)
            shown.append((raw, raw.copy()))
            raw[:] = one.landed
    try:
        yield
    finally:
        for raw, before in reversed(shown):
            raw[:] = before

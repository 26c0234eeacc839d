"""Copies to the host that arrive only when something waits for them: with ``--late-copies``.

The bytes of such a copy are withheld, and the memory is filled with conspicuous values: NaN, and numbers out
of range. They are delivered as soon as the host has waited for the copy. Code that reads too early then
computes other numbers than it should, or fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from gapless.emulation.races.content import bytes_at
from gapless.emulation.races.flights import Flight


def withhold(flight: Flight, host: torch.Tensor) -> None:
    """Keep the copied bytes back, and fill `host` with conspicuous values."""
    storage = flight.storage()
    if storage is None or flight.bytes.gaps is not None or flight.bytes.begin == flight.bytes.end:
        return
    raw = bytes_at(storage, flight.bytes)
    flight.late_bytes = raw.copy()
    if host.dtype is torch.bool:
        raw ^= 1
    else:
        raw[:] = 0xFF if host.is_floating_point() or host.is_complex() else 0x7E


def deliver(flight: Flight) -> None:
    """Write the bytes withheld from `flight` to its storage."""
    storage = flight.storage()
    if flight.late_bytes is not None and storage is not None:
        bytes_at(storage, flight.bytes)[:] = flight.late_bytes
        flight.late_bytes = None


def drop_overwritten_bytes(flights: Iterable[Flight], later: Flight) -> None:
    """Drop withheld bytes that a `later` copy overwrites."""
    for earlier in flights:
        if earlier is not later and earlier.late_bytes is not None and later.bytes.covers(earlier.bytes):
            earlier.late_bytes = None


@contextmanager
def show_withheld_bytes(flights: Iterable[Flight]) -> Iterator[None]:
    """Show withheld bytes of `flights` inside the block, for a copy on a stream ordered after them."""
    replaced: list[tuple[np.ndarray, np.ndarray]] = []
    for flight in flights:
        storage = flight.storage()
        if flight.late_bytes is not None and storage is not None:
            raw = bytes_at(storage, flight.bytes)
            replaced.append((raw, raw.copy()))
            raw[:] = flight.late_bytes
    try:
        yield
    finally:
        for raw, before in reversed(replaced):
            raw[:] = before

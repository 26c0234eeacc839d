"""What an epoch begins with: its order, a dataset that opens its files, a stream that starts anew."""

from __future__ import annotations

from itertools import islice
from typing import Any

from torch.utils.data import DataLoader

from gapless.loading.batches import Maker, alike, indices_of
from gapless.loading.clock import Clock
from gapless.loading.measure_workers import running, warned_off
from gapless.loading.settings import altered
from gapless.model.loading import Fetch, Setting
from gapless.model.loading_feed import Begin

_LATER = 3
"""Batches after a first one that it is compared with."""


def measure_begin(loader: DataLoader, clock: Clock | None = None) -> Begin:
    """What the first batch of a pass takes more than those after it, in a process that has made none.

    A map-style dataset is asked for other batches, never twice for the same: one that keeps its items would
    give them at once.
    """
    clock = clock or Clock()
    _order(loader, clock)  # what only the first order of a process takes is not what each epoch begins with
    shuffle, asked_for = _order(loader, clock)
    if len(asked_for) < 2:
        return Begin()
    first, *later = asked_for
    maker = Maker(loader)
    opening = _batch(maker, first, clock)
    rest = [_batch(maker, asked, clock) for asked in later]
    usual = float(sorted(rest)[len(rest) // 2])
    if maker.stream is None:
        return Begin(shuffle=shuffle, opened=max(opening - usual, 0.0))
    once_more = _batch(Maker(loader), first, clock)
    again = max(once_more - usual, 0.0)
    return Begin(shuffle=shuffle, opened=max(opening - usual - again, 0.0), again=again)


def _order(loader: DataLoader, clock: Clock) -> tuple[float, list[Any]]:
    """Nanoseconds that the first position takes more than the next ones, and these positions."""
    began, delayed = clock.wall(), clock.delayed()
    indices = indices_of(loader)
    found = list(islice(indices, 1))
    known, held = clock.wall(), clock.delayed()
    found += islice(indices, _LATER)
    if len(found) < 2:
        return 0.0, found
    each = (clock.wall() - known - (clock.delayed() - held)) / (len(found) - 1)
    return max(known - began - (held - delayed) - each, 0.0), found


def _batch(maker: Maker, asked: Any, clock: Clock) -> int:
    """Nanoseconds for one, without waiting for a core; 0 where the stream is at its end."""
    begin, delay = clock.wall(), clock.delayed()
    try:
        maker.collate([step() for step in maker.steps(asked)])
    except StopIteration:
        return 0
    return clock.wall() - begin - (clock.delayed() - delay)


def forked_start(loader: DataLoader, fetch: Fetch, begin: Begin) -> float:
    """Nanoseconds until a worker that is forked begins to open what it needs."""
    clock = Clock()
    plain = alike(loader, Setting(workers=1, prefetch=2))
    plain = altered(plain, {"num_workers": 1, "prefetch_factor": 2, "multiprocessing_context": "fork"})
    known = fetch.cpu + fetch.wait + begin.opened + begin.again
    began = clock.wall()
    with warned_off(), running(plain) as iterator:
        next(iterator, None)
        return max(clock.wall() - began - known, 0.0)

"""Measure how an epoch begins: its order, a dataset that opens files, a stream that restarts."""

from __future__ import annotations

from itertools import islice
from typing import Any

from torch.utils.data import DataLoader

from gapless.loading.batches import BatchMaker, indices_of, with_setting
from gapless.loading.clock import Clock
from gapless.loading.measure_workers import iterate, without_worker_warning
from gapless.loading.settings import with_settings
from gapless.model.loading import Fetch, Setting
from gapless.model.loading_feed import Begin

_LATER_BATCHES = 3
"""Batches that the first one is compared with."""


def measure_begin(loader: DataLoader, clock: Clock | None = None) -> Begin:
    """Measure how much longer the first batch of a pass takes, in a process that has made none.

    A map-style dataset is asked for different batches, never twice for one: if it caches items it would
    return them at once.
    """
    clock = clock or Clock()
    _measure_order(loader, clock)  # what only the first order in a process takes is not part of every epoch
    shuffle, requests = _measure_order(loader, clock)
    if len(requests) < 2:
        return Begin()
    first, *later = requests
    maker = BatchMaker(loader)
    opening = _time_batch(maker, first, clock)
    rest = [_time_batch(maker, request, clock) for request in later]
    usual = float(sorted(rest)[len(rest) // 2])
    if maker.stream is None:
        return Begin(shuffle=shuffle, opened=max(opening - usual, 0.0))
    once_more = _time_batch(BatchMaker(loader), first, clock)
    again = max(once_more - usual, 0.0)
    return Begin(shuffle=shuffle, opened=max(opening - usual - again, 0.0), again=again)


def _measure_order(loader: DataLoader, clock: Clock) -> tuple[float, list[Any]]:
    """Return how many nanoseconds longer the first index takes than the next, and these indices."""
    began, delayed = clock.wall(), clock.delayed()
    indices = indices_of(loader)
    requests = list(islice(indices, 1))
    first_time, held = clock.wall(), clock.delayed()
    requests += islice(indices, _LATER_BATCHES)
    if len(requests) < 2:
        return 0.0, requests
    each = (clock.wall() - first_time - (clock.delayed() - held)) / (len(requests) - 1)
    return max(first_time - began - (held - delayed) - each, 0.0), requests


def _time_batch(maker: BatchMaker, request: Any, clock: Clock) -> int:
    """Return the nanoseconds for one batch without waiting for a core; 0 at the end of a stream."""
    begin, delay = clock.wall(), clock.delayed()
    try:
        maker.collate([step() for step in maker.loads(request)])
    except StopIteration:
        return 0
    return clock.wall() - begin - (clock.delayed() - delay)


def measure_forked_start(loader: DataLoader, fetch: Fetch, begin: Begin) -> float:
    """Return the nanoseconds until a forked worker begins to open what it needs."""
    clock = Clock()
    plain = with_setting(loader, Setting(workers=1, prefetch=2))
    plain = with_settings(plain, {"num_workers": 1, "prefetch_factor": 2, "multiprocessing_context": "fork"})
    making_time = fetch.cpu + fetch.wait + begin.opened + begin.again
    began = clock.wall()
    with without_worker_warning(), iterate(plain) as iterator:
        next(iterator, None)
        return max(clock.wall() - began - making_time, 0.0)

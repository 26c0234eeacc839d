"""Measure what an item and a batch cost: computing or waiting."""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader

from gapless.loading.batches import BatchMaker, bytes_of, indices_of
from gapless.loading.clock import Clock, StorageReads, page_faults
from gapless.loading.columns import measure_columns
from gapless.loading.forked import LoaderError, Tell
from gapless.loading.nested import count_items, tensors_of
from gapless.loading.padded import PaddingMeter
from gapless.model.loading import Fetch
from gapless.model.loading_feed import BatchTensor

MAX_BATCHES = 64
"""Batches that are made at most."""


class _ItemTotals:
    """Totals of what was measured; plain additions, so that measuring costs next to nothing."""

    def __init__(self) -> None:
        self.items = self.asked = self.batches = 0
        self.item = self.item_cpu = self.item_delay = 0
        self.collate = self.collate_cpu = 0
        self.index = self.inside = 0
        self.bytes = self.most = self.tensors = self.item_bytes = 0
        self.rows: list[tuple[int, int]] = []
        self.lengths = PaddingMeter()
        self.columns: tuple[BatchTensor, ...] = ()
        self.storage = StorageReads()
        self.counted = self.counts()

    def counts(self) -> tuple[int, int]:
        """Return bytes from storage and pages touched, up to now."""
        return self.storage.read(), page_faults()


def measure_items(
    loader: DataLoader, seconds: float, tell: Tell, *, skip: int = 0, clock: Clock | None = None
) -> Fetch:
    """Make batches here, one after another, until `seconds` are over or enough are made.

    Raises:
        LoaderError: there is no batch, or none can be made.
    """
    clock = clock or Clock()
    begin, sums = clock.wall(), _ItemTotals()
    maker = BatchMaker(loader)
    indices = islice(indices_of(loader), skip, None)
    while sums.batches < MAX_BATCHES:
        before = clock.wall()
        request = next(indices, indices)  # None is the request for an unbatched stream
        if request is indices:
            break
        sums.index += clock.wall() - before
        if not _measure_batch(maker, request, sums, clock, begin + int(seconds * 1e9), tell):
            break
        passed = (clock.wall() - begin) / 1e9
        if tell(min(1.0, max(passed / seconds, sums.batches / MAX_BATCHES))) or passed >= seconds:
            break
    if not sums.batches:
        raise LoaderError("the loader yields no batch: the dataset or the sampler is empty")
    return _build_fetch(sums, maker)


def _measure_batch(
    maker: BatchMaker, request: Any, sums: _ItemTotals, clock: Clock, deadline: int, tell: Tell
) -> bool:
    """Make and measure a batch; return False at the end of the dataset.

    A first batch that is not ready at the `deadline`, or when the end is requested, is cut short, and its
    time is scaled up.
    """
    items: list[Any] = []
    begin, cpu, delay = clock.wall(), clock.cpu(), clock.delayed()
    try:
        for step in maker.loads(request):
            items.append(step())
            if not sums.batches and (clock.wall() > deadline or tell(0.0)):
                break
    except StopIteration:
        if not items or maker.stream is None:
            return False
    items_end, made_cpu, made_delay = clock.wall(), clock.cpu(), clock.delayed()
    batch = maker.collate(items)
    end, end_cpu, end_delay = clock.wall(), clock.cpu(), clock.delayed()
    count = len(items[0]) if maker.at_once else len(items)
    scale = len(request) / count if maker.collated and count and not sums.batches else 1.0
    sums.asked = max(sums.asked, int(count * scale))
    if not sums.items:
        first = items[0][0] if maker.at_once and items[0] else items[0]
        sums.item_bytes = bytes_of(first)
    sums.items += count
    sums.item += items_end - begin
    sums.item_cpu += made_cpu - cpu
    sums.item_delay += made_delay - delay
    sums.collate += end - items_end
    sums.collate_cpu += end_cpu - made_cpu
    sums.batches += 1
    computing = end_cpu - cpu
    waiting = max(0, end - begin - computing - (end_delay - delay))
    sums.rows.append((int(computing * scale), int(waiting * scale)))
    size = int(bytes_of(batch) * scale)
    if size > sums.most:
        sums.most, sums.tensors = size, sum(1 for _ in tensors_of(batch))
        if scale == 1 and not sums.columns:
            sums.columns = measure_columns(batch)
    sums.bytes += size
    sums.lengths.look(items[0] if maker.at_once or not maker.collated else items, batch)
    if not maker.collated and not sums.inside:
        sums.inside = count_items(batch)
    return True


def _build_fetch(sums: _ItemTotals, maker: BatchMaker) -> Fetch:
    # The first batch opens files and fills caches: it does not represent the others, if there are others.
    rows = sums.rows[1:] if len(sums.rows) > 4 else sums.rows
    items, batches = max(sums.items, 1), sums.batches
    read, faults = (now - then for now, then in zip(sums.counts(), sums.counted, strict=True))
    sums.storage.close()
    return Fetch(
        items=sums.items,
        item=sums.item / items,
        item_cpu=sums.item_cpu / items,
        item_wait=max(0.0, (sums.item - sums.item_cpu - sums.item_delay) / items),
        item_bytes=sums.item_bytes,
        collate=sums.collate / batches,
        collate_cpu=sums.collate_cpu / batches,
        index=sums.index / batches,
        batch_size=sums.asked if batches == 1 else items / batches,
        batch_bytes=sums.most,
        tensors=sums.tensors,
        at_once=maker.at_once,
        inside=sums.inside,
        padding=sums.lengths.padding,
        columns=sums.columns,
        batches=tuple(rows),
        read=read / batches,
        faults=faults / batches,
    )


def pin_and_copy(batch: Any, times: int = 5) -> tuple[float, float]:
    """Return the nanoseconds to copy the batch into pinned memory, and from there to the GPU; -1 without a
    GPU.
    """
    tensors = [tensor for tensor in tensors_of(batch) if tensor.device.type == "cpu"]
    if not torch.cuda.is_available() or not tensors:
        return -1.0, -1.0
    clock, pins, copies = Clock(), [], []
    for _ in range(times):
        begin = clock.wall()
        pinned = [tensor.pin_memory() for tensor in tensors]
        middle = clock.wall()
        for tensor in pinned:
            tensor.to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        pins.append(middle - begin)
        copies.append(clock.wall() - middle)
    return float(min(pins)), float(min(copies))

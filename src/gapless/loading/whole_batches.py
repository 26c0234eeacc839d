"""Try to index a dataset with a whole batch of positions instead of one item after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, default_collate, default_convert

from gapless.loading.batches import BatchMaker, indices_of, is_iterable
from gapless.loading.clock import Clock
from gapless.loading.loader_call import LoaderCall
from gapless.loading.nested import tensors_of
from gapless.model.loading import BatchRemedy, Fetch

_COMPARED_FIRST = 16
"""Items compared before a whole batch is."""
_MAX_TRIED = 16
"""Batches that are made at most."""
_MAX_SHARE_LEFT = 0.7
"""A remedy that leaves more of a batch's time is not mentioned."""
_CONVERSIONS: dict[str, Callable[[list[int]], Any]] = {
    "": lambda indices: indices,
    "torch.tensor": torch.tensor,
}
"""What positions are passed to the dataset as, by the function that the code calls."""


class BatchTimes(NamedTuple):
    """Processor and waiting time of each batch in nanoseconds, and the last of the batches."""

    each: tuple[tuple[int, int], ...]
    last: Any


def try_whole_batches(
    loader: DataLoader, fetch: Fetch, call: LoaderCall, seconds: float, *, skip: int = 0
) -> BatchRemedy | None:
    """Index the dataset with whole batches; return what that costs, None if batches are not the same.

    Only in a process that ends afterwards and refuses side effects: a dataset that is not made for this may
    do anything.
    """
    if is_iterable(loader) or loader.batch_sampler is None or loader.collate_fn is not default_collate:
        return None
    requests = [list(request) for request in islice(indices_of(loader), skip, skip + _MAX_TRIED + 1)]
    if not requests or len(requests[0]) < 2 or 4 * fetch.wall > seconds * 1e9:
        return None
    dataset: Any = loader.dataset
    for function, convert in _CONVERSIONS.items():
        try:
            times = _try_on(loader, requests, lambda request, to=convert: dataset[to(request)], seconds)  # type: ignore[misc]
        except Exception:  # the dataset is not made for this: that is an answer
            continue
        code = call.with_whole_batches(function)
        if code and times is not None and is_cheaper(times, fetch):
            return BatchRemedy(
                kind="whole",
                code=code,
                change="index whole batches, not item by item",
                line=call.line,
                tried=len(times.each),
                batches=times.each,
                tensors=sum(1 for _ in tensors_of(times.last)),
            )
    return None


def _try_on(
    loader: DataLoader, requests: list[list[int]], index: Callable[[list[int]], Any], seconds: float
) -> BatchTimes | None:
    """Return the times of batches made with `index`, None if one of them is not as it should be.

    A single item, unsorted and repeated ones come first: they are what a whole batch may do wrong.
    """
    few = requests[0][:_COMPARED_FIRST]
    for request in ([few[0]], few, [*reversed(few), *few], requests[0]):
        expected = _collate_items(loader, request)
        if not is_same(default_convert(index(request)), expected) or not is_same(
            _collate_items(loader, request), expected
        ):
            return None
    batches = (
        lambda request=request: default_convert(index(request)) for request in requests[1:] or requests
    )
    return time_batches(batches, seconds / 2)


def _collate_items(loader: DataLoader, request: list[int]) -> Any:
    maker = BatchMaker(loader)
    return maker.collate([step() for step in maker.loads(request)])


def time_batches(calls: Iterator[Callable[[], Any]], seconds: float) -> BatchTimes:
    """Return the time of each of `calls`, which make a batch, until `seconds` are over."""
    clock, rows, batch = Clock(), list[tuple[int, int]](), None
    begin = clock.wall()
    for make in calls:
        before, cpu, delay = clock.wall(), clock.cpu(), clock.delayed()
        batch = make()
        passed, computing, late = clock.wall() - before, clock.cpu() - cpu, clock.delayed() - delay
        rows.append((computing, max(0, passed - computing - late)))
        if clock.wall() - begin > seconds * 1e9:
            break
    clock.close()
    return BatchTimes(tuple(rows[1:] or rows), batch)


def is_cheaper(times: BatchTimes, fetch: Fetch) -> bool:
    """Whether batches take clearly less time than those that were measured."""
    mean = sum(map(sum, times.each)) / max(len(times.each), 1)
    return mean < _MAX_SHARE_LEFT * (fetch.cpu + fetch.wait)


def is_same(batch: Any, other: Any) -> bool:
    """Whether two batches have the same structure, types and values, bit by bit (NaN equals NaN)."""
    if type(batch) is not type(other):
        return False
    if isinstance(batch, torch.Tensor):
        return (
            batch.dtype == other.dtype
            and batch.shape == other.shape
            and batch.layout == other.layout
            and torch.allclose(batch, other, rtol=0, atol=0, equal_nan=True)
        )
    if isinstance(batch, Mapping):
        return list(batch) == list(other) and all(is_same(batch[key], other[key]) for key in batch)
    if isinstance(batch, list | tuple):
        return len(batch) == len(other) and all(map(is_same, batch, other))
    return bool(batch == other)

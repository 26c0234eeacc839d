"""Try to index a dataset with a whole batch of positions instead of one item after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    SequentialSampler,
    default_collate,
    default_convert,
)

from gapless.loading.batches import BatchMaker, indices_of, is_iterable
from gapless.loading.clock import Clock
from gapless.loading.digests import digest_memory
from gapless.loading.loader_call import LoaderCall
from gapless.loading.nested import tensors_of
from gapless.model.loading import BatchRemedy, Fetch

_COMPARED_FIRST = 16
"""Items compared before a whole batch is."""
_COMPARED_SPREAD = 32
"""Items compared that are spread over the dataset."""
_MAX_TRIED = 16
"""Batches that are made at most."""
_MAX_SHARE_LEFT = 0.7
"""A remedy that leaves more of a batch's time is not mentioned."""
_CONVERSIONS: dict[str, Callable[[list[int]], Any]] = {"": list, "torch.tensor": torch.tensor}
"""What positions are passed to the dataset as, by the function that the code calls ("": none)."""
_DIFFERS = (
    "`loader.batch_size` is then None, and `loader.sampler` yields whole batches: the sampler of items is "
    "`loader.sampler.sampler`"
)


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
    requests = list(islice(indices_of(loader), skip, skip + _MAX_TRIED + 1))
    if not requests or not all(type(request) is list for request in requests) or len(requests[0]) < 2:
        return None
    few = requests[0][:_COMPARED_FIRST]
    affordable = seconds * 1e9 * fetch.batch_size / max(fetch.wall, 1.0) / 4  # each is read at least twice
    if affordable < 3 * len(few) + _COMPARED_SPREAD:
        return None
    # A single item, unsorted and repeated ones come first: they are what a whole batch may do wrong.
    parts = [[few[0]], few, [*reversed(few), *few], _spread(loader), requests[0][: int(affordable)]]
    dataset: Any = loader.dataset
    for function, convert in _CONVERSIONS.items():
        code = call.with_whole_batches(function)

        def index(request: list[int], to: Any = convert) -> Any:
            return default_convert(dataset[to(request)])

        try:
            if not code or not all(_is_repeatable(loader, index, part) for part in parts if part):
                continue
            batches = (lambda request=request: index(request) for request in requests[1:] or requests)
            times = time_batches(batches, seconds / 2)
            pairs = (
                (lambda request=request: is_same(index(request), collate_items(loader, request)))
                for request in requests[1:]
            )
            compared = count_same(pairs, seconds / 2)
        except Exception:  # the dataset is not made for this: that is an answer
            continue
        if compared >= 0 and is_cheaper(times, fetch):
            return BatchRemedy(
                kind="whole",
                code=code,
                change="index whole batches, not item by item",
                differs=_DIFFERS,
                line=call.line,
                compared=1 + compared,
                batches=times.each,
                tensors=sum(1 for _ in tensors_of(times.last)),
            )
    return None


def _spread(loader: DataLoader) -> list[int]:
    """Return positions all over the dataset; none if only its sampler knows which it has."""
    if type(loader.sampler) not in (RandomSampler, SequentialSampler):
        return []
    last, dataset = _COMPARED_SPREAD - 1, loader.dataset
    return [number * (len(dataset) - 1) // last for number in range(last + 1)]  # type: ignore[arg-type]


def _is_repeatable(loader: DataLoader, index: Callable[[list[int]], Any], request: list[int]) -> bool:
    """Whether `index` gives the batch of `request` as the loader makes it, whenever it is called.

    Reading may neither use random numbers nor change the dataset, and a batch may not be overwritten by the
    next: two in a row share no memory.
    """
    expected = collate_items(loader, request)
    state = digest_memory(loader.dataset)
    first, second, again = index(request), index(request), collate_items(loader, request)
    memory = [
        {part.untyped_storage().data_ptr() for part in tensors_of(batch) if part.numel()}
        for batch in (first, second)
    ]
    return (
        all(is_same(batch, expected) for batch in (first, second, again))
        and memory[0].isdisjoint(memory[1])
        and digest_memory(loader.dataset) == state
    )


def collate_items(loader: DataLoader, request: list[int]) -> Any:
    """Return the batch as the loader makes it."""
    maker = BatchMaker(loader)
    return maker.collate([step() for step in maker.loads(request)])


def time_batches(calls: Iterable[Callable[[], Any]], seconds: float) -> BatchTimes:
    """Return the time of each of `calls`, which make a batch, until the last or `seconds` are over."""
    clock, rows, batch = Clock(), list[tuple[int, int]](), None
    begin = clock.wall()
    for make in calls:
        before, cpu, delay = clock.wall(), clock.cpu(), clock.delayed()
        try:
            batch = make()
        except StopIteration:  # a stream ends
            break
        passed, computing, late = clock.wall() - before, clock.cpu() - cpu, clock.delayed() - delay
        rows.append((computing, max(0, passed - computing - late)))
        if clock.wall() - begin > seconds * 1e9:
            break
    clock.close()
    return BatchTimes(tuple(rows[1:] or rows), batch)


def count_same(calls: Iterator[Callable[[], bool]], seconds: float) -> int:
    """Return how many of `calls`, each of which compares a batch, are made in `seconds`; -1 if one fails."""
    clock, count = Clock(), 0
    begin = clock.wall()
    for compare in calls:
        try:
            if not compare():
                return -1
        except StopIteration:  # a stream ends
            break
        count += 1
        if clock.wall() - begin > seconds * 1e9:
            break
    clock.close()
    return count


def is_cheaper(times: BatchTimes, fetch: Fetch) -> bool:
    """Whether batches take clearly less time than those that were measured."""
    mean = sum(map(sum, times.each)) / max(len(times.each), 1)
    return bool(times.each) and mean < _MAX_SHARE_LEFT * (fetch.cpu + fetch.wait)


def is_same(batch: Any, other: Any) -> bool:
    """Whether two batches have the same structure, types and values, bit by bit (NaN equals NaN)."""
    if type(batch) is not type(other):
        return False
    if isinstance(batch, torch.Tensor):
        return (
            batch.dtype == other.dtype
            and batch.shape == other.shape
            and batch.layout == other.layout
            and batch.device == other.device
            and batch.requires_grad == other.requires_grad
            and batch.is_contiguous() == other.is_contiguous()
            and torch.allclose(batch, other, rtol=0, atol=0, equal_nan=True)
        )
    if isinstance(batch, Mapping):
        return list(batch) == list(other) and all(is_same(batch[key], other[key]) for key in batch)
    if isinstance(batch, list | tuple):
        return len(batch) == len(other) and all(map(is_same, batch, other))
    return bool(batch == other)

"""Record what a loader yields. This changes the loader, so it runs in a copied process."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from types import FrameType, FunctionType
from typing import Any

import numpy
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, get_worker_info
from torch.utils.data.distributed import DistributedSampler

from gapless.errors import UsageError
from gapless.loading import digests
from gapless.loading.batches import strip_subclass
from gapless.loading.lines import definition, item_line
from gapless.loading.rank_items import Epoch, GeneratorUse, RankItems
from gapless.loading.settings import with_settings
from gapless.loading.sharding import Shard
from gapless.loading.simulated import list_samplers, set_rank, simulate_rank
from gapless.model.source import SourceLine

Make = Callable[[], DataLoader]
_POSITION_EPOCHS = 4
"""Indices cost nothing: enough epochs to tell items that never come from those left out by chance."""
_SHUFFLING_FUNCTIONS = frozenset(
    ("randperm", "permutation", "shuffle", "default_rng", "manual_seed", "RandomState", "sample", "choices")
)
"""Functions whose use shows that a sampler shuffles."""


def record_rank(
    target: DataLoader | Make, rank: int, ranks: int, *, simulate: bool, alone: bool, most: int, until: float
) -> RankItems:
    """What `target` yields as `rank` of `ranks`, up to `most` items of an epoch and until that time.

    `alone` asks for it without workers, as the measure of what there is.
    """
    if simulate:
        simulate_rank(rank, ranks)
    loader = target if isinstance(target, DataLoader) else target()
    if not isinstance(loader, DataLoader):
        raise UsageError(f"the function returns a {type(loader).__name__}, but a DataLoader is needed")
    if simulate and isinstance(target, DataLoader) and ranks > 1:
        set_rank(loader, rank, ranks)
    if alone:
        loader = with_settings(loader, _settings_without_workers())
    stream = isinstance(loader.dataset, IterableDataset)
    epochs, draws, fine = (
        _record_stream(loader, most, until) if stream else _record_indices(loader, most, until)
    )
    order = _deciding_sampler(loader)
    return RankItems(
        rank=rank,
        workers=loader.num_workers,
        batch_size=loader.batch_size or getattr(loader.batch_sampler, "batch_size", None) or 0,
        drop_last=bool(loader.drop_last or getattr(loader.batch_sampler, "drop_last", False)),
        length=-1 if stream else _length(loader.dataset),
        dataset=type(loader.dataset).__name__,
        persistent=loader.persistent_workers,
        sampler="" if stream else type(order).__name__,
        plain=_is_ordered_by_torch(loader),
        shuffles=any(_shuffles(sampler) for sampler in list_samplers(loader)),
        takes_epochs=any(hasattr(part, "set_epoch") for part in (*list_samplers(loader), loader.dataset)),
        epochs=epochs,
        draws=draws,
        line=_item_line(loader.dataset),
        sampler_line=None if stream else _sampler_line(loader),
        fingerprints=fine,
    )


def _item_line(dataset: Any) -> SourceLine | None:
    if not isinstance(dataset, Shard):
        return item_line(dataset)
    source = dataset.source
    return item_line(source) or (definition(source) if isinstance(source, FunctionType) else None)


def _settings_without_workers() -> dict[str, Any]:
    return {
        "num_workers": 0,
        "prefetch_factor": None,
        "persistent_workers": False,
        "timeout": 0,
        "multiprocessing_context": None,
        "worker_init_fn": None,
    }


def _length(dataset: Any) -> int:
    """Return the length of a map-style dataset; 0 if only its sampler knows it."""
    try:
        return len(dataset)
    except TypeError:
        return 0


def _deciding_sampler(loader: DataLoader) -> Any:
    """Return the sampler that decides which items come."""
    return list_samplers(loader)[-1]


def _is_ordered_by_torch(loader: DataLoader) -> bool:
    """Whether torch's own samplers, which yield everything once, order the loader."""
    order = _deciding_sampler(loader)
    if isinstance(order, RandomSampler):
        return not order.replacement and order.num_samples == len(loader.dataset)  # type: ignore[arg-type]
    if isinstance(order, DistributedSampler):
        return not order.drop_last and order.dataset is loader.dataset
    return type(order) is SequentialSampler


def _shuffles(sampler: Any) -> bool:
    if getattr(sampler, "shuffle", None) is False:
        return False
    code = getattr(type(sampler).__iter__, "__code__", None)
    nested = [part for part in getattr(code, "co_consts", ()) if hasattr(part, "co_names")]
    return any(_SHUFFLING_FUNCTIONS & set(part.co_names) for part in (code, *nested) if part is not None)


def _sampler_line(loader: DataLoader) -> SourceLine | None:
    for sampler in list_samplers(loader):
        line = definition(getattr(type(sampler), "__iter__", None))
        if line is not None:
            return line
    return None


def _set_epoch(loader: DataLoader, epoch: int) -> None:
    for part in (*list_samplers(loader), loader.dataset):
        if hasattr(part, "set_epoch"):
            part.set_epoch(epoch)


def _record_indices(
    loader: DataLoader, most: int, until: float
) -> tuple[tuple[Epoch, ...], tuple[GeneratorUse, ...], bool]:
    """Record the indices of some epochs, and which generators the workers' first items use."""
    epochs: list[Epoch] = []
    first: list[list[int]] = []
    batched = loader.batch_sampler is not None
    for number in range(_POSITION_EPOCHS):
        _set_epoch(loader, number)
        items: list[int] = []
        sizes: list[int] = []
        complete = True
        for drawn in loader.batch_sampler if batched else loader.sampler:  # type: ignore[union-attr]
            batch: list[Any] = list(drawn) if batched else [drawn]
            if not all(isinstance(at, (int, numpy.integer)) for at in batch):
                return (), (), False  # keys of another type: the expected ones are unknown
            if len(items) + len(batch) > most or time.monotonic() > until:
                complete = False
                break
            items += batch
            sizes.append(len(batch))
            if not number and len(first) < 2 * max(1, loader.num_workers):
                first.append(batch[:4])
        epochs.append(_epoch(items, sizes, [0] * len(sizes), complete))
    draws = (
        _record_generators(loader, first if batched else [batch[0] for batch in first], until)
        if first
        else ()
    )
    return tuple(epochs), draws, True


def _epoch(items: list[int], sizes: list[int], workers: list[int], complete: bool) -> Epoch:
    parts = (numpy.array(values, dtype=numpy.int64).tobytes() for values in (items, sizes, workers))
    return Epoch(**dict(zip(("items", "sizes", "workers"), parts, strict=True)), complete=complete)


def _record_generators(loader: DataLoader, first: list[Any], until: float) -> tuple[GeneratorUse, ...]:
    """Record the generators that workers use for `first`, batches of indices, in two epochs."""
    if not loader.num_workers or time.monotonic() > until:
        return ()
    witness = ItemWitness(count=False)
    order = "batch_sampler" if loader.batch_sampler is not None else "sampler"
    changed = {**_witness_settings(loader, witness), order: first}
    return _record_epochs(with_settings(loader, changed), witness, 1 << 30, until, again=lambda number: None)[
        1
    ]


def _record_stream(
    loader: DataLoader, most: int, until: float
) -> tuple[tuple[Epoch, ...], tuple[GeneratorUse, ...], bool]:
    """Record the items of two epochs of a stream, including incomplete batches."""
    witness = ItemWitness(count=True, single=loader.batch_size is None)
    changed = {**_witness_settings(loader, witness), "drop_last": False}
    witnessed = with_settings(loader, changed)
    return _record_epochs(witnessed, witness, most, until, again=lambda number: _set_epoch(loader, number))


def _witness_settings(loader: DataLoader, witness: ItemWitness) -> dict[str, Any]:
    names = ("num_workers", "prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context")
    kept = {name: getattr(loader, name) for name in names}
    return {
        **kept,
        "pin_memory": False,
        "collate_fn": witness,
        "worker_init_fn": StartRecorder(loader.worker_init_fn, witness),
    }


def _record_epochs(
    loader: DataLoader, witness: ItemWitness, most: int, until: float, again: Callable[[int], None]
) -> tuple[tuple[Epoch, ...], tuple[GeneratorUse, ...], bool]:
    loader = strip_subclass(loader)  # values that a library adds to its batches are not part of the items
    epochs: list[Epoch] = []
    draws: list[GeneratorUse] = []
    fine = True
    for number in range(2):
        again(number)
        iterator = iter(loader)
        if not loader.num_workers:  # not earlier: making an iterator draws random numbers itself
            witness.before(loader.dataset)
        items: list[int] = []
        sizes: list[int] = []
        workers: list[int] = []
        complete = True
        seen_workers: set[int] = set()
        for worker, digests_of_batch, states in iterator:
            if worker not in seen_workers:
                seen_workers.add(worker)
                draws += [
                    GeneratorUse(name=name, epoch=number, worker=worker, start=start, used=used)
                    for name, start, used in states
                ]
            fine = fine and digests_of_batch is not None
            items += digests_of_batch or []
            sizes.append(len(digests_of_batch or []))
            workers.append(worker)
            if len(items) >= most or time.monotonic() > until:
                complete = False
                break
        epochs.append(_epoch(items, sizes, workers, complete))
    return tuple(epochs), tuple(draws), fine


class StartRecorder:
    """A ``worker_init_fn`` that runs the user's and then records the states of all generators."""

    def __init__(self, user_function: Any, witness: ItemWitness) -> None:
        self.user_function, self.witness = user_function, witness

    def __call__(self, worker: int) -> None:
        if self.user_function is not None:
            self.user_function(worker)
        info = get_worker_info()
        self.witness.before(info.dataset if info is not None else None)


class ItemWitness:
    """A ``collate_fn`` that returns the worker, digests of the items, and the generators they used."""

    def __init__(self, count: bool, single: bool = False) -> None:
        self.count, self.single = count, single

    def before(self, dataset: Any) -> None:
        """Record the states before the first item."""
        _START[0] = (os.getpid(), dataset, digests.digest_states(dataset))

    def __call__(self, items: Any) -> tuple[int, list[int] | None, list[tuple[str, str, bool]]]:
        info = get_worker_info()
        batch = [items] if self.single else items
        try:
            item_digests = [digests.digest_item(item) for item in batch] if self.count else []
        except digests.NoContent:
            item_digests = None
        return info.id if info is not None else 0, item_digests, self._states()

    def _states(self) -> list[tuple[str, str, bool]]:
        """Return, once, each generator with its state before the first item, and whether it has changed."""
        start, _START[0] = _START[0], None
        if start is None or start[0] != os.getpid():
            return []
        now = digests.digest_states(start[1])
        states = [(name, state, now.get(name, state) != state) for name, state in start[2].items()]
        return states + [
            (name, state, True) for name, state in digests.digest_local_states(_dataset_iterator()).items()
        ]


_START: list[Any] = [None]
"""In a worker: its process, the dataset and the generator states before the first item."""


def _dataset_iterator() -> Any:
    """Return the dataset's iterator, from the fetcher that called the witness."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        fetcher = frame.f_locals.get("self")
        if hasattr(fetcher, "dataset_iter"):
            return getattr(fetcher, "dataset_iter", None)
        frame = frame.f_back
    return None

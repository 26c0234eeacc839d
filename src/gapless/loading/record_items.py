"""Going through a loader and noting what it yields. It changes the loader, so it runs in a copied process."""

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
from gapless.loading.batches import bare
from gapless.loading.lines import definition, maker
from gapless.loading.rank_items import Draws, Epoch, RankItems
from gapless.loading.settings import altered
from gapless.loading.sharding import Shard
from gapless.loading.simulated import become, place, samplers
from gapless.model.source import SourceLine

Make = Callable[[], DataLoader]
_POSITION_EPOCHS = 4
"""Positions cost nothing: enough epochs to tell what never comes from what is left out by chance."""
_RANDOM = frozenset(
    ("randperm", "permutation", "shuffle", "default_rng", "manual_seed", "RandomState", "sample", "choices")
)


def record(
    target: DataLoader | Make, rank: int, ranks: int, *, simulate: bool, alone: bool, most: int, until: float
) -> RankItems:
    """What `target` yields as `rank` of `ranks`, up to `most` items of an epoch and until that time.

    `alone` asks for it without workers, as the measure of what there is.
    """
    if simulate:
        become(rank, ranks)
    loader = target if isinstance(target, DataLoader) else target()
    if not isinstance(loader, DataLoader):
        raise UsageError(f"the function returns a {type(loader).__name__}, but a DataLoader is needed")
    if simulate and isinstance(target, DataLoader) and ranks > 1:
        place(loader, rank, ranks)
    if alone:
        loader = altered(loader, _alone())
    stream = isinstance(loader.dataset, IterableDataset)
    epochs, draws, fine = _stream(loader, most, until) if stream else _positions(loader, most, until)
    order = _order(loader)
    return RankItems(
        rank=rank,
        workers=loader.num_workers,
        batch_size=loader.batch_size or getattr(loader.batch_sampler, "batch_size", None) or 0,
        drop_last=bool(loader.drop_last or getattr(loader.batch_sampler, "drop_last", False)),
        length=-1 if stream else _length(loader.dataset),
        dataset=type(loader.dataset).__name__,
        persistent=loader.persistent_workers,
        sampler="" if stream else type(order).__name__,
        plain=_plain(loader),
        shuffles=any(_shuffles(sampler) for sampler in samplers(loader)),
        takes_epochs=any(hasattr(part, "set_epoch") for part in (*samplers(loader), loader.dataset)),
        epochs=epochs,
        draws=draws,
        line=_maker(loader.dataset),
        sampler_line=None if stream else _sampler_line(loader),
        fingerprints=fine,
    )


def _maker(dataset: Any) -> SourceLine | None:
    if not isinstance(dataset, Shard):
        return maker(dataset)
    source = dataset.source
    return maker(source) or (definition(source) if isinstance(source, FunctionType) else None)


def _alone() -> dict[str, Any]:
    return {
        "num_workers": 0,
        "prefetch_factor": None,
        "persistent_workers": False,
        "timeout": 0,
        "multiprocessing_context": None,
        "worker_init_fn": None,
    }


def _length(dataset: Any) -> int:
    """Of a map-style dataset; 0 where only its sampler knows."""
    try:
        return len(dataset)
    except TypeError:
        return 0


def _order(loader: DataLoader) -> Any:
    """The sampler that decides which items come."""
    return samplers(loader)[-1]


def _plain(loader: DataLoader) -> bool:
    """Whether torch's own samplers order it, which go through everything once."""
    order = _order(loader)
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
    return any(_RANDOM & set(part.co_names) for part in (code, *nested) if part is not None)


def _sampler_line(loader: DataLoader) -> SourceLine | None:
    for sampler in samplers(loader):
        found = definition(getattr(type(sampler), "__iter__", None))
        if found is not None:
            return found
    return None


def _begin(loader: DataLoader, epoch: int) -> None:
    for part in (*samplers(loader), loader.dataset):
        if hasattr(part, "set_epoch"):
            part.set_epoch(epoch)


def _positions(
    loader: DataLoader, most: int, until: float
) -> tuple[tuple[Epoch, ...], tuple[Draws, ...], bool]:
    """The positions of some epochs, and what random numbers the workers' first items use."""
    epochs: list[Epoch] = []
    first: list[list[int]] = []
    batched = loader.batch_sampler is not None
    for number in range(_POSITION_EPOCHS):
        _begin(loader, number)
        items: list[int] = []
        sizes: list[int] = []
        complete = True
        for drawn in loader.batch_sampler if batched else loader.sampler:  # type: ignore[union-attr]
            batch: list[Any] = list(drawn) if batched else [drawn]
            if not all(isinstance(at, (int, numpy.integer)) for at in batch):
                return (), (), False  # keys of another kind: which there should be is not known
            if len(items) + len(batch) > most or time.monotonic() > until:
                complete = False
                break
            items += batch
            sizes.append(len(batch))
            if not number and len(first) < 2 * max(1, loader.num_workers):
                first.append(batch[:4])
        epochs.append(_epoch(items, sizes, [0] * len(sizes), complete))
    draws = _drawn(loader, first if batched else [batch[0] for batch in first], until) if first else ()
    return tuple(epochs), draws, True


def _epoch(items: list[int], sizes: list[int], workers: list[int], complete: bool) -> Epoch:
    parts = (numpy.array(values, dtype=numpy.int64).tobytes() for values in (items, sizes, workers))
    return Epoch(**dict(zip(("items", "sizes", "workers"), parts, strict=True)), complete=complete)


def _drawn(loader: DataLoader, first: list[Any], until: float) -> tuple[Draws, ...]:
    """Random numbers that the workers use for `first`, batches of positions, in two epochs."""
    if not loader.num_workers or time.monotonic() > until:
        return ()
    witness = Witness(count=False)
    order = "batch_sampler" if loader.batch_sampler is not None else "sampler"
    changed = {**_witnessed(loader, witness), order: first}
    return _epochs(altered(loader, changed), witness, 1 << 30, until, again=lambda number: None)[1]


def _stream(loader: DataLoader, most: int, until: float) -> tuple[tuple[Epoch, ...], tuple[Draws, ...], bool]:
    """The items of two epochs of a stream, incomplete batches included."""
    witness = Witness(count=True, single=loader.batch_size is None)
    changed = {**_witnessed(loader, witness), "drop_last": False}
    seen = altered(loader, changed)
    return _epochs(seen, witness, most, until, again=lambda number: _begin(loader, number))


def _witnessed(loader: DataLoader, witness: Witness) -> dict[str, Any]:
    names = ("num_workers", "prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context")
    kept = {name: getattr(loader, name) for name in names}
    return {
        **kept,
        "pin_memory": False,
        "collate_fn": witness,
        "worker_init_fn": Started(loader.worker_init_fn, witness),
    }


def _epochs(
    loader: DataLoader, witness: Witness, most: int, until: float, again: Callable[[int], None]
) -> tuple[tuple[Epoch, ...], tuple[Draws, ...], bool]:
    loader = bare(loader)  # what a library counts in its batches is not to be found in digests of items
    epochs: list[Epoch] = []
    draws: list[Draws] = []
    fine = True
    for number in range(2):
        again(number)
        iterator = iter(loader)
        if not loader.num_workers:  # now: making an iterator draws random numbers itself
            witness.before(loader.dataset)
        items: list[int] = []
        sizes: list[int] = []
        workers: list[int] = []
        complete = True
        known: set[int] = set()
        for worker, found, states in iterator:
            if worker not in known:
                known.add(worker)
                draws += [
                    Draws(name=name, epoch=number, worker=worker, start=start, used=used)
                    for name, start, used in states
                ]
            fine = fine and found is not None
            items += found or []
            sizes.append(len(found or []))
            workers.append(worker)
            if len(items) >= most or time.monotonic() > until:
                complete = False
                break
        epochs.append(_epoch(items, sizes, workers, complete))
    return tuple(epochs), tuple(draws), fine


class Started:
    """A ``worker_init_fn`` that runs the user's and then notes the states of all generators."""

    def __init__(self, theirs: Any, witness: Witness) -> None:
        self.theirs, self.witness = theirs, witness

    def __call__(self, worker: int) -> None:
        if self.theirs is not None:
            self.theirs(worker)
        info = get_worker_info()
        self.witness.before(info.dataset if info is not None else None)


class Witness:
    """A ``collate_fn`` that gives the worker, digests of the items, and what random numbers they used."""

    def __init__(self, count: bool, single: bool = False) -> None:
        self.count, self.single = count, single

    def before(self, dataset: Any) -> None:
        """Note the states before the first item."""
        _START[0] = (os.getpid(), dataset, digests.of_states(dataset))

    def __call__(self, items: Any) -> tuple[int, list[int] | None, list[tuple[str, str, bool]]]:
        info = get_worker_info()
        batch = [items] if self.single else items
        try:
            found = [digests.of_item(item) for item in batch] if self.count else []
        except digests.NoContent:
            found = None
        return info.id if info is not None else 0, found, self._states()

    def _states(self) -> list[tuple[str, str, bool]]:
        """Of each generator: its state before the first item, and whether that has changed since. Once."""
        start, _START[0] = _START[0], None
        if start is None or start[0] != os.getpid():
            return []
        now = digests.of_states(start[1])
        found = [(name, state, now.get(name, state) != state) for name, state in start[2].items()]
        return found + [(name, state, True) for name, state in digests.of_locals(_iterator()).items()]


_START: list[Any] = [None]
"""In the worker: its process, the dataset and the states of generators before the first item."""


def _iterator() -> Any:
    """The dataset's iterator, from the fetcher that called the witness."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        fetcher = frame.f_locals.get("self")
        if hasattr(fetcher, "dataset_iter"):
            return getattr(fetcher, "dataset_iter", None)
        frame = frame.f_back
    return None

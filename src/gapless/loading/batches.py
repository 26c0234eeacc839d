"""Make batches as torch's fetchers do, part by part; copy loaders with other settings."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from gapless.loading.forked import LoaderError, failure
from gapless.loading.lines import item_line, short_path
from gapless.loading.nested import tensors_of
from gapless.model.loading import Setting


def is_iterable(loader: DataLoader) -> bool:
    """Whether the dataset is a stream, not accessed by index."""
    return isinstance(loader.dataset, IterableDataset)


def setting_of(loader: DataLoader) -> Setting:
    """Return the settings of `loader`."""
    return Setting(
        workers=loader.num_workers,
        prefetch=(loader.prefetch_factor or 0) if loader.num_workers else 0,
        persistent=bool(loader.persistent_workers),
        pin=bool(loader.pin_memory),
    )


def length_of(loader: DataLoader) -> int:
    """Return the batches in an epoch; -1 if unknown."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return -1


def start_of(loader: DataLoader) -> str:
    """Return how the loader's workers are started (fork, spawn, …)."""
    context = loader.multiprocessing_context or torch.multiprocessing
    return str(context.get_start_method())


def indices_of(loader: DataLoader) -> Iterator[Any]:
    """Yield what the dataset is asked for, batch by batch: indices, or a number of items."""
    return iter(loader._index_sampler)


def is_bare(kind: type) -> bool:
    """Whether loaders of class `kind` iterate with torch's own code (or torchdata's, which is as good)."""
    owners = [getattr(getattr(kind, name, None), "__module__", "") for name in ("__iter__", "_get_iterator")]
    return all(module.startswith(("torch.utils.data.", "torchdata.stateful_dataloader")) for module in owners)


def strip_subclass(loader: DataLoader) -> DataLoader:
    """Change the class of `loader`, a copy, to its nearest base that iterates with torch's own code; return
    it.
    """
    loader.__class__ = next(kind for kind in type(loader).__mro__ if is_bare(kind))
    return loader


class _SlicedSampler:
    """A batch sampler of the batches from index `skip` on, at most `most`."""

    def __init__(self, sampler: Any, skip: int, most: int) -> None:
        self._sampler, self._skip, self._most = sampler, skip, most

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self._sampler), self._skip, self._skip + self._most)


def with_setting(
    loader: DataLoader, setting: Setting, *, skip: int = 0, most: int | None = None
) -> DataLoader:
    """Return a loader over the same items with `setting`; of a map-style one, `most` batches from
    `skip` on.
    """
    more: dict[str, Any] = {}
    if is_iterable(loader):
        more.update(batch_size=loader.batch_size, drop_last=loader.drop_last)
    else:
        sampler: Any = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
        if most is not None:
            sampler = _SlicedSampler(sampler, skip, most)
        if loader.batch_sampler is not None:
            more.update(batch_sampler=sampler)
        else:
            more.update(batch_size=None, sampler=sampler)
    if setting.workers:
        more.update(
            multiprocessing_context=loader.multiprocessing_context,
            prefetch_factor=setting.prefetch,
            persistent_workers=setting.persistent,
            timeout=loader.timeout,
        )
    with warnings.catch_warnings():  # the warning about more workers than cores: trying that is the purpose
        warnings.simplefilter("ignore")
        return DataLoader(
            loader.dataset,
            num_workers=setting.workers,
            pin_memory=setting.pin and torch.cuda.is_available(),
            collate_fn=loader.collate_fn,
            worker_init_fn=loader.worker_init_fn,
            generator=loader.generator,
            **more,
        )


class BatchMaker:
    """Makes batches in two parts: `loads` gives the calls that load the items, `collate` joins them."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        self._dataset = loader.dataset
        self.collated = loader._auto_collation
        self.stream: Iterator[Any] | None = iter(self._dataset) if is_iterable(loader) else None
        self.at_once = (
            self.stream is None and self.collated and bool(getattr(self._dataset, "__getitems__", None))
        )

    def loads(self, request: Any) -> Sequence[Callable[[], Any]]:
        """Return one call per item, or one for all of them."""
        if self.stream is not None:
            stream = self.stream
            return [lambda: next(stream)] * (len(request) if self.collated else 1)
        dataset: Any = self._dataset
        if self.at_once:
            return [lambda: dataset.__getitems__(request)]
        if not self.collated:
            return [lambda: dataset[request]]
        return [lambda index=index: dataset[index] for index in request]  # type: ignore[misc]

    def collate(self, items: list[Any]) -> Any:
        """Return the batch of `items`.

        Raises:
            LoaderError: collating fails.
        """
        argument = items[0] if self.at_once or not self.collated else items
        try:
            return self._loader.collate_fn(argument)
        except Exception as error:
            raise LoaderError(_explain_collate_error(self._dataset, argument, error)) from error


def _explain_collate_error(dataset: Any, items: Any, error: Exception) -> str:
    """Say why `items` cannot be collated, and what helps."""
    line = item_line(dataset)
    by = f" by {line.function} ({short_path(line.file)}:{line.line})" if line is not None else ""
    if isinstance(items, list):
        empty = sum(item is None for item in items)
        if empty:
            return (
                f"{empty} of {len(items)} items in a batch are None, made{by}: collating them fails; "
                "remove them from the dataset, or drop them in collate_fn"
            )
        shapes = list(dict.fromkeys(str(shape) for item in items for shape in [shapes_of(item)]))
        if len(shapes) > 1:
            return (
                f"items in a batch have different shapes ({shapes[0]} and {shapes[1]}), made{by}: give the "
                "loader a collate_fn that pads them"
            )
    return failure(error)


def shapes_of(item: Any) -> Any:
    """Return `item` with shapes in place of tensors and arrays."""
    if isinstance(item, Mapping):
        return {key: shapes_of(value) for key, value in item.items()}
    if isinstance(item, list | tuple):
        return [shapes_of(value) for value in item]
    shape = getattr(item, "shape", None)
    return list(shape) if isinstance(shape, tuple) else type(item).__name__


def bytes_of(batch: Any) -> int:
    """Return the bytes of all tensors, arrays and texts in a batch."""
    if isinstance(batch, Mapping):
        return sum(bytes_of(value) for value in batch.values())
    if isinstance(batch, list | tuple):
        return sum(bytes_of(value) for value in batch)
    if isinstance(batch, bytes | bytearray | str):
        return len(batch)
    if isinstance(batch, torch.Tensor):
        return batch.numel() * batch.element_size()
    size = getattr(batch, "nbytes", None)
    if isinstance(size, int):
        return size
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(batch))

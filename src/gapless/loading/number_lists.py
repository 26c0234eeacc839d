"""Try to make lists of numbers in items tensors, which collating would otherwise walk number by number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, default_collate

from gapless.loading.batches import BatchMaker, indices_of, is_iterable
from gapless.loading.loader_call import LoaderCall
from gapless.loading.nested import tensors_of
from gapless.loading.whole_batches import BatchTimes, is_cheaper, is_same, time_batches
from gapless.model.loading import BatchRemedy, Fetch

_MIN_NUMBERS = 4
"""Shorter lists are collated quickly enough."""
_NAME = "with_tensors"
"""The function that the code defines."""
_MAX_TRIED = 16
"""Batches that are made at most."""


def try_tensors(
    loader: DataLoader, fetch: Fetch, call: LoaderCall, seconds: float, *, skip: int = 0
) -> BatchRemedy | None:
    """Collate items whose lists of numbers are tensors; return what that costs, None if batches differ in
    more than these lists being stacked.
    """
    is_usual = loader.collate_fn is default_collate and loader._auto_collation
    if not is_usual or 4 * fetch.wall > seconds * 1e9:
        return None
    maker = BatchMaker(loader)
    requests = islice(indices_of(loader), 0 if is_iterable(loader) else skip, None)
    try:
        request = next(requests, None)
        items = _load(maker, request)
        lists = _ListsOfNumbers(items)
        if not lists.keys or not lists.is_stacked(default_collate(lists.convert_all(items))):
            return None
        is_stored = maker.stream is None and lists.are_same(items, _load(maker, request))
        times = time_batches(_batches(maker, requests, items, lists, is_stored), seconds / 2)
    except Exception:  # it does not work for these items: that is an answer
        return None
    return _remedy(call, lists, times, is_stored) if is_cheaper(times, fetch) else None


class _ListsOfNumbers:
    """The fields of `items` that hold lists of numbers, as `keys` (None: the item itself), and the
    `definition` of a function that makes them tensors.
    """

    def __init__(self, items: list[Any]) -> None:
        self.keys = _keys_of_lists(items[0])
        if not self.keys:
            return
        self._batch = default_collate(items)
        self.definition = _definition(items[0], self.keys, self._batch)
        self.length = len(_field(items[0], self.keys[0]))
        names: dict[str, Any] = {"torch": torch}
        exec(self.definition, names)  # our own text, with nothing of the user's but the keys
        self._convert: Callable[[Any], Any] = names[_NAME]

    def convert_all(self, items: list[Any]) -> list[Any]:
        """Return `items` with tensors."""
        return list(map(self._convert, items))

    def is_stacked(self, batch: Any) -> bool:
        """Whether `batch` is the one of the original items with its lists of tensors stacked."""
        other = self._batch
        if self.keys == [None]:
            return is_same(batch, _stack(other))
        if isinstance(other, dict):
            stacked: Any = {key: _stack(part) if key in self.keys else part for key, part in other.items()}
        else:
            stacked = [_stack(part) if key in self.keys else part for key, part in enumerate(other)]
        return is_same(batch, stacked)

    def are_same(self, items: list[Any], again: list[Any]) -> bool:
        """Whether two reads give the same lists: the dataset keeps them, and creates none for each item."""
        return all(
            _field(item, key) is _field(other, key)
            for item, other in zip(items, again, strict=True)
            for key in self.keys
        )


def _field(item: Any, key: Any) -> Any:
    return item if key is None else item[key]


def _stack(column: Any) -> torch.Tensor:
    if isinstance(column, torch.Tensor):
        return column
    return torch.stack([_stack(part) for part in column], dim=1)


def _load(maker: BatchMaker, request: Any) -> list[Any]:
    """Return the items of a batch."""
    items = [step() for step in maker.loads(request)]
    return list(items[0]) if maker.at_once else items


def _batches(
    maker: BatchMaker, requests: Iterator[Any], items: list[Any], lists: _ListsOfNumbers, is_stored: bool
) -> Iterator[Callable[[], Any]]:
    """Yield calls that load and collate a batch each; only `items` if there is no other.

    Items that the dataset stores are converted before the call, others in it.
    """

    def make(request: Any) -> Any:
        return default_collate(lists.convert_all(_load(maker, request)))

    def serve_batch(request: Any, ready: list[Any]) -> Any:
        _load(maker, request)
        return default_collate(ready)

    calls = 0
    for request in islice(requests, _MAX_TRIED):
        calls += 1
        if is_stored:
            yield partial(serve_batch, request, lists.convert_all(_load(maker, request)))
        else:
            yield partial(make, request)
    if not calls:
        yield lambda: default_collate(lists.convert_all(items))


def _keys_of_lists(item: Any) -> list[Any]:
    """Return the keys of fields that hold lists of numbers; ``[None]`` if the item itself is such a list."""
    if _is_of_numbers(item):
        return [None]
    if type(item) is dict:
        return [key for key, value in item.items() if _is_of_numbers(value)]
    if type(item) in (list, tuple):
        return [key for key, value in enumerate(item) if _is_of_numbers(value)]
    return []


def _is_of_numbers(value: Any) -> bool:
    """Whether `value` is a list or tuple of numbers of one type, or of such lists."""
    if type(value) not in (list, tuple) or not value:
        return False
    if type(value[0]) in (list, tuple):
        return all(map(_is_of_numbers, value))
    kind = type(value[0])
    is_number = kind in (int, float, bool) or (issubclass(kind, np.generic) and kind is not np.str_)
    return is_number and len(value) >= _MIN_NUMBERS and all(type(number) is kind for number in value)


def _definition(item: Any, keys: list[Any], batch: Any) -> str:
    """Return the source of a function that makes the fields `keys` tensors, of the types in `batch`."""
    converted = {key: _conversion("item" if key is None else f"item[{key!r}]", batch, key) for key in keys}
    if keys == [None]:
        return f"def {_NAME}(item):\n    return {converted[None]}"
    if type(item) is dict:
        begin, end, parts = "{", "}", ["**item", *(f"{key!r}: {text}" for key, text in converted.items())]
    else:
        begin, end = "(", ")"
        parts = [converted.get(number, f"item[{number}]") for number in range(len(item))]
    body = "".join(f"        {part},\n" for part in parts)
    return f"def {_NAME}(item):\n    return {begin}\n{body}    {end}"


def _conversion(text: str, batch: Any, key: Any) -> str:
    """Return an expression that makes `text` a tensor of the type that collating its numbers gives."""
    column = _field(batch, key)
    while isinstance(column, list | tuple):
        column = column[0]
    is_usual = column.dtype in (torch.int64, torch.bool)
    return f"torch.tensor({text})" if is_usual else f"torch.tensor({text}, dtype={column.dtype})"


def _remedy(call: LoaderCall, lists: _ListsOfNumbers, times: BatchTimes, is_stored: bool) -> BatchRemedy:
    if is_stored:
        code, place = call.with_items(_NAME, lists.definition), "once, before training"
    else:
        collate = f"def collate(items):\n    return default_collate([{_NAME}(item) for item in items])"
        imported = "from torch.utils.data import default_collate"
        code = call.with_collate("collate", "\n".join((imported, lists.definition, collate)))
        place = "before they are collated"
    fields = ", ".join(f"batch[{key!r}]" for key in lists.keys) if lists.keys != [None] else "the batch"
    become, now = ("becomes", "it is a list") if len(lists.keys) == 1 else ("each become", "they are lists")
    return BatchRemedy(
        kind="tensors",
        code=code,
        change=f"make lists of numbers tensors, {place}",
        differs=(
            f"{fields} {become} one tensor with a row for each item; now {now} of {lists.length:,} tensors"
        ),
        line=call.line,
        tried=len(times.each),
        batches=times.each,
        tensors=sum(1 for _ in tensors_of(times.last)),
    )

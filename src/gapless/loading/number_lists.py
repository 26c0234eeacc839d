"""Try to make lists of numbers in items tensors, which collating would otherwise walk number by number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, default_collate

from gapless.loading.batches import BatchMaker, indices_of, is_iterable
from gapless.loading.clock import Clock
from gapless.loading.digests import digest_memory
from gapless.loading.loader_call import LoaderCall
from gapless.loading.machine import free_memory
from gapless.loading.nested import tensors_of
from gapless.loading.whole_batches import BatchTimes, count_same, is_cheaper, is_same, time_batches
from gapless.model.loading import BatchRemedy, Fetch
from gapless.model.wording import count, duration, size

_MIN_NUMBERS = 4
"""Shorter lists are collated quickly enough."""
_TENSOR_BYTES = 512
"""Memory that a tensor takes besides its numbers."""
_MAX_MEMORY_SHARE = 0.25
"""Share of free memory that items which are converted once may take."""
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
    start = 0 if is_iterable(loader) else skip
    request, *requests = islice(indices_of(loader), start, start + _MAX_TRIED + 1)
    try:
        items = _load(maker, request)
        lists = _ListsOfNumbers(items, call.free_name("with_tensors"))
        if not lists.keys or not lists.is_stacked(items):
            return None
        storing = _describe_storing(loader, lists, items) if _is_stored(loader, maker, request) else ""
        times = time_batches(_batches(maker, requests or [request], lists, bool(storing)), seconds / 2)
        pairs = ((lambda request=request: lists.is_stacked(_load(maker, request))) for request in requests)
        compared = count_same(pairs, seconds / 2)
    except Exception:  # it does not work for these items: that is an answer
        return None
    if compared < 0 or not is_cheaper(times, fetch):
        return None
    return _remedy(call, lists, times, storing, 1 + compared)


def _is_stored(loader: DataLoader, maker: BatchMaker, request: Any) -> bool:
    """Whether the dataset keeps its items, and reading them changes nothing: all could be read once."""
    if maker.stream is not None or type(loader.sampler) not in (RandomSampler, SequentialSampler):
        return False
    items, state = _load(maker, request), digest_memory(loader.dataset)
    again = _load(maker, request)
    return digest_memory(loader.dataset) == state and all(
        part is other
        for item, same in zip(items, again, strict=True)
        for part, other in zip(_parts(item), _parts(same), strict=True)
    )


def _parts(item: Any) -> list[Any]:
    if type(item) is dict:
        return list(item.values())
    return list(item) if type(item) in (list, tuple) and not _is_of_numbers(item) else [item]


def _describe_storing(loader: DataLoader, lists: _ListsOfNumbers, items: list[Any]) -> str:
    """Say what it takes to convert all items once; "" if that is too much memory."""
    clock = Clock()
    begin = clock.wall()
    converted = lists.convert_all(items)
    each = (clock.wall() - begin) / len(items)
    clock.close()
    number = len(loader.dataset)  # type: ignore[arg-type]
    tensors = [tensor for item in converted for tensor in tensors_of(item)]
    memory = number * sum(tensor.nbytes + _TENSOR_BYTES for tensor in tensors) // len(items)
    if not 0 <= memory < _MAX_MEMORY_SHARE * free_memory():
        return ""
    return f"converting {count(number, 'item')} takes about {duration(number * each)} and {size(memory)}"


class _ListsOfNumbers:
    """The fields of `items` that hold lists of numbers, as `keys` (None: the item itself), and the
    `definition` of a function that makes them tensors.
    """

    def __init__(self, items: list[Any], name: str) -> None:
        self.name = name
        self.keys = _keys_of_lists(items)
        if not self.keys:
            return
        self.definition = _definition(name, items[0], self.keys, default_collate(items))
        self.length = len(_field(items[0], self.keys[0]))
        names: dict[str, Any] = {"torch": torch}
        exec(self.definition, names)  # our own text, with nothing of the user's but the keys
        self._convert: Callable[[Any], Any] = names[name]

    def convert_all(self, items: list[Any]) -> list[Any]:
        """Return `items` with tensors."""
        return list(map(self._convert, items))

    def is_stacked(self, items: list[Any]) -> bool:
        """Whether the batch of converted `items` is that of the original ones with its lists of tensors
        stacked.
        """
        batch, other = default_collate(self.convert_all(items)), default_collate(items)
        if self.keys == [None]:
            return is_same(batch, _stack(other))
        if isinstance(other, dict):
            stacked: Any = {key: _stack(part) if key in self.keys else part for key, part in other.items()}
        else:
            stacked = [_stack(part) if key in self.keys else part for key, part in enumerate(other)]
        return is_same(batch, stacked)


def _field(item: Any, key: Any) -> Any:
    return item if key is None else item[key]


def _stack(column: Any) -> torch.Tensor:
    if isinstance(column, torch.Tensor):
        return column
    parts = [_stack(part) for part in column]
    if len({part.dtype for part in parts}) > 1:
        raise TypeError("positions of a list differ in type")
    return torch.stack(parts, dim=1)


def _load(maker: BatchMaker, request: Any) -> list[Any]:
    """Return the items of a batch."""
    items = [step() for step in maker.loads(request)]
    return list(items[0]) if maker.at_once else items


def _batches(
    maker: BatchMaker, requests: list[Any], lists: _ListsOfNumbers, is_stored: bool
) -> Iterator[Callable[[], Any]]:
    """Yield calls that load and collate a batch each.

    Items that the dataset stores are converted before the call, others in it.
    """

    def convert_and_collate(request: Any) -> Any:
        return default_collate(lists.convert_all(_load(maker, request)))

    def collate_ready(request: Any, items: list[Any]) -> Any:
        _load(maker, request)
        return default_collate(items)

    for request in requests:
        if is_stored:
            yield partial(collate_ready, request, lists.convert_all(_load(maker, request)))
        else:
            yield partial(convert_and_collate, request)


def _keys_of_lists(items: list[Any]) -> list[Any]:
    """Return the keys of fields that hold lists of numbers, of one type in all items; ``[None]`` if the items
    themselves are such lists.
    """
    item, keys = items[0], list[Any]()
    if _is_of_numbers(item):
        keys = [None]
    elif type(item) is dict:
        keys = list(item)
    elif type(item) in (list, tuple):
        keys = list(range(len(item)))
    return [key for key in keys if _have_numbers_of_one_type([_field(item, key) for item in items])]


def _have_numbers_of_one_type(values: list[Any]) -> bool:
    return all(map(_is_of_numbers, values)) and len(set(map(_kind, values))) == 1


def _kind(value: Any) -> type:
    """Return the type of the numbers in a list of numbers."""
    return _kind(value[0]) if type(value) in (list, tuple) else type(value)


def _is_of_numbers(value: Any) -> bool:
    """Whether `value` is a list or tuple of numbers of one type, or of such lists."""
    if type(value) not in (list, tuple) or not value:
        return False
    if type(value[0]) in (list, tuple):
        return _have_numbers_of_one_type(value)
    kind = type(value[0])
    is_number = kind in (int, float, bool) or (issubclass(kind, np.generic) and kind is not np.str_)
    return is_number and len(value) >= _MIN_NUMBERS and all(type(number) is kind for number in value)


def _definition(name: str, item: Any, keys: list[Any], batch: Any) -> str:
    """Return the source of a function `name` that makes the fields `keys` tensors, of the types in
    `batch`.
    """
    converted = {key: _conversion("item" if key is None else f"item[{key!r}]", batch, key) for key in keys}
    if keys == [None]:
        return f"def {name}(item):\n    return {converted[None]}"
    if type(item) is dict:
        begin, end, parts = "{", "}", ["**item", *(f"{key!r}: {text}" for key, text in converted.items())]
    else:
        begin, end = "(", ")"
        parts = [converted.get(number, f"item[{number}]") for number in range(len(item))]
    body = "".join(f"        {part},\n" for part in parts)
    return f"def {name}(item):\n    return {begin}\n{body}    {end}"


def _conversion(text: str, batch: Any, key: Any) -> str:
    """Return an expression that makes `text` a tensor of the type that collating its numbers gives."""
    column = _field(batch, key)
    while isinstance(column, list | tuple):
        column = column[0]
    is_usual = column.dtype in (torch.int64, torch.bool)
    return f"torch.tensor({text})" if is_usual else f"torch.tensor({text}, dtype={column.dtype})"


def _remedy(
    call: LoaderCall, lists: _ListsOfNumbers, times: BatchTimes, storing: str, compared: int
) -> BatchRemedy:
    if storing:
        code, place = call.with_items(lists.name, lists.definition), "once, before training"
        storing = f"; `loader.dataset` is then a list of all items: {storing}"
    else:
        name = call.free_name("collate")
        collate = f"def {name}(items):\n    return default_collate([{lists.name}(item) for item in items])"
        imported = "from torch.utils.data import default_collate"
        code = call.with_collate(name, "\n".join((imported, lists.definition, collate)))
        place = "before they are collated"
    fields = ", ".join(f"batch[{key!r}]" for key in lists.keys) if lists.keys != [None] else "the batch"
    become, now = ("becomes", "it is a list") if len(lists.keys) == 1 else ("each become", "they are lists")
    return BatchRemedy(
        kind="tensors",
        code=code,
        change=f"make lists of numbers tensors, {place}",
        differs=(
            f"{fields} {become} one tensor with a row for each item; now {now} of {lists.length:,} tensors"
            + storing
        ),
        line=call.line,
        compared=compared,
        batches=times.each,
        tensors=sum(1 for _ in tensors_of(times.last)),
    )

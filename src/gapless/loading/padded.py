"""How much of the batches is padding, by the items that they were made of or by the padding itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy
import torch

from gapless.loading.bucket import BucketBatchSampler
from gapless.model.loading_feed import Padding

_MOST, _LEAST = 4096, 16
"""Lengths that are noted at most, and that are needed to say anything."""
_SHORT = 4
"""Places below which a field is no sequence."""
_MULTIPLE, _EDGES = 8, 4
"""Lengths are rounded up to multiples of it; fixed lengths that are worth having different graphs for."""

Field = tuple[str, torch.Tensor]


class Lengths:
    """Looks at one batch after another; `padding` says what was seen."""

    def __init__(self) -> None:
        self._known: dict[str, list[int]] = defaultdict(list)
        self._places: dict[str, int] = defaultdict(int)
        self._rows: dict[str, int] = defaultdict(int)
        self._out: set[str] = set()
        self._inside: set[str] = set()
        self._batch = 0

    def look(self, items: Any, batch: Any) -> None:
        """Note the lengths of the `items` in `batch`, where they can be told."""
        fields = [field for field in fields_of(batch) if _sequence(field[1])]
        self._batch = max(self._batch, max((len(tensor) for _, tensor in fields), default=0))
        for name, tensor in fields:
            if len(self._known[name]) >= _MOST or name in self._out:
                continue
            found = _of_items(items, tensor)
            if found is None:
                found = _of_values(tensor, [other for _, other in fields if other is not tensor])
                if found is not None:
                    self._inside.add(name)
            if found is None:
                self._out.add(name)
                continue
            self._known[name] += found
            self._places[name] += tensor.shape[0] * tensor.shape[1]
            self._rows[name] += tensor.shape[0]

    @property
    def padding(self) -> Padding | None:
        """Of the field with the most places of which it is known; None where there is none."""
        told = [name for name in self._known if name not in self._out and len(self._known[name]) >= _LEAST]
        if not told:
            return None
        # Of fields of one size (a mask, and what it masks) the items' own lengths are surest, then the least.
        name = max(told, key=lambda one: (self._places[one], one not in self._inside, sum(self._known[one])))
        lengths, places = self._known[name], self._places[name]
        share = 1 - sum(lengths) / places
        size = places / self._rows[name]
        made = Padding(
            field=name,
            share=share,
            size=size,
            lengths=tuple(lengths),
            batch=self._batch,
            inside=name in self._inside,
        )
        return _less(made) if share > 0 else made


def fields_of(batch: Any, name: str = "", deep: int = 2) -> Iterator[Field]:
    """The tensors of a batch that is a tensor, or holds them by key or position, with their names."""
    if isinstance(batch, torch.Tensor):
        yield name, batch
    elif deep and isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from fields_of(value, f"{name}.{key}" if name else str(key), deep - 1)
    elif deep and isinstance(batch, (list, tuple)):
        keys = getattr(batch, "_fields", range(len(batch)))
        for key, value in zip(keys, batch, strict=True):
            yield from fields_of(value, f"{name}[{key}]", deep - 1)


def _sequence(tensor: torch.Tensor) -> bool:
    strided = tensor.layout == torch.strided and not tensor.is_nested
    return strided and tensor.ndim >= 2 and tensor.shape[0] >= 2 and tensor.shape[1] >= _SHORT


def _of_items(items: Any, tensor: torch.Tensor) -> list[int] | None:
    """The lengths of those parts of the items that `tensor` is made of; None if they are all alike, or none
    are. One that is shorter than the batch is compared value by value."""
    if not isinstance(items, (list, tuple)) or len(items) != len(tensor):
        return None
    for column in zip(*(_parts(item) for item in items), strict=False):
        lengths = [len(part) for part in column]
        if len(set(lengths)) < 2 or max(lengths) > tensor.shape[1]:
            continue
        at = lengths.index(min(lengths))
        if not lengths[at]:
            continue
        part, row = torch.as_tensor(column[at]), tensor[at]
        if part.shape[1:] != row.shape[1:]:
            continue
        ends = row[: len(part)], row[len(row) - len(part) :]
        if any(torch.equal(end.double(), part.double()) for end in ends):
            return lengths
    return None


def _parts(item: Any) -> list[Any]:
    """What of an item has a length: tensors, arrays and lists of numbers, in order."""
    if isinstance(item, Mapping):
        found = list(item.values())
    elif isinstance(item, (tuple, list)) and not _numbers(item):
        found = list(item)
    else:
        found = [item]
    return [part for part in found if getattr(part, "ndim", 0) >= 1 or _numbers(part)]


def _numbers(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], (int, float))


def _of_values(tensor: torch.Tensor, others: Sequence[torch.Tensor]) -> list[int] | None:
    """The lengths in a table of whole numbers, of which each row begins or ends with its padding.

    A mask says them; otherwise padding is one value that stands nowhere else.
    """
    whole = not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.uint8
    if tensor.ndim != 2 or not whole:
        return None
    table = tensor.detach().cpu().numpy()
    if numpy.isin(table, (0, 1)).all():
        return _masked(table.astype(bool), others)
    for turned in (table[:, ::-1], table):  # padded at the end, or at the beginning
        for value in {
            int(turned[0, 0]),
            int(turned[-1, 0]),
            int(turned[:, 0].min()),
            int(turned[:, 0].max()),
        }:
            same = turned == value
            run = numpy.where(same.all(axis=1), same.shape[1], same.argmin(axis=1))
            lengths = same.shape[1] - run
            if (same.sum(axis=1) == run).all() and len(set(lengths)) > 1 and run.max() > 1:
                return [int(length) for length in lengths]
    return None


def _masked(mask: numpy.ndarray, others: Sequence[torch.Tensor]) -> list[int] | None:
    """Lengths by a mask whose rows change once; what is masked is told by another table, all alike there."""
    steps = numpy.diff(mask.astype(numpy.int8), axis=1)
    if not ((steps <= 0).all() or (steps >= 0).all()):
        return None
    kept = mask
    for other in others:
        if tuple(other.shape) != mask.shape or other.is_floating_point():
            continue
        table = other.detach().cpu().numpy()
        if numpy.isin(table, (0, 1)).all():
            continue
        inside, outside = (len(numpy.unique(table[part])) for part in (mask, ~mask))
        if inside <= 1 < outside:
            kept = ~mask
    return [int(count) for count in kept.sum(axis=1)]


def _less(made: Padding) -> Padding:
    """`made` with what other ways to batch and to pad would leave."""
    lengths, batch = numpy.array(made.lengths), made.batch
    if batch < 2 or len(lengths) < 4 * batch:
        return made
    drawn = [lengths[at : at + batch] for at in range(0, len(lengths) - batch + 1, batch)]
    sampler = BucketBatchSampler(made.lengths, batch_size=batch, pad_to=_MULTIPLE, rank=0, ranks=1)
    alike = [lengths[list(indices)] for indices in sampler]
    edges = best_edges(made.lengths, _EDGES)
    up = numpy.array(edges)[numpy.searchsorted(edges, lengths)]
    values = {
        "dynamic": _share(drawn),
        "sorted": _share(alike),
        "edges": edges,
        "fixed": float(1 - lengths.sum() / up.sum()),
    }
    return msgspec.structs.replace(made, **values)


def _share(batches: Sequence[numpy.ndarray]) -> float:
    """The part that is padding where each batch is as long as its longest item."""
    real = sum(int(one.sum()) for one in batches)
    places = sum(len(one) * _up(int(one.max())) for one in batches)
    return 1 - real / places if places else 0.0


def _up(length: int) -> int:
    return -(-length // _MULTIPLE) * _MULTIPLE


def best_edges(lengths: Sequence[int], most: int) -> tuple[int, ...]:
    """At most so many lengths to pad to, multiples of 8, that leave the least padding.

    The last holds the longest; which others is found over all choices, item counts summed up.
    """
    sizes, counts = numpy.unique([_up(length) for length in lengths], return_counts=True)
    below = numpy.concatenate([[0], numpy.cumsum(counts)])
    best: dict[int, tuple[int, tuple[int, ...]]] = {
        0: (0, ())
    }  # places used by the first so many sizes, and where they are cut
    for _ in range(min(most, len(sizes))):
        reached = dict(best)
        for begin, (places, cuts) in best.items():
            for end in range(begin + 1, len(sizes) + 1):
                more = places + int(below[end] - below[begin]) * int(sizes[end - 1])
                if end not in reached or more < reached[end][0]:
                    reached[end] = (more, (*cuts, int(sizes[end - 1])))
        best = reached
    return best[len(sizes)][1]

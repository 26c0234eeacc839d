"""Measure how much of the batches is padding, from their items or the padding values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy
import torch

from gapless.loading.bucket import BucketBatchSampler
from gapless.model.loading_feed import Padding

_MAX_LENGTHS, _MIN_LENGTHS = 4096, 16
"""Lengths recorded at most, and needed for a result."""
_MIN_SEQUENCE = 4
"""Shorter fields are no sequences."""
_PAD_TO, _MAX_EDGES = 8, 4
"""Lengths are rounded up to multiples of the first; up to the second many fixed lengths have graphs of their
own.
"""

NamedTensor = tuple[str, torch.Tensor]


class PaddingMeter:
    """Inspects one batch after another; `padding` is the result."""

    def __init__(self) -> None:
        self._lengths: dict[str, list[int]] = defaultdict(list)
        self._places: dict[str, int] = defaultdict(int)
        self._rows: dict[str, int] = defaultdict(int)
        self._alike: dict[str, int] = defaultdict(int)
        self._values: dict[str, int] = defaultdict(int)
        self._out: set[str] = set()
        self._inside: set[str] = set()
        self._batch = 0

    def look(self, items: Any, batch: Any) -> None:
        """Record the lengths of the `items` in `batch`, if they can be determined."""
        tensors = [tensor for _, tensor in fields_of(batch) if not tensor.is_nested]
        fields = [field for field in fields_of(batch) if _is_sequence(field[1])]
        self._batch = max(self._batch, max((len(tensor) for _, tensor in fields), default=0))
        for name, tensor in fields:
            if len(self._lengths[name]) >= _MAX_LENGTHS or name in self._out:
                continue
            item_lengths = _lengths_of_items(items, tensor)
            if item_lengths is None:
                item_lengths = _lengths_of_values(
                    tensor,
                    [tensor_of_field for _, tensor_of_field in fields if tensor_of_field is not tensor],
                )
                if item_lengths is not None:
                    self._inside.add(name)
            if item_lengths is None:
                self._out.add(name)
                continue
            self._lengths[name] += item_lengths
            self._places[name] += tensor.shape[0] * tensor.shape[1]
            self._rows[name] += tensor.shape[0]
            self._alike[name] += sum(each.numel() for each in tensors if tensor.shape[1] in each.shape[1:])
            self._values[name] += sum(each.numel() for each in tensors)

    @property
    def padding(self) -> Padding | None:
        """The padding of the largest field with known lengths; None if there is none."""
        measured = [
            name
            for name in self._lengths
            if name not in self._out and len(self._lengths[name]) >= _MIN_LENGTHS
        ]
        if not measured:
            return None
        # Of fields of one size (a mask and its values) lengths of items are most certain, then the least.
        name = max(
            measured,
            key=lambda field: (self._places[field], field not in self._inside, sum(self._lengths[field])),
        )
        lengths, places = self._lengths[name], self._places[name]
        share = 1 - sum(lengths) / places
        size = places / self._rows[name]
        result = Padding(
            field=name,
            share=share,
            size=size,
            lengths=tuple(lengths),
            batch=self._batch,
            inside=name in self._inside,
            part=self._alike[name] / self._values[name],
        )
        return _with_alternatives(result) if share > 0 else result


def fields_of(batch: Any, name: str = "", deep: int = 2) -> Iterator[NamedTensor]:
    """Yield the tensors of a batch that is a tensor, or holds them by key or index, with their names."""
    if isinstance(batch, torch.Tensor):
        yield name, batch
    elif deep and isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from fields_of(value, f"{name}.{key}" if name else str(key), deep - 1)
    elif deep and isinstance(batch, (list, tuple)):
        keys = getattr(batch, "_fields", range(len(batch)))
        for key, value in zip(keys, batch, strict=True):
            yield from fields_of(value, f"{name}[{key}]", deep - 1)


def _is_sequence(tensor: torch.Tensor) -> bool:
    strided = tensor.layout == torch.strided and not tensor.is_nested
    return strided and tensor.ndim >= 2 and tensor.shape[0] >= 2 and tensor.shape[1] >= _MIN_SEQUENCE


def _lengths_of_items(items: Any, tensor: torch.Tensor) -> list[int] | None:
    """Return the lengths of the parts of the items that make up `tensor`; None if they are all equal or
    unknown. A part shorter than the batch is compared by value.
    """
    if not isinstance(items, (list, tuple)) or len(items) != len(tensor):
        return None
    for column in zip(*(_sized_parts(item) for item in items), strict=False):
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


def _sized_parts(item: Any) -> list[Any]:
    """Return the parts of an item that have a length: tensors, arrays and lists of numbers, in order."""
    if isinstance(item, Mapping):
        values = list(item.values())
    elif isinstance(item, (tuple, list)) and not _is_number_list(item):
        values = list(item)
    else:
        values = [item]
    return [part for part in values if getattr(part, "ndim", 0) >= 1 or _is_number_list(part)]


def _is_number_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], (int, float))


def _lengths_of_values(tensor: torch.Tensor, tables: Sequence[torch.Tensor]) -> list[int] | None:
    """Return the lengths in an integer table whose rows begin or end with padding.

    For a mask, these are its counts; otherwise padding is a value that occurs nowhere else in its row.
    """
    whole = not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.uint8
    if tensor.ndim != 2 or not whole:
        return None
    table = tensor.detach().cpu().numpy()
    if numpy.isin(table, (0, 1)).all():
        return _lengths_of_mask(table.astype(bool), tables)
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


def _lengths_of_mask(mask: numpy.ndarray, tables: Sequence[torch.Tensor]) -> list[int] | None:
    """Return lengths from a mask whose rows change once; another table shows which value is padding."""
    steps = numpy.diff(mask.astype(numpy.int8), axis=1)
    if not ((steps <= 0).all() or (steps >= 0).all()):
        return None
    kept = mask
    for table_of_field in tables:
        if tuple(table_of_field.shape) != mask.shape or table_of_field.is_floating_point():
            continue
        table = table_of_field.detach().cpu().numpy()
        if numpy.isin(table, (0, 1)).all():
            continue
        inside, outside = (len(numpy.unique(table[part])) for part in (mask, ~mask))
        if inside <= 1 < outside:
            kept = ~mask
    return [int(count) for count in kept.sum(axis=1)]


def _with_alternatives(padding: Padding) -> Padding:
    """Add the padding that other ways to batch and to pad would leave."""
    lengths, batch = numpy.array(padding.lengths), padding.batch
    if batch < 2 or len(lengths) < 4 * batch:
        return padding
    drawn = [lengths[at : at + batch] for at in range(0, len(lengths) - batch + 1, batch)]
    sampler = BucketBatchSampler(padding.lengths, batch_size=batch, pad_to=_PAD_TO, rank=0, ranks=1)
    alike = [lengths[list(indices)] for indices in sampler]
    edges = best_edges(padding.lengths, _MAX_EDGES)
    up = numpy.array(edges)[numpy.searchsorted(edges, lengths)]
    values = {
        "dynamic": _padding_share(drawn),
        "sorted": _padding_share(alike),
        "edges": edges,
        "fixed": float(1 - lengths.sum() / up.sum()),
    }
    return msgspec.structs.replace(padding, **values)


def _padding_share(batches: Sequence[numpy.ndarray]) -> float:
    """Return the share of padding if each batch is as long as its longest item."""
    real = sum(int(batch.sum()) for batch in batches)
    places = sum(len(batch) * _round_up(int(batch.max())) for batch in batches)
    return 1 - real / places if places else 0.0


def _round_up(length: int) -> int:
    return -(-length // _PAD_TO) * _PAD_TO


def best_edges(lengths: Sequence[int], most: int) -> tuple[int, ...]:
    """Return at most `most` lengths to pad to, multiples of 8, with the least padding.

    The last fits the longest; the others are found by dynamic programming over all choices.
    """
    sizes, counts = numpy.unique([_round_up(length) for length in lengths], return_counts=True)
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

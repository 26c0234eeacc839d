"""Edge cases, made from an input: masks and labels of every kind, odd sizes, other types, NaN."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from gapless.prove import lengths
from gapless.prove.inputs import Input
from gapless.prove.recognise import Known, Labels, batch, matching

Case = tuple[str, Callable[[], Input]]
"""The name of a case, and what makes it."""

_PADDING = re.compile(r"(?i)pad")


def edge_cases(given: Input, known: Known) -> list[Case]:
    """The edge cases of `given`, each with its own name; nothing in them is drawn at random."""
    found = [
        *_mask_cases(given, known),
        *_label_cases(given, known),
        *_length_cases(given, known),
        *_size_cases(given, known),
        *_type_cases(given, known),
        *_value_cases(given, known),
    ]
    return [(name, _named(name, make)) for name, make in found]


def _named(name: str, make: Callable[[], Input]) -> Callable[[], Input]:
    return lambda: replace(make(), name=name, made="edge")


def _only(given: Input, path: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Input:
    """`given` with the tensor at `path` changed; it requires gradients if it did."""

    def visit(where: str, tensor: torch.Tensor) -> torch.Tensor:
        if where != path:
            return tensor
        return change(tensor.detach().clone()).requires_grad_(tensor.requires_grad)

    return given.mapped(visit)


def _one(like: torch.Tensor, rest: Any, value: Any) -> torch.Tensor:
    """A tensor of `rest` with a single element, in the middle, that is `value`."""
    made = torch.full_like(like, rest)
    made.view(-1)[made.numel() // 2] = value
    return made


# -- masks and labels ------------------------------------------------------------------------------


def _mask_cases(given: Input, known: Known) -> Iterator[Case]:
    for path in known.masks:
        of = f" {path}" if len(known.masks) > 1 else ""
        for kind, change in (
            ("empty mask", torch.zeros_like),
            ("full mask", torch.ones_like),
            ("mask of one element", lambda old: _one(old.contiguous(), 0, 1)),
        ):
            yield f"{kind}{of}", partial(_only, given, path, change)


def _label_cases(given: Input, known: Known) -> Iterator[Case]:
    for labels in known.labels:
        of = f" {labels.path}" if len(known.labels) > 1 else ""
        for kind, change in _label_changes(labels):
            yield f"{kind}{of}", partial(_only, given, labels.path, change)


def _length_cases(given: Input, known: Known) -> Iterator[Case]:
    for one in known.lengths:
        of = f" {one.path}" if len(known.lengths) > 1 else ""
        for kind, change in lengths.changes(one):
            yield f"{kind}{of}", partial(_only, given, one.path, change)


def _label_changes(labels: Labels) -> Iterator[tuple[str, Callable[[torch.Tensor], torch.Tensor]]]:
    values, ignored = labels.values, labels.ignored
    if values:
        yield "one class", lambda old: torch.full_like(old, values[0])
    if len(values) > 1:
        yield "last class only", lambda old: torch.full_like(old, values[-1])
        yield "two classes", lambda old: _in_turn(old, values[0], values[-1])
    if ignored is None:
        if not torch.cuda.is_available():  # see `recognise`: a label out of range
            yield "negative labels", lambda old: _in_turn(old, -1, values[0] if values else 0)
        return
    yield "all ignored", lambda old: torch.full_like(old, ignored)
    if values:
        yield "all but one ignored", lambda old: _one(old.contiguous(), ignored, values[0])


def _in_turn(old: torch.Tensor, first: int, second: int) -> torch.Tensor:
    made = torch.full_like(old.contiguous(), second)
    made.view(-1)[::2] = first
    return made


# -- sizes and types -------------------------------------------------------------------------------


def _size_cases(given: Input, known: Known) -> Iterator[Case]:
    size, before = batch(given), dict(given.tensors())

    def trimmed(trims: Trims) -> Input:
        return lengths.cut(_trimmed(given, trims), known.lengths, before)

    if size > 1:
        yield "batch of one", lambda: trimmed({0: (size, 1)})
    if size:
        yield "empty batch", lambda: trimmed({0: (size, 0)})
    odd = _odd(given, size)
    if odd:
        yield "odd sizes", lambda: trimmed(odd)
    if any(tensor.dim() for _, tensor in given.tensors()):
        yield "strided tensors", lambda: given.mapped(_strided)


Trims = dict[int, tuple[int, int]]
"""Dimension to the size that is cut and the one it is cut to."""


def _odd(given: Input, size: int) -> Trims:
    """How to make sizes odd that all tensors share: the batch, and height and width or else the length."""
    trims = {0: (size, _less(size))} if _less(size) else {}
    planes = [tensor.shape for _, tensor in given.tensors() if tensor.dim() > 2]
    rows = [tensor.shape for _, tensor in given.tensors() if tensor.dim() > 1]
    if len({shape[-2:] for shape in planes}) == 1 and len(planes) == len(rows):
        shared = {-2: planes[0][-2], -1: planes[0][-1]}
    elif len(rows) > 1 and len({shape[1] for shape in rows}) == 1:
        shared = {1: rows[0][1]}
    else:
        shared = {}
    return trims | {place: (long, _less(long)) for place, long in shared.items() if _less(long)}


def _less(size: int) -> int:
    """The next smaller odd size; 0 where there is none."""
    return size - 1 - size % 2 if size > 1 + size % 2 else 0


def _trimmed(given: Input, trims: Trims) -> Input:
    def visit(path: str, tensor: torch.Tensor) -> torch.Tensor:
        cut = tensor.detach()
        for place, (long, short) in trims.items():
            enough = place >= 0 or cut.dim() > 2
            if enough and -cut.dim() <= place < cut.dim() and tensor.shape[place] == long:
                cut = cut.narrow(place, 0, short)
        return cut.clone().requires_grad_(tensor.requires_grad)

    return given.mapped(visit)


def _strided(path: str, tensor: torch.Tensor) -> torch.Tensor:
    """The same values with a gap after each element."""
    if not tensor.dim() or tensor.layout is not torch.strided:
        return tensor
    old = tensor.detach()
    room = torch.zeros((*old.shape[:-1], 2 * old.shape[-1]), dtype=old.dtype, device=old.device)
    made = room[..., ::2]
    made.copy_(old)
    return made.requires_grad_(tensor.requires_grad)


def _type_cases(given: Input, known: Known) -> Iterator[Case]:
    wide = {path for path, tensor in given.tensors() if tensor.dtype in (torch.float32, torch.float64)}
    if not wide:
        return
    for name, dtype in (("half precision", torch.float16), ("bfloat16", torch.bfloat16)):
        yield name, partial(cast, given, dtype)


def cast(given: Input, dtype: torch.dtype) -> Input:
    """`given` with floating tensors of `dtype`, and modules to match."""

    def visit(path: str, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        return tensor.detach().to(dtype).requires_grad_(tensor.requires_grad)

    return given.mapped(visit, dtype=dtype)


# -- values ----------------------------------------------------------------------------------------


def _value_cases(given: Input, known: Known) -> Iterator[Case]:
    for path in known.values:
        for word, value in (("NaN", float("nan")), ("infinity", float("inf"))):
            name = f"{word} in {path}"
            yield name, partial(with_value, given, known, path, value, counts=True)
        if _excluding(given, known, path):
            name = f"NaN in {path} where it does not count"
            yield name, partial(with_value, given, known, path, float("nan"), counts=False)
        for by, made in _padded(given, known, path):
            yield f"padding of {path} filled with NaN ({by})", partial(_itself, made)


def _itself(given: Input) -> Input:
    return given


def _padded(given: Input, known: Known, path: str) -> Iterator[tuple[str, Input]]:
    """`given` with NaN everywhere at `path` where a mask, labels or lengths leave it out, by what does."""
    named = dict(given.tensors())
    values = named[path]
    for one in known.lengths:
        made = lengths.padded(given, one, path)
        if made is not None:
            yield one.path, made
    for by, out in _left_out(known, named):
        where = _leading(out, values)
        if where is not None and where.any():
            filling = partial(lengths.filled, where=where)
            yield by, replace(_only(given, path, filling), lenient=True)


def _left_out(known: Known, named: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Where masks and labels leave something out. A mask that is named for padding holds where padding is."""
    for path in known.masks:
        held = named[path].detach() != 0
        yield path, held if _PADDING.search(path) else ~held
    for labels in known.labels:
        if labels.ignored is not None:
            yield labels.path, named[labels.path] == labels.ignored


def _leading(out: torch.Tensor, values: torch.Tensor) -> torch.Tensor | None:
    """`out` as a mask of all of `values`; with one dimension less, it holds for each of the channels."""
    shape, wide = tuple(out.shape), tuple(values.shape)
    if shape and shape == wide[: len(shape)]:
        return out.reshape(*shape, *[1] * (len(wide) - len(shape))).expand(wide)
    if shape and len(wide) == len(shape) + 1 and shape == wide[:1] + wide[2:]:
        return out.unsqueeze(1).expand(wide)
    return None


def _excluding(given: Input, known: Known, path: str) -> str:
    """The mask or labels that leave out a part of the values at `path`; "" where nothing does."""
    named = dict(given.tensors())
    candidates = (*known.masks, *(one.path for one in known.labels if one.ignored is not None and one.values))
    return next((one for one in candidates if matching(named[one], named[path]) is not None), "")


def with_value(given: Input, known: Known, path: str, value: float, counts: bool) -> Input:
    """`given` with `value` in one place at `path`, one that counts or one that is masked or ignored."""
    by = _excluding(given, known, path)
    named = dict(given.tensors())
    index: Any = (0,) * named[path].dim()
    if by:
        index, given = _placed(given, known, by, counts)
        match = matching(named[by], named[path])
        assert match is not None
        index = match(index)

    def change(old: torch.Tensor) -> torch.Tensor:
        if by or old.dim():
            old[index] = value
        else:
            old.fill_(value)
        return old

    return replace(_only(given, path, change), lenient=True)


def _placed(given: Input, known: Known, by: str, counts: bool) -> tuple[tuple[int, ...], Input]:
    """An index at which the mask or labels `by` count or do not, and `given` changed there to make it so."""
    tensor = dict(given.tensors())[by]
    index = (0,) * tensor.dim()
    labels = next((one for one in known.labels if one.path == by), None)
    wanted: Any = counts
    if labels is not None:
        wanted = labels.values[0] if counts else labels.ignored

    def change(old: torch.Tensor) -> torch.Tensor:
        old[index] = wanted
        return old

    return index, _only(given, by, change)

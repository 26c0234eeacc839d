"""Make edge cases from an input: masks and labels of every kind, odd sizes, other types, NaN."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from gapless.prove import lengths
from gapless.prove.inputs import Input
from gapless.prove.recognise import Labels, RecognisedInput, batch_size, index_mapping

Case = tuple[str, Callable[[], Input]]
"""The name of a case, and the function that makes its input."""

_PADDING = re.compile(r"(?i)pad")


def edge_cases(call_input: Input, recognised: RecognisedInput) -> list[Case]:
    """Return the edge cases of `call_input`, each with its own name; none uses random numbers."""
    cases = [
        *_mask_cases(call_input, recognised),
        *_label_cases(call_input, recognised),
        *_length_cases(call_input, recognised),
        *_size_cases(call_input, recognised),
        *_type_cases(call_input, recognised),
        *_value_cases(call_input, recognised),
    ]
    return [(name, _with_name(name, make)) for name, make in cases]


def _with_name(name: str, make: Callable[[], Input]) -> Callable[[], Input]:
    return lambda: replace(make(), name=name, made="edge")


def _change_tensor(call_input: Input, path: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Input:
    """Return `call_input` with the tensor at `path` changed; it requires gradients if it did."""

    def visit(where: str, tensor: torch.Tensor) -> torch.Tensor:
        if where != path:
            return tensor
        return change(tensor.detach().clone()).requires_grad_(tensor.requires_grad)

    return call_input.map_tensors(visit)


def _fill_except_middle(like: torch.Tensor, rest: Any, value: Any) -> torch.Tensor:
    """Return a tensor full of `rest`, with `value` as its middle element."""
    filled_tensor = torch.full_like(like, rest)
    filled_tensor.view(-1)[filled_tensor.numel() // 2] = value
    return filled_tensor


# -- masks and labels ------------------------------------------------------------------------------


def _mask_cases(call_input: Input, recognised: RecognisedInput) -> Iterator[Case]:
    for path in recognised.masks:
        of = f" {path}" if len(recognised.masks) > 1 else ""
        for kind, change in (
            ("empty mask", torch.zeros_like),
            ("full mask", torch.ones_like),
            ("mask of one element", lambda old: _fill_except_middle(old.contiguous(), 0, 1)),
        ):
            yield f"{kind}{of}", partial(_change_tensor, call_input, path, change)


def _label_cases(call_input: Input, recognised: RecognisedInput) -> Iterator[Case]:
    for labels in recognised.labels:
        of = f" {labels.path}" if len(recognised.labels) > 1 else ""
        for kind, change in _label_changes(labels):
            yield f"{kind}{of}", partial(_change_tensor, call_input, labels.path, change)


def _length_cases(call_input: Input, recognised: RecognisedInput) -> Iterator[Case]:
    for length in recognised.lengths:
        of = f" {length.path}" if len(recognised.lengths) > 1 else ""
        for kind, change in lengths.length_changes(length):
            yield f"{kind}{of}", partial(_change_tensor, call_input, length.path, change)


def _label_changes(labels: Labels) -> Iterator[tuple[str, Callable[[torch.Tensor], torch.Tensor]]]:
    values, ignored = labels.values, labels.ignored
    if values:
        yield "one class", lambda old: torch.full_like(old, values[0])
    if len(values) > 1:
        yield "last class only", lambda old: torch.full_like(old, values[-1])
        yield "two classes", lambda old: _alternate(old, values[0], values[-1])
    if ignored is None:
        if not torch.cuda.is_available():  # see `recognise`: an out-of-range label ends the use of a GPU
            yield "negative labels", lambda old: _alternate(old, -1, values[0] if values else 0)
        return
    yield "all ignored", lambda old: torch.full_like(old, ignored)
    if values:
        yield "all but one ignored", lambda old: _fill_except_middle(old.contiguous(), ignored, values[0])


def _alternate(old: torch.Tensor, first: int, second: int) -> torch.Tensor:
    labels = torch.full_like(old.contiguous(), second)
    labels.view(-1)[::2] = first
    return labels


# -- sizes and types -------------------------------------------------------------------------------


def _size_cases(call_input: Input, recognised: RecognisedInput) -> Iterator[Case]:
    size, before = batch_size(call_input), dict(call_input.tensors())

    def cut_input(trims: Trims) -> Input:
        return lengths.cut_lengths(_trim(call_input, trims), recognised.lengths, before)

    if size > 1:
        yield "batch of one", lambda: cut_input({0: (size, 1)})
    if size:
        yield "empty batch", lambda: cut_input({0: (size, 0)})
    odd = _odd_sizes(call_input, size)
    if odd:
        yield "odd sizes", lambda: cut_input(odd)
    if any(tensor.dim() for _, tensor in call_input.tensors()):
        yield "strided tensors", lambda: call_input.map_tensors(_with_gaps)


Trims = dict[int, tuple[int, int]]
"""Dimension to its size and the size it is cut to."""


def _odd_sizes(call_input: Input, size: int) -> Trims:
    """Return how to make sizes odd that all tensors share: the batch, and height and width or else the
    length."""
    trims = {0: (size, _next_smaller_odd(size))} if _next_smaller_odd(size) else {}
    planes = [tensor.shape for _, tensor in call_input.tensors() if tensor.dim() > 2]
    rows = [tensor.shape for _, tensor in call_input.tensors() if tensor.dim() > 1]
    if len({shape[-2:] for shape in planes}) == 1 and len(planes) == len(rows):
        shared = {-2: planes[0][-2], -1: planes[0][-1]}
    elif len(rows) > 1 and len({shape[1] for shape in rows}) == 1:
        shared = {1: rows[0][1]}
    else:
        shared = {}
    return trims | {
        place: (long, _next_smaller_odd(long)) for place, long in shared.items() if _next_smaller_odd(long)
    }


def _next_smaller_odd(size: int) -> int:
    """Return the next smaller odd size; 0 if there is none."""
    return size - 1 - size % 2 if size > 1 + size % 2 else 0


def _trim(call_input: Input, trims: Trims) -> Input:
    def visit(path: str, tensor: torch.Tensor) -> torch.Tensor:
        cut = tensor.detach()
        for place, (long, short) in trims.items():
            enough = place >= 0 or cut.dim() > 2
            if enough and -cut.dim() <= place < cut.dim() and tensor.shape[place] == long:
                cut = cut.narrow(place, 0, short)
        return cut.clone().requires_grad_(tensor.requires_grad)

    return call_input.map_tensors(visit)


def _with_gaps(path: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return the same values with a gap after each element."""
    if not tensor.dim() or tensor.layout is not torch.strided:
        return tensor
    old = tensor.detach()
    room = torch.zeros((*old.shape[:-1], 2 * old.shape[-1]), dtype=old.dtype, device=old.device)
    strided = room[..., ::2]
    strided.copy_(old)
    return strided.requires_grad_(tensor.requires_grad)


def _type_cases(call_input: Input, recognised: RecognisedInput) -> Iterator[Case]:
    wide = {path for path, tensor in call_input.tensors() if tensor.dtype in (torch.float32, torch.float64)}
    if not wide:
        return
    for name, dtype in (("half precision", torch.float16), ("bfloat16", torch.bfloat16)):
        yield name, partial(cast, call_input, dtype)


def cast(call_input: Input, dtype: torch.dtype) -> Input:
    """Return `call_input` with floating tensors of `dtype`, and modules cast to match."""

    def visit(path: str, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        return tensor.detach().to(dtype).requires_grad_(tensor.requires_grad)

    return call_input.map_tensors(visit, dtype=dtype)


# -- values ----------------------------------------------------------------------------------------


def _value_cases(call_input: Input, recognised: RecognisedInput) -> Iterator[Case]:
    for path in recognised.values:
        for word, value in (("NaN", float("nan")), ("infinity", float("inf"))):
            name = f"{word} in {path}"
            yield name, partial(with_value, call_input, recognised, path, value, counts=True)
        if _excluding_path(call_input, recognised, path):
            name = f"NaN in {path} where it does not count"
            yield name, partial(with_value, call_input, recognised, path, float("nan"), counts=False)
        for by, padded_input in _fill_padding(call_input, recognised, path):
            yield f"padding of {path} filled with NaN ({by})", partial(_return_input, padded_input)


def _return_input(call_input: Input) -> Input:
    return call_input


def _fill_padding(call_input: Input, recognised: RecognisedInput, path: str) -> Iterator[tuple[str, Input]]:
    """Yield the input with NaN at `path` wherever a mask, labels or lengths exclude it, and the path of that
    mask."""
    named = dict(call_input.tensors())
    values = named[path]
    for length in recognised.lengths:
        padded_input = lengths.fill_padding(call_input, length, path)
        if padded_input is not None:
            yield length.path, padded_input
    for by, out in _masks_of_left_out(recognised, named):
        where = _expand_mask(out, values)
        if where is not None and where.any():
            filling = partial(lengths.fill_with_nan, where=where)
            yield by, replace(_change_tensor(call_input, path, filling), lenient=True)


def _masks_of_left_out(
    recognised: RecognisedInput, named: dict[str, torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield where masks and labels exclude elements; a mask named for padding is true at padding."""
    for path in recognised.masks:
        held = named[path].detach() != 0
        yield path, held if _PADDING.search(path) else ~held
    for labels in recognised.labels:
        if labels.ignored is not None:
            yield labels.path, named[labels.path] == labels.ignored


def _expand_mask(out: torch.Tensor, values: torch.Tensor) -> torch.Tensor | None:
    """Return `out` as a mask of all of `values`; with one dimension less it holds for each channel."""
    shape, wide = tuple(out.shape), tuple(values.shape)
    if shape and shape == wide[: len(shape)]:
        return out.reshape(*shape, *[1] * (len(wide) - len(shape))).expand(wide)
    if shape and len(wide) == len(shape) + 1 and shape == wide[:1] + wide[2:]:
        return out.unsqueeze(1).expand(wide)
    return None


def _excluding_path(call_input: Input, recognised: RecognisedInput, path: str) -> str:
    """Return the mask or labels that exclude some of the values at `path`; "" if none does."""
    named = dict(call_input.tensors())
    candidates = (
        *recognised.masks,
        *(labels.path for labels in recognised.labels if labels.ignored is not None and labels.values),
    )
    return next(
        (candidate for candidate in candidates if index_mapping(named[candidate], named[path]) is not None),
        "",
    )


def with_value(
    call_input: Input, recognised: RecognisedInput, path: str, value: float, counts: bool
) -> Input:
    """Return the input with `value` at one place of `path`, one that counts or one that is masked or
    ignored."""
    by = _excluding_path(call_input, recognised, path)
    named = dict(call_input.tensors())
    index: Any = (0,) * named[path].dim()
    if by:
        index, call_input = _mark_first_place(call_input, recognised, by, counts)
        match = index_mapping(named[by], named[path])
        assert match is not None
        index = match(index)

    def change(old: torch.Tensor) -> torch.Tensor:
        if by or old.dim():
            old[index] = value
        else:
            old.fill_(value)
        return old

    return replace(_change_tensor(call_input, path, change), lenient=True)


def _mark_first_place(
    call_input: Input, recognised: RecognisedInput, by: str, counts: bool
) -> tuple[tuple[int, ...], Input]:
    """Return the first index of the mask or labels `by`, and the input changed to count (or not) there."""
    tensor = dict(call_input.tensors())[by]
    index = (0,) * tensor.dim()
    labels = next((labels_there for labels_there in recognised.labels if labels_there.path == by), None)
    wanted: Any = counts
    if labels is not None:
        wanted = labels.values[0] if counts else labels.ignored

    def change(old: torch.Tensor) -> torch.Tensor:
        old[index] = wanted
        return old

    return index, _change_tensor(call_input, by, change)

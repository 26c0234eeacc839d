"""Runs kernels that are no operators without values: result shapes come from tensors without data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from gapless import trees
from gapless.emulation.dry import filling
from gapless.emulation.dry.guess_table import ValueTable
from gapless.emulation.dry.guesses.guess import anything
from gapless.emulation.dry.shapes import without_data
from gapless.emulation.support.refusals import requested_at
from gapless.errors import NotEmulated

Tensor = torch.Tensor


def without_values(
    table: ValueTable,
    name: str,
    shaped: Callable[..., Any],
    compute: Callable[..., Any],
    args: tuple[Any, ...],
    writes: Iterable[Tensor],
) -> Any:
    """Return results like those of ``compute(*args)`` without computing them.

    `shaped` takes and returns tensors without data. If it needs values, the kernel is computed with made-up
    ones.

    Raises:
        NotEmulated: it cannot be computed with made-up values.
    """
    originals: dict[int, Tensor] = {}
    empties: list[Tensor] = []  # keeps their ids valid

    def remove_data(tensor: Tensor) -> Tensor:
        empty = without_data(tensor)
        empties.append(empty)
        originals[id(empty)] = tensor
        return empty

    def add_untouched(tensor: Tensor) -> Tensor:
        if id(tensor) in originals:
            return originals[id(tensor)]
        result = filling.untouched_tensor(tuple(tensor.shape), tensor.stride(), tensor.dtype)
        table.mark(result, anything(name, result.dtype))
        return result

    try:
        out = shaped(*trees.map_tensors(args, remove_data))
    except (
        RuntimeError,
        NotImplementedError,
        TypeError,
        ValueError,
    ):  # it reads values or rejects meta tensors
        for tensor in trees.tensors(args):
            table.fill(tensor)
        try:
            out = compute(*args)
        except (RuntimeError, ValueError, LookupError) as error:
            raise NotEmulated(
                f"What {name} makes depends on values, which a dry run does not have{requested_at()}: with "
                f"some that are made up it says: {error}. Check it with values (`--values`), or smaller."
            ) from error
        for tensor in (*trees.tensors(out), *writes):
            table.mark(tensor, filling.made_up_guess(name, tensor.dtype))
        return out
    table.mark_written(name, writes)
    return trees.map_tensors(out, add_untouched)

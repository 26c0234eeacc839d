"""Kernels that are no operators, without values: their results are told by tensors without data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from gapless import trees
from gapless.emulation.dry import filling
from gapless.emulation.dry.guesses.guess import anything
from gapless.emulation.dry.shapes import without_data
from gapless.emulation.dry.table import Table
from gapless.emulation.support.refusals import requested_at
from gapless.errors import NotEmulated

Tensor = torch.Tensor


def without_values(
    table: Table,
    name: str,
    shaped: Callable[..., Any],
    compute: Callable[..., Any],
    args: tuple[Any, ...],
    writes: Iterable[Tensor],
) -> Any:
    """What ``compute(*args)`` gives, with nothing computed.

    `shaped` is asked with tensors that have no data, and gives such ones. Where it needs their values it is
    computed with values that are made up.

    Raises:
        NotEmulated: it cannot be computed with those.
    """
    given: dict[int, Tensor] = {}
    kept: list[Tensor] = []  # their numbers hold as long as they do

    def emptied(tensor: Tensor) -> Tensor:
        made = without_data(tensor)
        kept.append(made)
        given[id(made)] = tensor
        return made

    def stood(tensor: Tensor) -> Tensor:
        if id(tensor) in given:
            return given[id(tensor)]
        made = filling.untouched(tuple(tensor.shape), tensor.stride(), tensor.dtype)
        table.mark(made, anything(name, made.dtype))
        return made

    try:
        out = shaped(*trees.mapped(args, emptied))
    except (RuntimeError, NotImplementedError, TypeError, ValueError):  # it reads values, or refuses these
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
            table.mark(tensor, filling.made_up(name, tensor.dtype))
        return out
    table.written(name, writes)
    return trees.mapped(out, stood)

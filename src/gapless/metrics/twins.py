"""Metrics apart from each other that see the same batches: the first one counts, the others copy its state.

Two statistics of the same configuration that have counted the same batches since they were empty have the
same state, and each keeps its own. Whether they have is known on the host: batches are the same where their
tensors are, and were not written to in between.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from gapless.metrics.batch import is_capturing
from gapless.metrics.statistic import Statistic, new_past
from gapless.torch_internals import foreach_copy

Given = tuple[tuple[Any, int], ...]


class Step(NamedTuple):
    """What a statistic counted last."""

    leader: Any
    given: Given
    before: int
    after: int


_latest: dict[Any, Step] = {}


def followed(part: Statistic, args: Sequence[Any]) -> bool:
    """Give `part` the state of one that has counted the same, and now this batch, if there is one."""
    step = _latest.get((part.key, part.checked, part.device))
    leader = None if step is None else step.leader()
    if step is None or leader is None or leader is part or not _free(part):
        return False
    if part.past != step.before or leader.past != step.after or not _same(step.given, args):
        return False
    foreach_copy(list(part.state.values()), [leader.state[name] for name in part.state])
    part.settle(step.after)
    return True


def counted(part: Statistic, args: Sequence[Any], before: int) -> None:
    """`part` has counted a batch of these arguments, on top of what it was `before`."""
    if not _free(part):
        part.twins = False  # Replays of a graph are not heard of.
        return
    part.settle(new_past())
    given = _as_given(args)
    if given is not None:
        key = (part.key, part.checked, part.device)
        _latest[key] = Step(weakref.ref(part), given, before, part.past)


def _free(part: Statistic) -> bool:
    """Whether states of other statistics may be read here, as Python knows them."""
    return not (part.in_batch or is_capturing(part.device))


def _as_given(args: Sequence[Any]) -> Given | None:
    if any(not isinstance(one, Tensor) or one.is_inference() for one in args):
        return None
    return tuple((weakref.ref(one), one._version) for one in args)


def _same(given: Given, args: Sequence[Any]) -> bool:
    return len(given) == len(args) and all(
        ref() is one and version == one._version for (ref, version), one in zip(given, args, strict=True)
    )

"""Separate metrics that get the same batches: the first one counts, the others copy its state.

Two statistics of the same configuration that have counted the same batches since they were empty have equal
states, and each keeps its own. The host can tell: batches are the same if they are the same tensor objects,
not written to in between.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from gapless.metrics.batch import is_capturing
from gapless.metrics.statistic import Statistic, new_state_id
from gapless.torch_internals import foreach_copy

TensorVersions = tuple[tuple[Any, int], ...]
"""Weak references to the tensors of a batch, with their version counters."""


class CountedBatch(NamedTuple):
    """The last batch that a statistic (the leader) counted, and its state ids before and after."""

    leader: Any
    tensors: TensorVersions
    before: int
    after: int


_latest: dict[Any, CountedBatch] = {}
"""The last counted batch by key, whether checked, and device."""


def copy_leader_state(part: Statistic, args: Sequence[Any]) -> bool:
    """Copy the state of a statistic that counted the same batches and this one; False if there is none."""
    step = _latest.get((part.key, part.checked, part.device))
    leader = None if step is None else step.leader()
    if step is None or leader is None or leader is part or not _is_sharing_allowed(part):
        return False
    if part.state_id != step.before or leader.state_id != step.after or not _are_same(step.tensors, args):
        return False
    foreach_copy(list(part.state.values()), [leader.state[name] for name in part.state])
    part.set_state_id(step.after)
    return True


def record_update(part: Statistic, args: Sequence[Any], before: int) -> None:
    """Record that `part` has counted a batch with these arguments; `before` is its previous state id."""
    if not _is_sharing_allowed(part):
        part.twins = False  # Python does not notice replays of a graph.
        return
    part.set_state_id(new_state_id())
    versions = _tensor_versions(args)
    if versions is not None:
        key = (part.key, part.checked, part.device)
        _latest[key] = CountedBatch(weakref.ref(part), versions, before, part.state_id)


def _is_sharing_allowed(part: Statistic) -> bool:
    """Whether Python knows the current states: not in a batch of ``forward`` or a CUDA graph."""
    return not (part.in_batch or is_capturing(part.device))


def _tensor_versions(args: Sequence[Any]) -> TensorVersions | None:
    if any(not isinstance(arg, Tensor) or arg.is_inference() for arg in args):
        return None
    return tuple((weakref.ref(arg), arg._version) for arg in args)


def _are_same(versions: TensorVersions, args: Sequence[Any]) -> bool:
    return len(versions) == len(args) and all(
        ref() is tensor and version == tensor._version
        for (ref, version), tensor in zip(versions, args, strict=True)
    )

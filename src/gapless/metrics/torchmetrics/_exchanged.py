"""Sync metrics that are computed together in one exchange."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torchmetrics import Metric
from torchmetrics.wrappers.abstract import WrapperMetric

from gapless.metrics.torchmetrics._metric import UnwaitedMetric
from gapless.metrics.torchmetrics._sync import GATHERED_ATTRIBUTE, can_exchange, exchange_states


@contextmanager
def gather_together(metrics: Sequence[Metric]) -> Iterator[None]:
    """Inside the block, metrics find their states gathered, by one exchange for each process group.

    Metrics that share their states (a collection's compute groups) share the gathered states.
    """
    groups: dict[int, tuple[Any, list[Metric]]] = {}
    for metric in metrics:
        if _will_sync(metric):
            groups.setdefault(id(metric.process_group), (metric.process_group, []))[1].append(metric)
    touched = []
    try:
        for group, members in groups.values():
            touched += members
            _gather_for(members, group)
        yield
    finally:
        for metric in touched:
            metric.__dict__.pop(GATHERED_ATTRIBUTE, None)


def _gather_for(members: list[Metric], group: Any) -> None:
    """Gather the states of `members`, each distinct one once."""
    leaders: dict[tuple[int, ...], Metric] = {}
    keys = {}
    for metric in members:
        key = tuple(id(getattr(metric, name)) for name in metric._reductions)
        keys[id(metric)] = key
        leaders.setdefault(key, metric)
    gathered = dict(zip(leaders, exchange_states(list(leaders.values()), group), strict=True))
    for metric in members:
        metric.__dict__[GATHERED_ATTRIBUTE] = [list(ranks) for ranks in gathered[keys[id(metric)]]]


def _will_sync(metric: Metric) -> bool:
    """Whether the metric's next `compute` will sync, in the way that is replaced here."""
    own = type(metric)._sync_dist is UnwaitedMetric._sync_dist
    return (
        own
        and not isinstance(metric, WrapperMetric)
        and bool(metric._reductions)
        and bool(metric._to_sync)
        and not metric._is_synced
        and metric._computed is None
        and metric.dist_sync_fn is None
        and can_exchange(metric)
        and callable(metric.distributed_available_fn)
        and bool(metric.distributed_available_fn())
    )

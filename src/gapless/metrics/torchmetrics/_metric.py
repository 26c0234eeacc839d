"""The base of unwaited metrics: counting, reporting, sync in one exchange, pickling."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.distributed import gather_all_tensors

from gapless.metrics.torchmetrics import _sync
from gapless.metrics.torchmetrics._checks import Counter, deliver_checks, poll, set_counting_metric
from gapless.metrics.torchmetrics._origins import waited_class


class UnwaitedMetric(Metric):
    """The changes to every metric. Precedes `Metric` in the method resolution order."""

    _unwaited_checks: Counter

    def _wrap_update(self, update: Callable[..., Any]) -> Callable[..., Any]:
        """Return `update`, which also counts what checks refuse, and keeps the storages of stable states."""
        wrapped = super()._wrap_update(update)

        @functools.wraps(update)
        def call(*args: Any, **kwargs: Any) -> None:
            before = _states_of(self)
            outer = set_counting_metric(self)
            try:
                wrapped(*args, **kwargs)
            finally:
                set_counting_metric(outer)
            _put_back(self, before)
            if self._unwaited_checks.delivery == "later":
                poll(self)

        return call

    def _wrap_compute(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        """Return `compute`, which also raises for what the checks have counted, if it is to deliver them."""
        wrapped = super()._wrap_compute(compute)

        @functools.wraps(compute)
        def call(*args: Any, **kwargs: Any) -> Any:
            before = _states_of(self)
            outer = set_counting_metric(self)
            try:
                value = wrapped(*args, **kwargs)
            finally:
                set_counting_metric(outer)
            _put_back(self, before)
            # after the value, so that a rank with an error has synced with the others first
            if self._unwaited_checks.delivery == "compute" and not self._unwaited_checks.silent:
                deliver_checks([self])
            else:
                poll(self)
            return value

        return call

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call TorchMetrics' `forward`, whose batch value does not wait for the counts of the checks."""
        counter = self._unwaited_checks
        before = _states_of(self)
        counter.silent += 1  # it computes the batch value in every step, which must not wait for the counts
        try:
            value = super().forward(*args, **kwargs)
        finally:
            counter.silent -= 1
        _put_back(self, before)
        poll(self)
        return value

    def reset(self) -> None:
        """Reset the states; with ``stable_states`` in place, so that their storages stay the same."""
        before = _states_of(self)
        super().reset()
        _put_back(self, before)

    def merge_state(self, incoming_state: Any) -> None:
        """Merge a state, or another metric, which need not be unwaited."""
        if isinstance(incoming_state, waited_class(type(self))):
            incoming_state = cast(Metric, incoming_state).metric_state
        super().merge_state(incoming_state)

    def _sync_dist(
        self, dist_sync_fn: Callable[..., Any] = gather_all_tensors, process_group: Any | None = None
    ) -> None:
        if dist_sync_fn is not gather_all_tensors or not _sync.can_exchange(self):
            super()._sync_dist(dist_sync_fn, process_group=process_group)
            return
        gathered = (
            _sync.take_gathered(self) or _sync.exchange_states([self], process_group or self.process_group)[0]
        )
        order = iter(gathered)
        # `_sync_dist` itself does the rest: it gets one tensor after the other, in the order it asks for them
        super()._sync_dist(lambda _, group: next(order), process_group=process_group)


def _states_of(metric: Metric) -> dict[str, Any]:
    """Return the states that must keep their storages: none without ``stable_states``."""
    if not metric.__dict__.get("_unwaited_stable", False):
        return {}
    return {name: getattr(metric, name) for name in metric._defaults}


def _put_back(metric: Metric, before: dict[str, Any]) -> None:
    """Copy states that were rebound into their previous tensors, if shape and dtype are the same."""
    for name, old in before.items():
        new = getattr(metric, name)
        if new is old or not isinstance(old, Tensor) or not isinstance(new, Tensor):
            continue
        same = (new.shape, new.dtype, new.device) == (old.shape, old.dtype, old.device)
        if same and not new.requires_grad:
            with torch.no_grad():
                old.copy_(new)
            setattr(metric, name, old)

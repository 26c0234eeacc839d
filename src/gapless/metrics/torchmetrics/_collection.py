"""The base of unwaited collections: one exchange, one read, and one update for metrics that are alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from gapless.metrics.torchmetrics._alike import group_alike
from gapless.metrics.torchmetrics._checks import counter_of, deliver_checks, poll
from gapless.metrics.torchmetrics._exchanged import gather_together
from gapless.metrics.torchmetrics._metric import UnwaitedMetric


class UnwaitedCollection(MetricCollection):
    """A collection that syncs all its metrics at once, reads all their checks at once and compares groups
    at once.

    In `forward`, metrics that are alike share one update.
    """

    def compute(self) -> dict[str, Any]:
        members = [metric for metric in self.modules() if isinstance(metric, UnwaitedMetric)]
        counters = [counter for metric in members if (counter := counter_of(metric))]
        for counter in counters:
            counter.silent += 1
        try:
            with gather_together([m for m in self._modules.values() if isinstance(m, UnwaitedMetric)]):
                values = super().compute()
        finally:
            for counter in counters:
                counter.silent -= 1
        deliver_checks([m for m in members if m._unwaited_checks.delivery == "compute"])
        for metric in members:
            poll(metric)
        return values

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        if not self._enable_compute_groups:
            return super().forward(*args, **kwargs)
        undo: list[Callable[[], None]] = []
        if _separate_kept_states(self):
            self.__dict__["_compute_groups_create_state_ref"] = lambda copy=False: None
            undo.append(lambda: self.__dict__.pop("_compute_groups_create_state_ref"))
        try:
            for leader, *followers in group_alike(self):
                if followers:
                    undo += _share_update(leader, followers)
            return super().forward(*args, **kwargs)
        finally:
            for restore in undo:
                restore()

    def _merge_compute_groups(self) -> None:
        answers = _equal_states(self)
        # the collection's own procedure compares two metrics at a time
        self.__dict__["_equal_metric_states"] = lambda a, b: answers.get((id(a), id(b)), False)
        try:
            super()._merge_compute_groups()
        finally:
            del self.__dict__["_equal_metric_states"]


def _share_update(leader: Metric, followers: list[Metric]) -> list[Callable[[], None]]:
    """Make the next update of `leader` set the batch states of `followers`, whose own updates are skipped.

    Everything else in `forward` is done by each metric itself. Returns functions that undo this.
    """
    states: dict[str, Any] = {}
    plain = leader.update

    def update_and_record(*args: Any, **kwargs: Any) -> None:
        plain(*args, **kwargs)
        for name in leader._defaults:
            value = getattr(leader, name)
            if isinstance(value, list):
                states[name] = list(value)
            else:
                states[name] = value.clone() if _is_kept(leader) else value

    leader.__dict__["update"] = update_and_record
    undo = [lambda: leader.__dict__.__setitem__("update", plain)]
    for follower in followers:
        undo.append(_let_follow(follower, states))
    return undo


def _let_follow(follower: Metric, states: dict[str, Any]) -> Callable[[], None]:
    """Make the next update of `follower` copy `states`; return a function that undoes this."""
    plain = follower.update

    def copy_states(*args: Any, **kwargs: Any) -> None:
        follower._computed = None
        follower._update_count += 1
        for name, value in states.items():
            setattr(follower, name, list(value) if isinstance(value, list) else value)

    follower.__dict__["update"] = copy_states
    return lambda: follower.__dict__.__setitem__("update", plain)


def _separate_kept_states(collection: MetricCollection) -> bool:
    """Copy states that metrics of a group share if they keep their storages; return whether there were any.

    A group's metrics share the tensors of the first one, and every metric's `forward` would write the batch
    into them.
    """
    separated = False
    if not collection._groups_checked:
        return separated
    for names in collection._groups.values():
        first, *followers = (collection._modules[name] for name in names)
        for metric in followers:
            for name in metric._defaults if _is_kept(metric) else ():  # type: ignore[union-attr, arg-type]
                value = getattr(metric, name)
                if isinstance(value, Tensor) and value is getattr(first, name):
                    setattr(metric, name, value.clone())
                    separated = True
    return separated


def _is_kept(metric: Metric) -> bool:
    """Whether the metric's states keep their storages, which `forward` then overwrites."""
    return bool(metric.__dict__.get("_unwaited_stable", False))


def _equal_states(collection: MetricCollection) -> dict[tuple[int, int], bool]:
    """Return which pairs of metrics have equal states, read from the device at once."""
    metrics = [collection._modules[names[0]] for names in collection._groups.values()]
    pairs: list[tuple[int, int]] = []
    flags: list[Tensor] = []
    for i, first in enumerate(metrics):
        for second in metrics[i + 1 :]:
            are_equal = _compare_states(first, second)
            if are_equal is not None:
                pairs.append((id(first), id(second)))
                flags.append(are_equal)
    if not flags:
        return {}
    device = flags[0].device
    values = torch.stack([flag.to(device) for flag in flags]).tolist()
    return {key: value for pair, value in zip(pairs, values, strict=True) for key in (pair, pair[::-1])}


def _compare_states(first: Any, second: Any) -> Tensor | None:
    """Return a 0-dim bool tensor, whether all states are equal; None if their shapes already differ."""
    if not first._defaults or first._defaults.keys() != second._defaults.keys():
        return None
    flags: list[Tensor] = []
    for name in first._defaults:
        a, b = getattr(first, name), getattr(second, name)
        if type(a) is not type(b):
            return None
        for x, y in zip(a, b, strict=False) if isinstance(a, list) else [(a, b)]:
            if x.shape != y.shape or x.device != y.device:
                return None
            flags.append(torch.isclose(x, y.to(x.dtype)).all())
    if not flags:
        return torch.ones((), dtype=torch.bool, device=first.device)
    return torch.stack(flags).all()

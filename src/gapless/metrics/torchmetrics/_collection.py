"""The part that every unwaited collection has: one exchange, one read, one update for what is made alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from gapless.metrics.torchmetrics._alike import groups_alike
from gapless.metrics.torchmetrics._checks import counter_of, deliver, poll
from gapless.metrics.torchmetrics._exchanged import exchanged
from gapless.metrics.torchmetrics._metric import UnwaitedMetric


class UnwaitedCollection(MetricCollection):
    """A collection that meets the other ranks once, reads the checks of all its metrics once, groups once,
    and in `forward` updates once what is made alike.
    """

    def compute(self) -> dict[str, Any]:
        members = [metric for metric in self.modules() if isinstance(metric, UnwaitedMetric)]
        counters = [counter for metric in members if (counter := counter_of(metric))]
        for counter in counters:
            counter.silent += 1
        try:
            with exchanged([m for m in self._modules.values() if isinstance(m, UnwaitedMetric)]):
                values = super().compute()
        finally:
            for counter in counters:
                counter.silent -= 1
        deliver([m for m in members if m._unwaited_checks.delivery == "compute"])
        for metric in members:
            poll(metric)
        return values

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        if not self._enable_compute_groups:
            return super().forward(*args, **kwargs)
        undo: list[Callable[[], None]] = []
        if _part_kept_states(self):
            self.__dict__["_compute_groups_create_state_ref"] = lambda copy=False: None
            undo.append(lambda: self.__dict__.pop("_compute_groups_create_state_ref"))
        try:
            for leader, *followers in groups_alike(self):
                if followers:
                    undo += _share_update(leader, followers)
            return super().forward(*args, **kwargs)
        finally:
            for one in undo:
                one()

    def _merge_compute_groups(self) -> None:
        answers = _equal_states(self)
        # the collection's own procedure, which asks for two metrics at a time
        self.__dict__["_equal_metric_states"] = lambda a, b: answers.get((id(a), id(b)), False)
        try:
            super()._merge_compute_groups()
        finally:
            del self.__dict__["_equal_metric_states"]


def _share_update(leader: Metric, followers: list[Metric]) -> list[Callable[[], None]]:
    """Let the next update of `leader` give each of `followers` its states of the batch, instead of an update.

    All the rest of a `forward` stays each metric's own. Returns what undoes that.
    """
    states: dict[str, Any] = {}
    plain = leader.update

    def leading(*args: Any, **kwargs: Any) -> None:
        plain(*args, **kwargs)
        for name in leader._defaults:
            value = getattr(leader, name)
            if isinstance(value, list):
                states[name] = list(value)
            else:
                states[name] = value.clone() if _is_kept(leader) else value

    leader.__dict__["update"] = leading
    undo = [lambda: leader.__dict__.__setitem__("update", plain)]
    for follower in followers:
        undo.append(_follow(follower, states))
    return undo


def _follow(follower: Metric, states: dict[str, Any]) -> Callable[[], None]:
    plain = follower.update

    def following(*args: Any, **kwargs: Any) -> None:
        follower._computed = None
        follower._update_count += 1
        for name, value in states.items():
            setattr(follower, name, list(value) if isinstance(value, list) else value)

    follower.__dict__["update"] = following
    return lambda: follower.__dict__.__setitem__("update", plain)


def _part_kept_states(collection: MetricCollection) -> bool:
    """Give metrics of a group states of their own where these keep their storages; whether there were such.

    A group's metrics share the tensors of its first. The first's `forward` would write the batch into them,
    and so would the second's.
    """
    parted = False
    if not collection._groups_checked:
        return parted
    for names in collection._groups.values():
        first, *others = (collection._modules[name] for name in names)
        for metric in others:
            for name in metric._defaults if _is_kept(metric) else ():  # type: ignore[union-attr, arg-type]
                value = getattr(metric, name)
                if isinstance(value, Tensor) and value is getattr(first, name):
                    setattr(metric, name, value.clone())
                    parted = True
    return parted


def _is_kept(metric: Metric) -> bool:
    """Whether the metric's states keep their storages, which the rest of its `forward` then overwrites."""
    return bool(metric.__dict__.get("_unwaited_stable", False))


def _equal_states(collection: MetricCollection) -> dict[tuple[int, int], bool]:
    """Which pairs of metrics have the same states by now, read from the device in one go."""
    metrics = [collection._modules[names[0]] for names in collection._groups.values()]
    pairs: list[tuple[int, int]] = []
    flags: list[Tensor] = []
    for i, first in enumerate(metrics):
        for second in metrics[i + 1 :]:
            found = _comparison(first, second)
            if found is not None:
                pairs.append((id(first), id(second)))
                flags.append(found)
    if not flags:
        return {}
    device = flags[0].device
    values = torch.stack([flag.to(device) for flag in flags]).tolist()
    return {key: value for pair, value in zip(pairs, values, strict=True) for key in (pair, pair[::-1])}


def _comparison(first: Any, second: Any) -> Tensor | None:
    """A 0-dim bool tensor, whether the states are the same; None where their form already differs."""
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

"""A metric once per epoch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gapless.metrics.checks import warn
from gapless.metrics.collection import MetricCollection
from gapless.metrics.foreign import their_kinds
from gapless.metrics.metric import Metric


class MetricTracker(nn.ModuleList):
    """A metric or a collection, once per epoch (or whatever :meth:`increment` begins), and the best of them.

    Args:
        metric: what to track.
        maximize: whether larger is better, for all or in a list for each; None to ask the metrics.
    """

    def __init__(self, metric: Metric | MetricCollection, maximize: bool | list[bool] | None = None) -> None:
        super().__init__()
        if not isinstance(metric, (Metric, MetricCollection, *their_kinds())):
            raise TypeError(
                f"Metric arg need to be an instance of a `Metric` or a `MetricCollection` but got {metric}"
            )
        # No module of the list, whose modules are what is tracked.
        self._base_metric: Any
        self.__dict__["_base_metric"] = metric
        self.maximize = self._direction(metric, maximize)
        self._begun = False

    @staticmethod
    def _direction(metric: Any, maximize: Any) -> bool | list[bool]:
        several = isinstance(metric, (MetricCollection, *their_kinds()[1:]))
        if maximize is None:
            found = []
            for member in metric.values() if several else [metric]:
                if member.higher_is_better is None:
                    raise AttributeError(
                        f"The metric '{type(member).__name__}' does not have a 'higher_is_better' attribute."
                        " Please provide the `maximize` argument explicitly."
                    )
                found += [bool(member.higher_is_better)] * (classes(member) if several else 1)
            return found if several else found[0]
        if not isinstance(maximize, (bool, list)):
            raise ValueError("Argument `maximize` should either be a single bool or list of bool")
        if isinstance(maximize, list):
            if not all(isinstance(one, bool) for one in maximize):
                raise ValueError("Argument `maximize` is list but not type of bool.")
            if not several:
                raise ValueError(
                    "Argument `maximize` should be a single bool when `metric` is a single Metric"
                )
            if len(maximize) != len(metric):
                raise ValueError(
                    "The len of argument `maximize` should match the length of the metric collection"
                )
        return maximize

    @property
    def n_steps(self) -> int:
        """How often :meth:`increment` was called."""
        return len(self)

    def increment(self) -> None:
        """Begin the next one."""
        self._begun = True
        self.append(copy.deepcopy(self._base_metric))

    @torch.jit.unused
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the one of now."""
        return self._now("forward")(*args, **kwargs)

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Update the one of now."""
        self._now("update").update(*args, **kwargs)

    def compute(self) -> Any:
        """The result of the one of now, on the device."""
        return self._now("compute").compute()

    def compute_all(self) -> Any:
        """All results, stacked, on the device; a list of them where they cannot be stacked."""
        self._now("compute_all")
        results = [metric.compute() for metric in self._all()]
        if isinstance(results[0], dict):
            return {name: torch.stack([one[name] for one in results]) for name in results[0]}
        return torch.stack(results) if isinstance(results[0], Tensor) else results

    def reset(self) -> None:
        """Reset the one of now."""
        self._now("reset").reset()

    def reset_all(self) -> None:
        """Reset all of them."""
        for metric in self._all():
            metric.reset()

    def best_metric(self, return_step: bool = False) -> Any:
        """The best value, or ``(value, step)``, as Python numbers. **This waits** for the device."""
        results = self.compute_all()
        if isinstance(results, dict):
            ways = self.maximize if isinstance(self.maximize, list) else [self.maximize] * len(results)
            best = {name: self._best(v, way) for (name, v), way in zip(results.items(), ways, strict=True)}
            values = {name: one[0] for name, one in best.items()}
            return (values, {name: one[1] for name, one in best.items()}) if return_step else values
        value, step = self._best(results, bool(self.maximize))
        return (value, step) if return_step else value

    @staticmethod
    def _best(values: Any, maximize: bool) -> tuple[float | None, int | None]:
        try:
            best = values.max(0) if maximize else values.min(0)
            return best.values.item(), int(best.indices.item())
        except (AttributeError, RuntimeError, ValueError) as error:
            warn(
                f"Encountered the following error when trying to get the best metric: {error} The results of"
                " this metric have no order, so that there is no best one: `None` is returned."
            )
            return None, None

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Draw `val`, a result for each step (None for those of :meth:`compute_all`), with Matplotlib."""
        from gapless.metrics.plotting import plot_tracked

        return plot_tracked(self, val, ax)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> MetricTracker:
        super()._apply(fn, recurse)
        self._base_metric._apply(fn, recurse)
        return self

    def _all(self) -> list[Any]:
        return list(self)

    def _now(self, method: str) -> Any:
        if not self._begun:
            raise ValueError(f"`{method}` cannot be called before `.increment()` has been called.")
        return self[-1]


def classes(member: Any) -> int:
    """How many results a member of a collection has by itself: one for each class, where it says so."""
    inside = getattr(member, "metric", None)
    counts = [getattr(inside, name, None) for name in ("num_classes", "num_labels")]
    return next((count for count in counts if isinstance(count, int)), 1)

"""Track a metric over epochs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gapless.metrics.checks import warn
from gapless.metrics.collection import MetricCollection
from gapless.metrics.foreign import torchmetrics_classes
from gapless.metrics.metric import Metric


class MetricTracker(nn.ModuleList):
    """Keeps a copy of a metric or a collection per epoch (each :meth:`increment`), and finds the best value.

    Args:
        metric: what to track.
        maximize: whether larger is better, one bool or a list with one per result; None to ask the metrics.
    """

    def __init__(self, metric: Metric | MetricCollection, maximize: bool | list[bool] | None = None) -> None:
        super().__init__()
        if not isinstance(metric, (Metric, MetricCollection, *torchmetrics_classes())):
            raise TypeError(
                f"Metric arg need to be an instance of a `Metric` or a `MetricCollection` but got {metric}"
            )
        # Not registered as a module: the list's modules are the tracked copies.
        self._base_metric: Any
        self.__dict__["_base_metric"] = metric
        self.maximize = self._check_maximize(metric, maximize)
        self._is_started = False

    @staticmethod
    def _check_maximize(metric: Any, maximize: Any) -> bool | list[bool]:
        """Return `maximize`, or what the metrics say for None; raise if it does not fit."""
        several = isinstance(metric, (MetricCollection, *torchmetrics_classes()[1:]))
        if maximize is None:
            directions = []
            for member in metric.values() if several else [metric]:
                if member.higher_is_better is None:
                    raise AttributeError(
                        f"The metric '{type(member).__name__}' does not have a 'higher_is_better' attribute."
                        " Please provide the `maximize` argument explicitly."
                    )
                directions += [bool(member.higher_is_better)] * (count_results(member) if several else 1)
            return directions if several else directions[0]
        if not isinstance(maximize, (bool, list)):
            raise ValueError("Argument `maximize` should either be a single bool or list of bool")
        if isinstance(maximize, list):
            if not all(isinstance(flag, bool) for flag in maximize):
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
        """Start the next step with a fresh copy of the metric."""
        self._is_started = True
        self.append(copy.deepcopy(self._base_metric))

    @torch.jit.unused
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the current metric."""
        return self._current("forward")(*args, **kwargs)

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Update the current metric."""
        self._current("update").update(*args, **kwargs)

    def compute(self) -> Any:
        """Return the current metric's result, on the device."""
        return self._current("compute").compute()

    def compute_all(self) -> Any:
        """Return the results of all steps, stacked, on the device; a list if they cannot be stacked."""
        self._current("compute_all")
        results = [metric.compute() for metric in self._tracked_metrics()]
        if isinstance(results[0], dict):
            return {name: torch.stack([result[name] for result in results]) for name in results[0]}
        return torch.stack(results) if isinstance(results[0], Tensor) else results

    def reset(self) -> None:
        """Reset the current metric."""
        self._current("reset").reset()

    def reset_all(self) -> None:
        """Reset the metrics of all steps."""
        for metric in self._tracked_metrics():
            metric.reset()

    def best_metric(self, return_step: bool = False) -> Any:
        """Return the best value, or ``(value, step)``, as Python numbers. **This waits** for the device."""
        results = self.compute_all()
        if isinstance(results, dict):
            directions = self.maximize if isinstance(self.maximize, list) else [self.maximize] * len(results)
            best = {
                name: self._best(v, direction)
                for (name, v), direction in zip(results.items(), directions, strict=True)
            }
            values = {name: value_and_step[0] for name, value_and_step in best.items()}
            return (
                (values, {name: value_and_step[1] for name, value_and_step in best.items()})
                if return_step
                else values
            )
        value, step = self._best(results, bool(self.maximize))
        return (value, step) if return_step else value

    @staticmethod
    def _best(values: Any, maximize: bool) -> tuple[float | None, int | None]:
        """Return the best value and its step; None for both, with a warning, if values have no order."""
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
        from gapless.metrics.plotting import plot_tracker

        return plot_tracker(self, val, ax)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> MetricTracker:
        super()._apply(fn, recurse)
        self._base_metric._apply(fn, recurse)
        return self

    def _tracked_metrics(self) -> list[Any]:
        return list(self)

    def _current(self, method: str) -> Any:
        """Return the current metric; raise ValueError, naming `method`, before the first `increment`."""
        if not self._is_started:
            raise ValueError(f"`{method}` cannot be called before `.increment()` has been called.")
        return self[-1]


def count_results(member: Any) -> int:
    """Return how many results a member of a collection has: one per class if it is class-wise."""
    inside = getattr(member, "metric", None)
    counts = [getattr(inside, name, None) for name in ("num_classes", "num_labels")]
    return next((count for count in counts if isinstance(count, int)), 1)

"""Metrics of several tasks, each with its own arguments and results."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from gapless.metrics.collection import MetricCollection
from gapless.metrics.foreign import torchmetrics_classes
from gapless.metrics.metric import Metric


class MultitaskWrapper(nn.Module):
    """A metric or a collection for each task; arguments and results are dicts by the tasks' names.

    Args:
        task_metrics: metrics, collections or further wrappers of this kind, by task.
        prefix: prepended to the names of results.
        postfix: appended to the names of results.
    """

    def __init__(
        self, task_metrics: Mapping[str, Any], prefix: str | None = None, postfix: str | None = None
    ) -> None:
        super().__init__()
        if not isinstance(task_metrics, dict):
            raise TypeError(
                f"Expected argument `task_metrics` to be a dict. Found task_metrics = {task_metrics}"
            )
        for metric in task_metrics.values():
            if not isinstance(metric, (Metric, MetricCollection, MultitaskWrapper, *torchmetrics_classes())):
                raise TypeError(
                    "Expected each task's metric to be a Metric, a MetricCollection or a MultitaskWrapper."
                    f" Found a metric of type {type(metric)}"
                )
        self.task_metrics = nn.ModuleDict(task_metrics)
        self._prefix = MetricCollection._check_arg(prefix, "prefix") or ""
        self._postfix = MetricCollection._check_arg(postfix, "postfix") or ""

    def update(self, task_preds: Mapping[str, Any], task_targets: Mapping[str, Any]) -> None:
        """Add a batch of every task; raise ValueError unless both arguments have all tasks."""
        for metric, preds, target in self._match_tasks(task_preds, task_targets):
            metric.update(preds, target)

    @torch.jit.unused
    def forward(self, task_preds: Mapping[str, Any], task_targets: Mapping[str, Any]) -> dict[str, Any]:
        """Add a batch of every task and return the results over the batch alone."""
        inputs = self._match_tasks(task_preds, task_targets)
        return self._name_results(metric(preds, target) for metric, preds, target in inputs)

    def compute(self) -> dict[str, Any]:
        """Return the results of all tasks, on the device."""
        return self._name_results(metric.compute() for metric in self._wrapped_metrics())

    def reset(self) -> None:
        """Remove all data."""
        for metric in self._wrapped_metrics():
            metric.reset()

    def persistent(self, mode: bool = True) -> None:
        """Set whether ``state_dict`` holds the states."""
        for metric in self._wrapped_metrics():
            metric.persistent(mode)

    def clone(self, prefix: str | None = None, postfix: str | None = None) -> MultitaskWrapper:
        """Return a copy that shares nothing with this one, with other affixes if given."""
        copied = copy.deepcopy(self)
        copied._prefix = MetricCollection._check_arg(prefix, "prefix") or copied._prefix
        copied._postfix = MetricCollection._check_arg(postfix, "postfix") or copied._postfix
        return copied

    def items(self, flatten: bool = True) -> Iterator[tuple[str, Any]]:
        """Yield metrics by task; with `flatten`, the members of collections."""
        for name, metric in self.task_metrics.items():
            if flatten and isinstance(metric, (MetricCollection, *torchmetrics_classes()[1:])):
                for inner, member in metric.items():  # type: ignore[operator]
                    yield f"{self._prefix}{name}_{inner}{self._postfix}", member
            else:
                yield f"{self._prefix}{name}{self._postfix}", metric

    def keys(self, flatten: bool = True) -> Iterator[str]:
        """Return the names of :meth:`items`."""
        return (name for name, _ in self.items(flatten))

    def values(self, flatten: bool = True) -> Iterator[Any]:
        """Return the metrics of :meth:`items`."""
        return (metric for _, metric in self.items(flatten))

    _check_arg = staticmethod(MetricCollection._check_arg)

    def _wrapped_metrics(self) -> list[Any]:
        return list(self.task_metrics.values())

    def _match_tasks(
        self, preds: Mapping[str, Any], targets: Mapping[str, Any]
    ) -> Iterable[tuple[Any, Any, Any]]:
        """Return metric, predictions and targets of every task; raise ValueError unless the tasks match."""
        tasks = self.task_metrics.keys()
        if not tasks == preds.keys() == targets.keys():
            raise ValueError(
                "Expected arguments `task_preds` and `task_targets` to have the same keys as the wrapped"
                f" `task_metrics`. Found task_preds.keys() = {preds.keys()},"
                f" task_targets.keys() = {targets.keys()} and self.task_metrics.keys() = {tasks}"
            )
        return [(self.task_metrics[task], preds[task], targets[task]) for task in tasks]

    def _name_results(self, results: Iterable[Any]) -> dict[str, Any]:
        names = (f"{self._prefix}{task}{self._postfix}" for task in self.task_metrics)
        return dict(zip(names, results, strict=True))

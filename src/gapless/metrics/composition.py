"""A metric computed from other metrics by arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gapless.metrics.foreign import wrap_torchmetrics
from gapless.metrics.metric import Metric
from gapless.metrics.operators import Operators
from gapless.metrics.wrapping import squeeze_result
from gapless.torch_internals import module_load


class CompositionalMetric(Metric):
    """The result of an operation on one or two values, each that of a metric, a tensor or a number.

    An update is passed to each operand metric once, even to one that occurs several times.

    Args:
        operator: computes the result from one or two operand values.
        metric_a: the first operand.
        metric_b: the second operand; None where there is only one.
    """

    direct = True
    full_state_update = True

    def __init__(
        self,
        operator: Callable[..., Any],
        metric_a: Metric | float | Tensor,
        metric_b: Metric | float | Tensor | None,
    ) -> None:
        super().__init__()
        self.op = operator
        for name, operand in (
            ("metric_a", wrap_torchmetrics(metric_a)),
            ("metric_b", wrap_torchmetrics(metric_b)),
        ):
            if isinstance(operand, Tensor):
                self.register_buffer(name, operand, persistent=False)
            else:
                setattr(self, name, operand)
        self.compute_with_cache = False
        self._collect_statistics()

    def _collect_statistics(self) -> None:
        """Collect the operands' statistics anew: they change when an operand joins or leaves a collection."""
        for i, metric in enumerate(self._operands()):
            for name, part in metric.statistics():
                self.use(f"{name}_{i}", part)

    def _leave_collections(self) -> None:
        """Take the operands out of their collections, which would not notice updates made from here."""
        for metric in self._operands():
            metric.stop_sharing()
        self._collect_statistics()

    def _operands(self) -> list[Metric]:
        """Return the operand metrics, each once, those of nested compositions included."""
        operands: dict[int, Metric] = {}
        for operand in (self.metric_a, self.metric_b):
            several = operand._operands() if isinstance(operand, CompositionalMetric) else [operand]
            operands.update((id(metric), metric) for metric in several if isinstance(metric, Metric))
        return list(operands.values())

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch to every operand; each gets the keyword arguments that its ``update`` accepts."""
        for metric in self._operands():
            metric.update(*args, **metric._filter_kwargs(**kwargs))
        self.record_update()

    @torch.jit.unused
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Add a batch and return the operation's result over this batch alone."""
        self._leave_collections()
        if not any(metric._declaring_metrics() or metric._computes_itself for metric in self._operands()):
            return super().forward(*args, **kwargs)
        results = {
            id(metric): metric(*args, **metric._filter_kwargs(**kwargs)) for metric in self._operands()
        }
        self.record_update()
        self.__dict__["_forward_cache"] = result = squeeze_result(self._combine(results))
        return result

    def compute(self) -> Any:
        """Return the operation's result over all batches of the operands. The host does not wait."""
        self._collect_statistics()
        self.update_history.updated = any(metric.update_called for metric in self._operands())
        return Metric.compute(self)

    def value(self) -> Any:
        return self._combine({})

    def _combine(self, results: dict[int, Any]) -> Any:
        """Return the operation's result, using `results` (by metric id) where an operand is in it."""

        def result(operand: Any) -> Any:
            if isinstance(operand, CompositionalMetric):
                return operand._combine(results)
            if isinstance(operand, Metric):
                value = results[id(operand)] if id(operand) in results else operand._result()
                return squeeze_result(value)
            return operand

        first = result(self.metric_a)
        return self.op(first) if self.metric_b is None else self.op(first, result(self.metric_b))

    def _declaring_metrics(self) -> list[Metric]:
        return [holder for metric in self._operands() for holder in metric._declaring_metrics()]

    def reset(self) -> None:
        self._leave_collections()
        super().reset()
        for metric in self._operands():
            metric.reset()

    def persistent(self, mode: bool = False) -> None:
        for metric in self._operands():
            metric.persistent(mode)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        module_load(self, state_dict, prefix, *args)

    def extra_repr(self) -> str:
        return f"{getattr(self.op, '__name__', type(self.op).__name__)}"


Operators._composition = CompositionalMetric

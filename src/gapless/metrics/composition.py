"""A metric made of other metrics by arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gapless.metrics.foreign import adopted
from gapless.metrics.metric import Metric
from gapless.metrics.operators import Operators
from gapless.metrics.wrapping import squeezed
from gapless.torch_internals import module_load


class CompositionalMetric(Metric):
    """The result of an operation on one or two values, each that of a metric, a tensor or a number.

    An update goes to the metrics in it, to one that occurs several times once.

    Args:
        operator: what makes the value, from one value or from two.
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
        for name, operand in (("metric_a", adopted(metric_a)), ("metric_b", adopted(metric_b))):
            if isinstance(operand, Tensor):
                self.register_buffer(name, operand, persistent=False)
            else:
                setattr(self, name, operand)
        self.compute_with_cache = False
        self._look_up()

    def _look_up(self) -> None:
        """Take the operands' statistics, which change where one joins or leaves a collection."""
        for i, metric in enumerate(self._operands()):
            for name, part in metric.statistics():
                self.use(f"{name}_{i}", part)

    def _leave(self) -> None:
        """Make the operands those of no collection, which would not be told about an update from here."""
        for metric in self._operands():
            if metric._lender is not None:
                metric._take_back()
        self._look_up()

    def _operands(self) -> list[Metric]:
        """The metrics in it, each once."""
        found: dict[int, Metric] = {}
        for operand in (self.metric_a, self.metric_b):
            several = operand._operands() if isinstance(operand, CompositionalMetric) else [operand]
            found.update((id(one), one) for one in several if isinstance(one, Metric))
        return list(found.values())

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch to every metric in it; each takes the keyword arguments that it knows."""
        for metric in self._operands():
            metric.update(*args, **metric._filter_kwargs(**kwargs))
        self._ledger.updated_once(torch.compiler.is_compiling())

    @torch.jit.unused
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Add a batch and return the operation's result over this batch alone."""
        self._leave()
        if not any(metric._holders() or metric._computes_itself for metric in self._operands()):
            return super().forward(*args, **kwargs)
        found = {id(one): one(*args, **one._filter_kwargs(**kwargs)) for one in self._operands()}
        self._ledger.updated_once(torch.compiler.is_compiling())
        self.__dict__["_forward_cache"] = result = squeezed(self._combined_from(found))
        return result

    def compute(self) -> Any:
        """The operation's result, over all that the metrics in it have seen. The host does not wait."""
        self._look_up()
        self._ledger.updated = any(metric.update_called for metric in self._operands())
        return Metric.compute(self)

    def value(self) -> Any:
        return self._combined_from({})

    def _combined_from(self, known_results: dict[int, Any]) -> Any:
        """The operation's result, given those of some of the metrics in it."""

        def result(operand: Any) -> Any:
            if isinstance(operand, CompositionalMetric):
                return operand._combined_from(known_results)
            if isinstance(operand, Metric):
                found = known_results[id(operand)] if id(operand) in known_results else operand._result()
                return squeezed(found)
            return operand

        first = result(self.metric_a)
        return self.op(first) if self.metric_b is None else self.op(first, result(self.metric_b))

    def _holders(self) -> list[Metric]:
        return [holder for metric in self._operands() for holder in metric._holders()]

    def reset(self) -> None:
        self._leave()
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

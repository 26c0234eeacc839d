"""Metrics whose predictions or targets are changed before they are counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gapless.metrics.collection import MetricCollection
from gapless.metrics.foreign import their_kinds
from gapless.metrics.metric import Metric


class MetricInputTransformer(Metric):
    """A metric or a collection that is given what :meth:`transform_pred` and :meth:`transform_target` make.

    Both leave their argument as it is; subclasses override one or both.
    """

    direct = True

    def __init__(self, wrapped_metric: Metric | MetricCollection, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(wrapped_metric, (Metric, MetricCollection, *their_kinds())):
            raise TypeError(
                "Expected wrapped metric to be an instance of `gapless.metrics.Metric` or"
                f" `gapless.metrics.MetricCollection` but received {wrapped_metric}"
            )
        self.wrapped_metric: Any = wrapped_metric

    def transform_pred(self, pred: Tensor) -> Tensor:
        """What becomes of the first argument."""
        return pred

    def transform_target(self, target: Tensor) -> Tensor:
        """What becomes of the second argument."""
        return target

    def _changed(self, args: tuple[Any, ...]) -> list[Any]:
        changes = (self.transform_pred, self.transform_target)
        return [change(value) for change, value in zip(changes, args, strict=False)] + list(args[2:])

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch; the first two positional arguments are changed."""
        self.wrapped_metric.update(*self._changed(args), **kwargs)
        self._ledger.updated_once(torch.compiler.is_compiling())

    @torch.jit.unused
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Add a batch and return the result of this batch alone."""
        found = self.wrapped_metric(*self._changed(args), **kwargs)
        self._ledger.updated_once(torch.compiler.is_compiling())
        self.__dict__["_forward_cache"] = found
        return found

    def value(self) -> Any:
        return self.wrapped_metric.compute()

    def reset(self) -> None:
        super().reset()
        self.wrapped_metric.reset()

    def persistent(self, mode: bool = False) -> None:
        self.wrapped_metric.persistent(mode)


class LambdaInputTransformer(MetricInputTransformer):
    """A metric or a collection that is given what functions make of predictions and targets.

    Args:
        wrapped_metric: the metric.
        transform_pred: applied to the predictions; None to leave them.
        transform_target: applied to the targets; None to leave them.
    """

    def __init__(
        self,
        wrapped_metric: Metric | MetricCollection,
        transform_pred: Callable[[Tensor], Tensor] | None = None,
        transform_target: Callable[[Tensor], Tensor] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(wrapped_metric, **kwargs)
        for name, function in (("transform_pred", transform_pred), ("transform_target", transform_target)):
            if function is None:
                continue
            if not callable(function):
                raise TypeError(f"Expected `{name}` to be of type `Callable` but received `{function}`")
            self.__dict__[name] = function


class BinaryTargetTransformer(MetricInputTransformer):
    """A metric or a collection whose targets become 1 above `threshold` and 0 elsewhere."""

    def __init__(
        self, wrapped_metric: Metric | MetricCollection, threshold: float = 0, **kwargs: Any
    ) -> None:
        super().__init__(wrapped_metric, **kwargs)
        if not isinstance(threshold, (int, float)):
            raise TypeError(f"Expected `threshold` to be of type `int` or `float` but received `{threshold}`")
        self.threshold = threshold

    def transform_target(self, target: Tensor) -> Tensor:
        return target.gt(self.threshold).to(target.dtype)

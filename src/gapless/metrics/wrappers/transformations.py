"""Metrics whose predictions or targets are transformed before they are counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gapless.metrics.collection import MetricCollection
from gapless.metrics.foreign import torchmetrics_classes
from gapless.metrics.metric import Metric


class MetricInputTransformer(Metric):
    """A metric or a collection whose arguments pass :meth:`transform_pred` and :meth:`transform_target`.

    Both return their argument unchanged; subclasses override one or both.
    """

    direct = True

    def __init__(self, wrapped_metric: Metric | MetricCollection, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(wrapped_metric, (Metric, MetricCollection, *torchmetrics_classes())):
            raise TypeError(
                "Expected wrapped metric to be an instance of `gapless.metrics.Metric` or"
                f" `gapless.metrics.MetricCollection` but received {wrapped_metric}"
            )
        self.wrapped_metric: Any = wrapped_metric

    def transform_pred(self, pred: Tensor) -> Tensor:
        """Return the transformed first argument."""
        return pred

    def transform_target(self, target: Tensor) -> Tensor:
        """Return the transformed second argument."""
        return target

    def _transform_args(self, args: tuple[Any, ...]) -> list[Any]:
        changes = (self.transform_pred, self.transform_target)
        return [change(value) for change, value in zip(changes, args, strict=False)] + list(args[2:])

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch, with the first two positional arguments transformed."""
        self.wrapped_metric.update(*self._transform_args(args), **kwargs)
        self.record_update()

    @torch.jit.unused
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Add a batch and return the result of this batch alone."""
        result = self.wrapped_metric(*self._transform_args(args), **kwargs)
        self.record_update()
        self.__dict__["_forward_cache"] = result
        return result

    def value(self) -> Any:
        return self.wrapped_metric.compute()

    def reset(self) -> None:
        super().reset()
        self.wrapped_metric.reset()

    def persistent(self, mode: bool = False) -> None:
        self.wrapped_metric.persistent(mode)


class LambdaInputTransformer(MetricInputTransformer):
    """A metric or a collection whose predictions and targets go through functions.

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

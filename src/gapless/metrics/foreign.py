"""Hold TorchMetrics' own metrics in this package's collections, wrappers and expressions."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gapless.metrics import declared
from gapless.metrics.metric import Metric

REDUCE_FUNCTIONS_BY_THEIR_NAMES = {
    f"dim_zero_{name}": reduction for name, reduction in declared.REDUCE_FUNCTIONS.items()
}
"""This package's reduce functions by the names of TorchMetrics' functions."""


def delegate_to_theirs(name: str) -> Any:
    """Return a property that reads the attribute `name` of the wrapped TorchMetrics metric."""
    return property(lambda self: getattr(self.theirs, name))


class ForeignMetric(Metric, abstract=True):
    """A metric of TorchMetrics, updated, computed and reset by its own code, which waits where that does.

    Its states count as declared states: they are reduced over processes together with those of other metrics,
    and can be those of a single batch where a wrapper needs that.
    """

    direct = True
    theirs: Any

    def __init__(self, theirs: Any) -> None:
        super().__init__()
        self.theirs = theirs
        self.update_history.count, self.update_history.updated = theirs.update_count, theirs.update_called

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Update the wrapped metric."""
        self.theirs.update(*args, **kwargs)
        self.record_update()

    @torch.jit.unused
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the wrapped metric."""
        result = self.theirs(*args, **kwargs)
        self.record_update()
        return result

    def compute(self) -> Any:
        """Return the wrapped metric's result; its own code may make the host wait."""
        return self.theirs.compute()

    def value(self) -> Any:
        with self._without_cache():
            return self.theirs.compute()

    @contextmanager
    def _without_cache(self) -> Iterator[None]:
        """Inside the block, compute from the local states: without cached results and without sync."""
        metrics = torchmetrics_in(self.theirs)
        before = [(metric, metric._to_sync, metric.sync_on_compute, metric._computed) for metric in metrics]
        for metric in metrics:
            metric._to_sync = metric.sync_on_compute = False
            metric._computed = None
        try:
            yield
        finally:
            for metric, to_sync, on_compute, computed in before:
                metric._to_sync, metric.sync_on_compute, metric._computed = to_sync, on_compute, computed

    def reset(self) -> None:
        self.theirs.reset()
        self.update_history.record_reset()

    def _get_name(self) -> str:
        return type(self.theirs).__name__

    def persistent(self, mode: bool = False) -> None:
        self.theirs.persistent(mode)

    def set_dtype(self, dst_type: torch.dtype | str) -> Metric:
        self.theirs.set_dtype(dst_type)
        return self

    def plot(self, *args: Any, **options: Any) -> Any:
        return self.theirs.plot(*args, **options)

    device = delegate_to_theirs("device")
    metric_state = delegate_to_theirs("metric_state")
    higher_is_better = delegate_to_theirs("higher_is_better")
    is_differentiable = delegate_to_theirs("is_differentiable")
    full_state_update = delegate_to_theirs("full_state_update")

    @property
    def _own_defaults(self) -> dict[str, Any]:  # type: ignore[override]
        states: dict[str, Any] = self.theirs._defaults if "theirs" in self._modules else {}
        return states

    @property
    def _own_reductions(self) -> dict[str, Any]:  # type: ignore[override]
        return {
            name: REDUCE_FUNCTIONS_BY_THEIR_NAMES.get(getattr(function, "__name__", ""), function)
            for name, function in self.theirs._reductions.items()
        }

    @property
    def _own_persistent(self) -> dict[str, bool]:  # type: ignore[override]
        return {}

    def _declare_nothing(self) -> None:
        self.__dict__.update(_is_unwrapped=False, _updating=False, _enable_grad=False)

    def _declaring_metrics(self) -> list[Metric]:
        held = {
            id(metric._defaults): metric
            for metric in reversed(torchmetrics_in(self.theirs))
            if metric._defaults
        }
        return [self if metric is self.theirs else ForeignMetric(metric) for metric in held.values()]

    def _parameters_of_update(self) -> list[inspect.Parameter]:
        signature = getattr(self.theirs, "_update_signature", None) or inspect.signature(self.theirs.update)
        return list(signature.parameters.values())

    def _filter_kwargs(self, **kwargs: Any) -> dict[str, Any]:
        accepted: dict[str, Any] = self.theirs._filter_kwargs(**kwargs)
        return accepted

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        pass  # The metric saves itself.

    def _load_from_state_dict(self, *args: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if "theirs" in self.__dict__.get("_modules", ()) and name != "theirs":
            return getattr(self.theirs, name)
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._own_defaults:
            setattr(self.theirs, name, value)
            self.theirs._computed = None
        else:
            super().__setattr__(name, value)


def torchmetrics_in(theirs: Any) -> list[Any]:
    """Return `theirs`, a TorchMetrics metric, and all TorchMetrics metrics inside it."""
    base = sys.modules["torchmetrics"].Metric
    return [
        module for module in theirs.modules() if isinstance(module, base) and not isinstance(module, Metric)
    ]


def torchmetrics_classes() -> tuple[type, ...]:
    """Return TorchMetrics' classes `Metric` and `MetricCollection` if it is loaded."""
    library = sys.modules.get("torchmetrics")
    classes = [getattr(library, name, None) for name in ("Metric", "MetricCollection")]
    return tuple(kind for kind in classes if kind is not None)


def is_torchmetrics_metric(value: Any) -> bool:
    """Whether `value` is a metric of TorchMetrics."""
    return not isinstance(value, Metric) and isinstance(value, torchmetrics_classes()[:1])


def wrap_torchmetrics(value: Any) -> Any:
    """Return `value`, wrapped in `ForeignMetric` if it is a metric of TorchMetrics."""
    return ForeignMetric(value) if is_torchmetrics_metric(value) else value

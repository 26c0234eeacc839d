"""TorchMetrics' own metrics among ours: in a collection, in a wrapper, in an expression."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gapless.metrics import declared
from gapless.metrics.metric import Metric

REDUCTIONS = {f"dim_zero_{name}": reduction for name, reduction in declared.BY_NAME.items()}
"""What TorchMetrics' own reductions are here, by their names."""


def asked(name: str) -> Any:
    """What a metric of TorchMetrics says of itself under this name."""
    return property(lambda self: getattr(self.theirs, name))


class Foreign(Metric, abstract=True):
    """A metric of TorchMetrics, updated, computed and reset by its own code, which waits where that does.

    Its states are declared ones. They travel with those of other metrics over the processes, and are a
    batch's alone where a wrapper asks for that.
    """

    direct = True
    theirs: Any

    def __init__(self, theirs: Any) -> None:
        super().__init__()
        self.theirs = theirs
        self._ledger.count, self._ledger.updated = theirs.update_count, theirs.update_called

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Update the metric, by its own code."""
        self.theirs.update(*args, **kwargs)
        self._ledger.updated_once(torch.compiler.is_compiling())

    @torch.jit.unused
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the metric, by its own code."""
        found = self.theirs(*args, **kwargs)
        self._ledger.updated_once(torch.compiler.is_compiling())
        return found

    def compute(self) -> Any:
        """The metric's result, by its own code, which may make the host wait."""
        return self.theirs.compute()

    def value(self) -> Any:
        with self._of_states():
            return self.theirs.compute()

    @contextmanager
    def _of_states(self) -> Iterator[None]:
        """Results inside the block are of the states as they are, neither known ones nor over processes."""
        several = metrics_in(self.theirs)
        before = [(one, one._to_sync, one.sync_on_compute, one._computed) for one in several]
        for one in several:
            one._to_sync = one.sync_on_compute = False
            one._computed = None
        try:
            yield
        finally:
            for one, to_sync, on_compute, computed in before:
                one._to_sync, one.sync_on_compute, one._computed = to_sync, on_compute, computed

    def reset(self) -> None:
        self.theirs.reset()
        self._ledger.start_again()

    def _get_name(self) -> str:
        return type(self.theirs).__name__

    def persistent(self, mode: bool = False) -> None:
        self.theirs.persistent(mode)

    def set_dtype(self, dst_type: torch.dtype | str) -> Metric:
        self.theirs.set_dtype(dst_type)
        return self

    def plot(self, *args: Any, **options: Any) -> Any:
        return self.theirs.plot(*args, **options)

    device = asked("device")
    metric_state = asked("metric_state")
    higher_is_better = asked("higher_is_better")
    is_differentiable = asked("is_differentiable")
    full_state_update = asked("full_state_update")

    @property
    def _own_defaults(self) -> dict[str, Any]:  # type: ignore[override]
        found: dict[str, Any] = self.theirs._defaults if "theirs" in self._modules else {}
        return found

    @property
    def _own_reductions(self) -> dict[str, Any]:  # type: ignore[override]
        return {
            name: REDUCTIONS.get(getattr(one, "__name__", ""), one)
            for name, one in self.theirs._reductions.items()
        }

    @property
    def _own_persistent(self) -> dict[str, bool]:  # type: ignore[override]
        return {}

    def _declare_nothing(self) -> None:
        self.__dict__.update(_bare=False, _updating=False, _enable_grad=False)

    def _holders(self) -> list[Metric]:
        held = {id(one._defaults): one for one in reversed(metrics_in(self.theirs)) if one._defaults}
        return [self if one is self.theirs else Foreign(one) for one in held.values()]

    def _parameters_of_update(self) -> list[inspect.Parameter]:
        signature = getattr(self.theirs, "_update_signature", None) or inspect.signature(self.theirs.update)
        return list(signature.parameters.values())

    def _filter_kwargs(self, **kwargs: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.theirs._filter_kwargs(**kwargs)
        return found

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


def metrics_in(theirs: Any) -> list[Any]:
    """The metrics of TorchMetrics in one of them, itself included."""
    base = sys.modules["torchmetrics"].Metric
    return [one for one in theirs.modules() if isinstance(one, base) and not isinstance(one, Metric)]


def their_kinds() -> tuple[type, ...]:
    """TorchMetrics' metrics and its collections, where it is loaded."""
    library = sys.modules.get("torchmetrics")
    found = [getattr(library, name, None) for name in ("Metric", "MetricCollection")]
    return tuple(kind for kind in found if kind is not None)


def is_theirs(value: Any) -> bool:
    """Whether `value` is a metric of TorchMetrics."""
    return not isinstance(value, Metric) and isinstance(value, their_kinds()[:1])


def adopted(value: Any) -> Any:
    """`value`; a metric of TorchMetrics as one that ours may hold."""
    return Foreign(value) if is_theirs(value) else value

"""Metrics made of another metric."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gapless.metrics.aggregation import MeanMetric, SumMetric
from gapless.metrics.collection import MetricCollection
from gapless.metrics.metric import Metric, swap
from gapless.metrics.rows import Rows
from gapless.metrics.statistic import REDUCE, Slot, State, Statistic


def check_metric(metric: Any, name: str) -> Metric:
    """`metric`; raises ValueError unless it is one of this package."""
    if not isinstance(metric, Metric):
        raise ValueError(
            f"Expected {name} to be an instance of `gapless.metrics.Metric` but received {metric}"
        )
    return metric


OWN = ("next", "faults", "clean")
"""Slots of a window that are not rows of the statistic inside."""


class Window(Statistic):
    """The states of the last updates of another statistic, one row each; the device knows the next."""

    def __init__(self, inner: Statistic, window: int) -> None:
        if isinstance(inner, Rows):
            raise ValueError(
                "A statistic that keeps every row has no fixed size and cannot run over a window"
            )
        self.inner = inner
        self.window = window
        slots = {
            name: Slot((window, *slot.shape), slot.dtype, slot.initial, slot.reduction)
            for name, slot in inner.slots.items()
            if name != "clean"
        }
        own = {"next": Slot((1,), reduction="max"), "faults": Slot()}
        super().__init__((inner.key, window), {**slots, **own}, inner.checked)
        self.severity = inner.severity

    def push(self) -> None:
        """Take the inner statistic's state, which is of one batch, into the place of the oldest."""
        at = self.state["next"] % self.window
        for name in self.slots:
            if name not in OWN:
                self.state[name].index_copy_(0, at, self.inner.state[name].unsqueeze(0))
        self.state["next"].add_(1)
        faults = self.inner.faults() if self.checked else None
        if faults is not None:
            self.state["faults"].add_(faults)
            self.note()

    def faults(self) -> Tensor:
        return self.state["faults"]

    def complaint(self, count: int) -> str:
        return self.inner.complaint(count)

    def joined(self) -> State:
        """The state of all batches in the window."""
        rows = [
            {name: self.state[name][i] for name in self.inner.slots if name != "clean"}
            for i in range(self.window)
        ]
        start = {name: value.clone() for name, value in rows[0].items()}
        for row in rows[1:]:
            for name, slot in self.inner.slots.items():
                if name != "clean" and slot.reduction != "fold":
                    REDUCE[slot.reduction](start[name], row[name])
            if any(slot.reduction == "fold" for slot in self.inner.slots.values()):
                self.inner.merge_folded(start, row)
        return {**start, "clean": self.inner.state["clean"]}

    def merge_folded(self, into: State, other: State) -> None:
        for i in range(self.window):
            self.inner.merge_folded(
                {name: value[i] for name, value in into.items() if name not in OWN},
                {name: value[i] for name, value in other.items() if name not in OWN},
            )


class Running(Metric):
    """Another metric over the last `window` updates. ``forward`` gives the value of the batch."""

    direct = True
    base_metric: Metric

    def __init__(self, base_metric: Metric, window: int = 5) -> None:
        super().__init__()
        check_metric(base_metric, "argument `metric`")
        if not (isinstance(window, int) and window > 0):
            raise ValueError(f"Expected argument `window` to be a positive integer but got {window}")
        self.base_metric = base_metric
        self.window = window
        for name, part in base_metric.statistics():
            self.use(f"window_{name}", Window(part, window))

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch, in the place of the oldest."""
        self.forward(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.base_metric.reset()
        self.base_metric.update(*args, **kwargs)
        for window in self._windows():
            window.to(window.inner.device)
            window.push()
        self._ledger.updated_once(torch.compiler.is_compiling())
        return self.base_metric.value()

    def value(self) -> Any:
        inner = [window.inner for window in self._windows()]
        before = swap(inner, [window.joined() for window in self._windows()])
        try:
            return self.base_metric.value()
        finally:
            swap(inner, before)

    def _windows(self) -> list[Window]:
        return [part for part in self._parts if isinstance(part, Window)]

    def reset(self) -> None:
        super().reset()
        self.base_metric.reset()

    @contextmanager
    def batch_only(self) -> Iterator[None]:
        """Inside the block, ``value`` is that of the last batch."""
        outer = self.__dict__.get("value")
        self.__dict__["value"] = self.base_metric.value
        try:
            yield
        finally:
            self.__dict__.pop("value") if outer is None else self.__dict__.update(value=outer)


class RunningMean(Running):
    """The mean over the last `window` updates."""

    def __init__(self, window: int = 5, nan_strategy: Any = "warn", **kwargs: Any) -> None:
        super().__init__(MeanMetric(nan_strategy=nan_strategy, **kwargs), window)


class RunningSum(Running):
    """The sum over the last `window` updates."""

    def __init__(self, window: int = 5, nan_strategy: Any = "warn", **kwargs: Any) -> None:
        super().__init__(SumMetric(nan_strategy=nan_strategy, **kwargs), window)


class Transparent(Metric):
    """A wrapper whose statistics are those of the metric inside, so that a collection shares them."""

    inner: Metric

    def __init__(self, inner: Metric, **options: Any) -> None:
        super().__init__(**options)
        self._wrap(inner)

    def _wrap(self, inner: Metric) -> None:
        self.inner = inner
        for name in ("_parts", "_names"):
            self.__dict__[name] = inner.__dict__[name]

    def use(self, name: str, statistic: Statistic) -> None:
        self.inner.use(name, statistic)

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Update the metric inside."""
        if self._lender is not None:
            self._take_back()
        self.inner.update(*args, **kwargs)
        self._ledger.updated_once(torch.compiler.is_compiling())

    def persistent(self, mode: bool = False) -> None:
        self.inner.persistent(mode)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        nn.Module._save_to_state_dict(self, destination, prefix, keep_vars)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        nn.Module._load_from_state_dict(self, state_dict, prefix, *args)


class ClasswiseWrapper(Transparent):
    """The values of a metric without average as a dict, one entry per class.

    Args:
        metric: a metric that gives one value per class.
        labels: names of the classes; None for their numbers.
        prefix: put before each name, in place of the metric's name.
        postfix: put behind each name, in place of the metric's name.
    """

    def __init__(
        self,
        metric: Metric,
        labels: list[str] | None = None,
        prefix: str | None = None,
        postfix: str | None = None,
    ) -> None:
        check_metric(metric, "argument `metric`")
        if labels is not None and not (
            isinstance(labels, list) and all(isinstance(one, str) for one in labels)
        ):
            raise ValueError(
                f"Expected argument `labels` to either be `None` or a list of strings but got {labels}"
            )
        for name, affix in (("prefix", prefix), ("postfix", postfix)):
            if affix is not None and not isinstance(affix, str):
                raise ValueError(
                    f"Expected argument `{name}` to either be `None` or a string but got {affix}"
                )
        super().__init__(metric)
        self.labels = labels
        self.prefix = prefix
        self.postfix = postfix

    def value(self) -> dict[str, Tensor]:
        values = self.inner.value()
        before, behind = self.prefix, self.postfix
        if not before and not behind:
            before, behind = f"{type(self.inner).__name__.lower()}_", ""
        names = self.labels or range(len(values))
        return {f"{before or ''}{name}{behind or ''}": one for name, one in zip(names, values, strict=True)}


class Extremes(Statistic):
    """The smallest and the largest value that was given out."""

    def __init__(self) -> None:
        slots = {
            "low": Slot((), torch.float64, torch.inf, "min"),
            "high": Slot((), torch.float64, -torch.inf, "max"),
        }
        super().__init__((), slots, checked=False)

    def take(self, value: Tensor) -> None:
        """Note a value of no dimension."""
        for name, function in (("low", torch.minimum), ("high", torch.maximum)):
            held = self.state[name]
            function(held, value.to(held.dtype), out=held)


class MinMaxMetric(Transparent):
    """A metric's value with the smallest and the largest that were given out since the last reset."""

    extremes: Extremes

    def __init__(self, base_metric: Metric, **kwargs: Any) -> None:
        super().__init__(check_metric(base_metric, "base metric"), **kwargs)
        self.__dict__["extremes"] = Extremes()

    def value(self) -> dict[str, Tensor]:
        raw = self.inner.value()
        if not isinstance(raw, Tensor) or raw.numel() != 1:
            raise RuntimeError(f"Returned value from base metric should be a scalar, but got {raw}")
        self.extremes.to(raw.device)
        self.extremes.take(raw.reshape(()))
        low, high = (self.extremes.state[name].to(raw.dtype, copy=True) for name in ("low", "high"))
        return {"raw": raw, "max": high, "min": low}

    def reset(self) -> None:
        super().reset()
        self.extremes.reset()


class BootStrapper(Metric):
    """The spread of a metric over samples drawn with replacement from what it was given.

    Each of `num_bootstraps` copies sees every batch with its rows drawn anew, on the device; ``"poisson"``
    and ``"multinomial"`` both draw as many rows as there are, so that no size depends on the draw.

    Args:
        base_metric: the metric.
        num_bootstraps: how many copies.
        mean, std, quantile, raw: which of them to give, by these names.
        sampling_strategy: ``"poisson"`` or ``"multinomial"``.
    """

    direct = True

    def __init__(
        self,
        base_metric: Metric,
        num_bootstraps: int = 10,
        mean: bool = True,
        std: bool = True,
        quantile: float | Tensor | None = None,
        raw: bool = False,
        sampling_strategy: str = "poisson",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_metric(base_metric, "base metric")
        if sampling_strategy not in ("poisson", "multinomial"):
            raise ValueError(
                "Expected argument ``sampling_strategy`` to be one of ('poisson', 'multinomial')"
                f" but received {sampling_strategy}"
            )
        self.metrics = nn.ModuleList([copy.deepcopy(base_metric) for _ in range(num_bootstraps)])
        for i, metric in enumerate(self._several()):
            for name, part in metric.statistics():
                self.use(f"{name}_{i}", part)
        self.num_bootstraps = num_bootstraps
        self.mean, self.std, self.quantile, self.raw = mean, std, quantile, raw
        self.sampling_strategy = sampling_strategy

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch; tensors are drawn from along their first dimension."""
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        if not given:
            raise ValueError("None of the input contained tensors, so could not determine the sampling size")
        for metric in self._several():
            rows = torch.randint(len(given[0]), (len(given[0]),), device=given[0].device)
            metric.update(
                *(value.index_select(0, rows) if isinstance(value, Tensor) else value for value in args),
                **{n: v.index_select(0, rows) if isinstance(v, Tensor) else v for n, v in kwargs.items()},
            )
        self._ledger.updated_once(torch.compiler.is_compiling())

    def value(self) -> dict[str, Tensor]:
        values = torch.stack([metric.value() for metric in self._several()])
        found: dict[str, Tensor] = {}
        if self.mean:
            found["mean"] = values.mean(0)
        if self.std:
            found["std"] = values.std(0)
        if self.quantile is not None:
            found["quantile"] = torch.quantile(values, self.quantile)
        if self.raw:
            found["raw"] = values
        return found

    def _several(self) -> list[Metric]:
        return [metric for metric in self.metrics if isinstance(metric, Metric)]


class MetricTracker(nn.ModuleList):
    """A metric or a collection, once per epoch (or whatever :meth:`increment` begins), and the best of them.

    Args:
        metric: what to track.
        maximize: whether larger is better, for all or in a list for each; None to ask the metrics.
    """

    def __init__(self, metric: Metric | MetricCollection, maximize: bool | list[bool] | None = None) -> None:
        super().__init__()
        if not isinstance(metric, (Metric, MetricCollection)):
            raise TypeError(
                f"Expected argument `metric` to be a `Metric` or a `MetricCollection` but got {metric}"
            )
        self._base_metric = metric
        self.maximize = self._direction(metric, maximize)
        self._begun = False

    @staticmethod
    def _direction(metric: Any, maximize: Any) -> bool | list[bool]:
        several = isinstance(metric, MetricCollection)
        if maximize is None:
            found = []
            for member in metric.values() if several else [metric]:
                if member.higher_is_better is None:
                    raise AttributeError(
                        f"The metric '{type(member).__name__}' does not have a 'higher_is_better' attribute."
                        " Please provide the `maximize` argument explicitly."
                    )
                found.append(bool(member.higher_is_better))
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
        if not isinstance(values, Tensor) or values.dim() != 1:
            return None, None
        best = values.max(0) if maximize else values.min(0)
        return best.values.item(), int(best.indices.item())

    def _all(self) -> list[Any]:
        return list(self)

    def _now(self, method: str) -> Any:
        if not self._begun:
            raise ValueError(f"`{method}` cannot be called before `.increment()` has been called.")
        return self[-1]


__all__ = [
    "BootStrapper",
    "ClasswiseWrapper",
    "MetricTracker",
    "MinMaxMetric",
    "Running",
    "RunningMean",
    "RunningSum",
]

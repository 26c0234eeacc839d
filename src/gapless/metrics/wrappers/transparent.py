"""Wrappers whose statistics are those of the wrapped metrics."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gapless.metrics.breadth import Breadth, SizeMismatch, describe_sizes
from gapless.metrics.foreign import wrap_torchmetrics
from gapless.metrics.metric import Metric
from gapless.metrics.statistic import Slot, Statistic
from gapless.torch_internals import module_load, module_save


def check_metric(metric: Any, name: str) -> Metric:
    """Return `metric`, wrapped if it is TorchMetrics'; raise ValueError if it is no metric."""
    wrapped = wrap_torchmetrics(metric)
    if not isinstance(wrapped, Metric):
        raise ValueError(
            f"Expected {name} to be an instance of `gapless.metrics.Metric` but received {metric}"
        )
    return wrapped


_COPY = re.compile(r"metrics\.(\d+)\.|\w+_(\d+)\.")
"""The number of a copy in the name of a state."""


class MetricCopies(Metric, abstract=True):
    """A wrapper of several copies of a metric, with the statistics of all."""

    direct = True
    copied_for: ClassVar[str] = "sample"
    """What there is a copy of the metric for."""

    def _make_copies(self, metric: Metric, number: int) -> None:
        """Make `number` copies of `metric` and register their statistics."""
        self.metrics = nn.ModuleList([copy.deepcopy(metric) for _ in range(number)])
        for i, copied in enumerate(self._wrapped_metrics()):
            for name, part in copied.statistics():
                self.use(f"{name}_{i}", part)

    def _reduce_states(self, incoming: Mapping[str, Any] | Metric) -> None:
        """Add the states of as many copies.

        Raises:
            SizeMismatch: there are more or fewer.
        """
        named = incoming if isinstance(incoming, Mapping) else dict.fromkeys(f"{n}." for n in incoming._names)
        difference = self._describe_copies(named)
        if difference:
            raise SizeMismatch(difference)
        super()._reduce_states(incoming)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        self._explain_copies(state_dict, prefix, args[4])
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _explain_copies(self, state_dict: Any, prefix: str, errors: list[str]) -> None:
        """Add to `errors` that a checkpoint is of more or fewer copies, if it is."""
        names = [name.removeprefix(prefix) for name in state_dict if name.startswith(prefix)]
        difference = self._describe_copies(names)
        if difference:
            errors.append(f"{prefix}metrics: {difference}")

    def _describe_copies(self, names: Iterable[str]) -> str:
        """Say how many copies the states of these `names` are of, if there are more or fewer here."""
        copies = {match.group(1) or match.group(2) for match in map(_COPY.match, names) if match}
        own = len(self.metrics)
        if len(copies) in (0, own):
            return ""
        sizes = [Breadth(self.copied_for, own).words([number], [own]) for number in (len(copies), own)]
        return describe_sizes(*sizes)

    def reset(self) -> None:
        super().reset()
        for metric in self._wrapped_metrics():
            metric.reset()

    def _declaring_metrics(self) -> list[Metric]:
        return [holder for metric in self._wrapped_metrics() for holder in metric._declaring_metrics()]

    def _wrapped_metrics(self) -> list[Metric]:
        return [metric for metric in self.metrics if isinstance(metric, Metric)]


class Transparent(Metric, abstract=True):
    """A wrapper with the statistics of the wrapped metric, so that a collection can share them."""

    inner: Metric

    def __init__(self, inner: Metric, **options: Any) -> None:
        super().__init__(**options)
        self._wrap(inner)

    def _wrap(self, inner: Metric) -> None:
        self.inner = inner
        self.use_statistics_of(inner)

    @property
    def direct(self) -> bool:  # type: ignore[override]
        """Whether the wrapped metric's ``update`` must be called."""
        return self.inner.direct

    def use(self, name: str, statistic: Statistic) -> None:
        self.inner.use(name, statistic)

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Update the wrapped metric."""
        self.stop_sharing()
        self.inner.update(*args, **kwargs)
        self.record_update()

    def _declaring_metrics(self) -> Sequence[Metric]:
        return self.inner._declaring_metrics()

    def _parameters_of_update(self) -> list[inspect.Parameter]:
        return self.inner._parameters_of_update()

    def persistent(self, mode: bool = False) -> None:
        self.inner.persistent(mode)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        module_save(self, destination, prefix, keep_vars)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        module_load(self, state_dict, prefix, *args)


class ClasswiseWrapper(Transparent):
    """Returns the values of a metric without average as a dict, one entry per class.

    Args:
        metric: a metric with one value per class.
        labels: names of the classes; None for their numbers.
        prefix: prepended to each name, in place of the metric's name.
        postfix: appended to each name, in place of the metric's name.
    """

    torchmetrics_file = "classwise"

    def __init__(
        self,
        metric: Metric,
        labels: list[str] | None = None,
        prefix: str | None = None,
        postfix: str | None = None,
    ) -> None:
        metric = check_metric(metric, "argument `metric`")
        if labels is not None and not (
            isinstance(labels, list) and all(isinstance(label, str) for label in labels)
        ):
            raise ValueError(
                f"Expected argument `labels` to either be `None` or a list of strings but got {labels}"
            )
        if labels is not None and len(set(labels)) < len(labels):
            raise ValueError(f"Expected argument `labels` to contain unique values but got {labels}")
        for name, affix in (("prefix", prefix), ("postfix", postfix)):
            if affix is not None and not isinstance(affix, str):
                raise ValueError(
                    f"Expected argument `{name}` to either be `None` or a string but got {affix}"
                )
        super().__init__(metric)
        self.labels = labels
        self.prefix = prefix
        self.postfix = postfix

    @property
    def metric(self) -> Metric:
        """The wrapped metric."""
        return self.inner

    @property
    def higher_is_better(self) -> bool | None:  # type: ignore[override]
        """The wrapped metric's attribute."""
        return self.inner.higher_is_better

    def value(self) -> dict[str, Tensor]:
        values = self.inner._result()
        if self.labels is not None and len(self.labels) != len(values):
            raise ValueError(
                f"Expected argument `labels` to contain {len(values)} labels, but got {len(self.labels)}:"
                f" {self.labels}"
            )
        before, behind = self.prefix, self.postfix
        if not before and not behind:
            before, behind = f"{self.inner._get_name().lower()}_", ""
        names = self.labels or range(len(values))
        return {
            f"{before or ''}{name}{behind or ''}": class_value
            for name, class_value in zip(names, values, strict=True)
        }


class Extremes(Statistic):
    """The smallest and the largest value that was returned."""

    def __init__(self) -> None:
        slots = {
            "low": Slot((), torch.float64, torch.inf, "min"),
            "high": Slot((), torch.float64, -torch.inf, "max"),
        }
        super().__init__((), slots, checked=False)

    def observe_value(self, value: Tensor) -> None:
        """Update both with a 0-dim value."""
        for name, function in (("low", torch.minimum), ("high", torch.maximum)):
            held = self.state[name]
            function(held, value.to(held.dtype), out=held)


class MinMaxMetric(Transparent):
    """A metric's value, with the smallest and the largest one returned since the last reset."""

    torchmetrics_file = "minmax"
    extremes: Extremes

    def __init__(self, base_metric: Metric, **kwargs: Any) -> None:
        super().__init__(check_metric(base_metric, "base metric"), **kwargs)
        self.__dict__["extremes"] = Extremes()

    def value(self) -> dict[str, Tensor]:
        raw = self.inner._result()
        if not isinstance(raw, Tensor) or raw.numel() != 1:
            raise RuntimeError(
                f"Returned value from base metric should be a float or a tensor of one element, but got {raw}"
            )
        self.extremes.to(raw.device)
        self.extremes.observe_value(raw.reshape(()))
        low, high = (self.extremes.state[name].to(raw.dtype, copy=True) for name in ("low", "high"))
        return {"raw": raw, "max": high, "min": low}

    def reset(self) -> None:
        super().reset()
        self.extremes.reset()

"""Means of errors of predictions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.batch import Batch
from gapless.metrics.metric import Metric
from gapless.metrics.reduced import Sum

MIN_DIVISOR = 1.17e-06
"""Lower bound of the divisor of a relative error, as in TorchMetrics and scikit-learn."""


def float_pair(batch: Batch) -> tuple[Tensor, Tensor]:
    """Return predictions and targets as float32 or wider; raise RuntimeError unless shapes are the same."""
    preds, target = batch.args
    checks.check_same_shape(preds, target)
    return to_wide_float(preds), to_wide_float(target)


def as_columns(preds: Tensor, target: Tensor, outputs: int) -> tuple[Tensor, Tensor]:
    """Return both as ``(N,)``, or ``(N, outputs)``; raise RuntimeError or ValueError for other shapes."""
    checks.check_same_shape(preds, target)
    check_columns(preds, target, outputs)
    if preds.dim() == 2 and outputs == 1:
        return preds.squeeze(1), target.squeeze(1)
    return preds, target


def to_wide_float(value: Tensor) -> Tensor:
    """Return `value` as float32 or float64."""
    return value if value.dtype in (torch.float32, torch.float64) else value.float()


def difference(batch: Batch) -> Tensor:
    """Return predictions minus targets."""
    preds, target = batch.derive(float_pair)
    error: Tensor = preds - target
    return error


def squared_error(batch: Batch) -> Tensor:
    return torch.square(batch.derive(difference))


def absolute_error(batch: Batch) -> Tensor:
    return torch.abs(batch.derive(difference))


def squared_log_error(batch: Batch) -> Tensor:
    preds, target = batch.derive(float_pair)
    return (preds.log1p() - target.log1p()).square()


def relative_error(batch: Batch) -> Tensor:
    target = batch.derive(float_pair)[1]
    return batch.derive(absolute_error) / target.abs().clamp(min=MIN_DIVISOR)


def symmetric_relative_error(batch: Batch) -> Tensor:
    preds, target = batch.derive(float_pair)
    return 2 * batch.derive(absolute_error) / (preds.abs() + target.abs()).clamp(min=MIN_DIVISOR)


def target_magnitude(batch: Batch) -> Tensor:
    return torch.abs(batch.derive(float_pair)[1])


def log_cosh_error(batch: Batch, outputs: int) -> Tensor:
    errors = batch.derive(difference)
    if errors.dim() > 1:
        check_columns(errors, errors, outputs)
    return (
        torch.logaddexp(errors, -errors)
        - torch.log(torch.tensor(2.0, dtype=errors.dtype, device="cpu")).item()
    )


def power_error(batch: Batch, p: float) -> Tensor:
    return torch.pow(batch.derive(absolute_error), p)


class PairMetric(Metric, abstract=True):
    """A metric of predictions and targets of the same shape.

    Args:
        num_outputs: columns of the predictions and targets: 1 for ``(N,)``.
    """

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch of predictions and targets of the same shape; ``(N, outputs)`` for several outputs."""
        self.observe(preds, target)


class MeanError(PairMetric, abstract=True):
    """The mean of an error."""

    plot_lower_bound = 0.0
    is_differentiable = True
    higher_is_better: bool | None = False
    error: ClassVar[Callable[[Batch], Tensor] | None] = None
    """Returns the error that is averaged; None if a subclass registers `errors` itself."""
    errors: Sum
    targets: Sum

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        error = type(self).error
        if error is not None:
            self.use("errors", Sum(error))

    def value(self) -> Tensor:
        return self.errors.reduced().to(self.dtype)


def check_outputs(num_outputs: int, words: str = "num_outputs to be a positive integer") -> int:
    """Return `num_outputs`; raise ValueError, in TorchMetrics' `words`, unless it is a positive integer."""
    if not (isinstance(num_outputs, int) and num_outputs > 0):
        raise ValueError(f"Expected {words} but got {num_outputs}")
    return num_outputs


NUM_OUTPUTS_MESSAGE = "argument `num_outputs` to be an int larger than 0,"
"""TorchMetrics' words in other metrics."""


def check_columns(preds: Tensor, target: Tensor, outputs: int) -> None:
    """Raise ValueError unless predictions and targets are ``(N,)`` or ``(N, outputs)``."""
    if preds.dim() > 2:
        raise ValueError(
            "Expected both predictions and target to be either 1- or 2-dimensional tensors,"
            f" but got {target.dim()} and {preds.dim()}."
        )
    columns = preds.shape[1] if preds.dim() == 2 else 1
    if columns != outputs:
        raise ValueError(
            "Expected argument `num_outputs` to match the second dimension of input, "
            f"but got {outputs} and {columns}."
        )


class MeanSquaredError(MeanError):
    """The mean squared error, or its root with ``squared=False``; one value per output."""

    torchmetrics_file = "mse"
    torchmetrics_slots = (("sum_squared_error", "sum", "row"), ("total", "seen", "int64"))

    def __init__(self, squared: bool = True, num_outputs: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(squared, bool):
            raise ValueError(f"Expected argument `squared` to be a boolean but got {squared}")
        self.squared = squared
        self.num_outputs = check_outputs(num_outputs)
        self.use("errors", Sum(squared_error, outputs=num_outputs))

    def value(self) -> Tensor:
        mean = self.errors.reduced()
        return (mean if self.squared else mean.sqrt()).to(self.dtype)


class MeanAbsoluteError(MeanError):
    """The mean absolute error; one value per output."""

    torchmetrics_file = "mae"
    torchmetrics_slots = (("sum_abs_error", "sum", "row"), ("total", "seen", "int64"))

    def __init__(self, num_outputs: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_outputs = check_outputs(num_outputs)
        self.use("errors", Sum(absolute_error, outputs=num_outputs))


class MeanSquaredLogError(MeanError):
    """The mean squared difference of ``log(1 + value)``."""

    torchmetrics_file = "log_mse"
    torchmetrics_slots = (("sum_squared_log_error", "sum"), ("total", "seen", "int64"))
    error = squared_log_error


class MeanAbsolutePercentageError(MeanError):
    """The mean absolute error relative to the target (1 is 100 %)."""

    torchmetrics_file = "mape"
    torchmetrics_slots = (("sum_abs_per_error", "sum"), ("total", "seen"))
    error = relative_error


class SymmetricMeanAbsolutePercentageError(MeanError):
    """The mean absolute error relative to the mean of target and prediction."""

    torchmetrics_file = "symmetric_mape"
    torchmetrics_slots = (("sum_abs_per_error", "sum"), ("total", "seen"))
    plot_upper_bound = 2.0
    error = symmetric_relative_error


class WeightedMeanAbsolutePercentageError(MeanError):
    """The sum of absolute errors relative to the sum of absolute targets."""

    torchmetrics_file = "wmape"
    error = absolute_error

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.use("targets", Sum(target_magnitude))

    def value(self) -> Tensor:
        whole = self.targets.state["sum"].clamp(min=MIN_DIVISOR)
        return (self.errors.state["sum"] / whole).to(self.dtype)


class LogCoshError(MeanError):
    """The mean logarithm of the hyperbolic cosine of the error; one value per output."""

    torchmetrics_file = "log_cosh"
    torchmetrics_slots = (("sum_log_cosh_error", "sum", "row"), ("total", "seen", "int64"))

    def __init__(self, num_outputs: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_outputs = check_outputs(num_outputs, NUM_OUTPUTS_MESSAGE)
        self.use("errors", Sum(log_cosh_error, (num_outputs,), num_outputs))


class MinkowskiDistance(MeanError):
    """The `p`-th root of the sum of absolute errors to the power of `p`."""

    torchmetrics_file = "minkowski"
    torchmetrics_slots = (("minkowski_dist_sum", "sum"),)

    def __init__(self, p: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not (isinstance(p, (float, int)) and p >= 1):
            message = f"Argument ``p`` must be a float or int greater than 1, but got {p}"
            raise checks.user_error(ValueError, message)
        self.p = p
        self.use("errors", Sum(power_error, (float(p),)))

    def value(self) -> Tensor:
        return self.errors.state["sum"].pow(1.0 / self.p).to(self.dtype)

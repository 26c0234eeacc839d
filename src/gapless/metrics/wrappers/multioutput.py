"""Compute a metric for each of several outputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gapless.metrics.metric import Metric
from gapless.metrics.wrappers.transparent import MetricCopies, check_metric
from gapless.torch_internals import module_load


class MultioutputWrapper(MetricCopies):
    """A copy of a metric for each output; the results are stacked.

    With `remove_nans` the number of rows depends on the data, so that an update on a GPU makes the host wait.

    Args:
        base_metric: the metric.
        num_outputs: how many outputs there are along `output_dim`.
        output_dim: the dimension of the outputs in every tensor of an update.
        remove_nans: whether to leave out, for each output, rows in which any tensor has a NaN.
        squeeze_outputs: whether to remove the dimension from an output's tensors.
    """

    copied_for = "output"

    def __init__(
        self,
        base_metric: Metric,
        num_outputs: int,
        output_dim: int = -1,
        remove_nans: bool = True,
        squeeze_outputs: bool = True,
    ) -> None:
        super().__init__()
        base_metric = check_metric(base_metric, "argument `base_metric`")
        self._make_copies(base_metric, num_outputs)
        self.output_dim = output_dim
        self.remove_nans = remove_nans
        self.squeeze_outputs = squeeze_outputs

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch; every tensor holds the outputs along the same dimension."""
        for i, metric in enumerate(self._wrapped_metrics()):
            positional, named = self._select_output(i, args, kwargs)
            metric.update(*positional, **named)
        self.record_update()

    def _select_output(
        self, i: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the positional and named arguments for output `i`."""

        def select(value: Any) -> Any:
            return value.narrow(self.output_dim, i, 1) if isinstance(value, Tensor) else value

        selected = [select(value) for value in (*args, *kwargs.values())]
        if self.remove_nans:
            selected = without_nans(selected)
        if self.squeeze_outputs:
            selected = [
                value_or_tensor.squeeze(self.output_dim)
                if isinstance(value_or_tensor, Tensor)
                else value_or_tensor
                for value_or_tensor in selected
            ]
        return selected[: len(args)], dict(zip(kwargs, selected[len(args) :], strict=True))

    def value(self) -> Tensor:
        return torch.stack([metric._squeezed_result() for metric in self._wrapped_metrics()])

    def persistent(self, mode: bool = False) -> None:
        for metric in self._wrapped_metrics():
            metric.persistent(mode)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        self._explain_copies(state_dict, prefix, args[4])
        module_load(self, state_dict, prefix, *args)


def without_nans(values: list[Any]) -> list[Any]:
    """Return `values` without the rows in which any of the tensors has a NaN."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    bad = [value.flatten(1).isnan().any(1) for value in tensors if value.is_floating_point()]
    if not bad:
        return values
    kept = ~torch.stack(bad).any(0)
    return [value[kept] if isinstance(value, Tensor) else value for value in values]

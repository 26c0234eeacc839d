"""A metric for each of several outputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gapless.metrics.metric import Metric
from gapless.metrics.wrappers.transparent import Copies, check_metric
from gapless.torch_internals import module_load


class MultioutputWrapper(Copies):
    """A copy of a metric for each output; the results are stacked.

    Where the rows that hold a NaN are left out, their number depends on the data: with `remove_nans` an
    update on a GPU makes the host wait.

    Args:
        base_metric: the metric.
        num_outputs: how many outputs there are along `output_dim`.
        output_dim: the dimension of the outputs, in every tensor that an update is given.
        remove_nans: whether to leave out rows in which any of the tensors has a NaN, for each output.
        squeeze_outputs: whether an output's tensors come without the dimension.
    """

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
        self._copy(base_metric, num_outputs)
        self.output_dim = output_dim
        self.remove_nans = remove_nans
        self.squeeze_outputs = squeeze_outputs

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch; every tensor holds the outputs along the same dimension."""
        for i, metric in enumerate(self._several()):
            positional, named = self._of_output(i, args, kwargs)
            metric.update(*positional, **named)
        self._ledger.updated_once(torch.compiler.is_compiling())

    def _of_output(
        self, i: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        def chosen(value: Any) -> Any:
            return value.narrow(self.output_dim, i, 1) if isinstance(value, Tensor) else value

        given = [chosen(value) for value in (*args, *kwargs.values())]
        if self.remove_nans:
            given = without_nans(given)
        if self.squeeze_outputs:
            given = [one.squeeze(self.output_dim) if isinstance(one, Tensor) else one for one in given]
        return given[: len(args)], dict(zip(kwargs, given[len(args) :], strict=True))

    def value(self) -> Tensor:
        return torch.stack([metric._squeezed_result() for metric in self._several()])

    def persistent(self, mode: bool = False) -> None:
        for metric in self._several():
            metric.persistent(mode)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        module_load(self, state_dict, prefix, *args)


def without_nans(values: list[Any]) -> list[Any]:
    """`values` without the rows in which any of the tensors has a NaN."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    bad = [value.flatten(1).isnan().any(1) for value in tensors if value.is_floating_point()]
    if not bad:
        return values
    kept = ~torch.stack(bad).any(0)
    return [value[kept] if isinstance(value, Tensor) else value for value in values]

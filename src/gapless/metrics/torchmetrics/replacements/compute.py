"""Results of metrics that read their own values on the host, with fewer reads or none."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gapless.metrics.regression.variance import MULTIOUTPUT, explained_share
from gapless.metrics.torchmetrics._registry import Function, replacement_for

NOTE = "results choose between cases on the GPU"


@replacement_for("functional.classification.auroc:_reduce_auroc", NOTE)
@replacement_for("functional.classification.average_precision:_reduce_average_precision", NOTE)
def _average(original: Function) -> Function:
    divide = original.__globals__["_safe_divide"]

    def reduce(
        x: Any, y: Any, average: str | None = "macro", weights: Tensor | None = None, *rest: Any
    ) -> Tensor:
        """Average the classes' areas under curves `x`, `y`; reads once whether an area is undefined."""
        scores: Tensor = original(x, y, None, None, *rest)
        if average is None or average == "none":
            return scores
        is_supported = average == "macro" or (average == "weighted" and weights is not None)
        if not is_supported or bool(torch.isnan(scores).any()):
            return original(x, y, average, weights, *rest)  # type: ignore[no-any-return]
        if weights is None or average == "macro":
            return scores.mean()
        shares: Tensor = divide(weights, weights.sum())
        return (scores * shares).sum()

    return reduce


@replacement_for("functional.regression.explained_variance:_explained_variance_compute", NOTE)
def _explained_variance(original: Function) -> Function:
    def compute(
        num_obs: int | Tensor,
        sum_error: Tensor,
        sum_squared_error: Tensor,
        sum_target: Tensor,
        sum_squared_target: Tensor,
        multioutput: str = "uniform_average",
    ) -> Tensor:
        mean_error, mean_target = sum_error / num_obs, sum_target / num_obs
        left = sum_squared_error / num_obs - mean_error * mean_error
        whole = sum_squared_target / num_obs - mean_target * mean_target
        return explained_share(left, whole, left != 0, whole != 0, multioutput)

    return compute


@replacement_for("functional.regression.r2:_r2_score_compute", NOTE)
def _r2(original: Function) -> Function:
    def compute(
        sum_squared_obs: Tensor,
        sum_obs: Tensor,
        rss: Tensor,
        num_obs: int | Tensor,
        adjusted: int = 0,
        multioutput: str = "uniform_average",
    ) -> Tensor:
        n = int(num_obs)  # the only read: with fewer than two samples there is no score
        if n < 2 or adjusted != 0 or multioutput not in MULTIOUTPUT:
            return original(sum_squared_obs, sum_obs, rss, n, adjusted, multioutput)  # type: ignore[no-any-return]
        tss = sum_squared_obs - sum_obs * (sum_obs / num_obs)
        some_rss = ~torch.isclose(rss, torch.zeros_like(rss), atol=1e-4)
        some_tss = ~torch.isclose(tss, torch.zeros_like(tss), atol=1e-4)
        return explained_share(rss, tss, some_rss, some_tss, multioutput)

    return compute


@replacement_for("functional.regression.pearson:_pearson_corrcoef_compute", NOTE)
def _pearson(original: Function) -> Function:
    def compute(
        max_abs_dev_x: Tensor,
        max_abs_dev_y: Tensor,
        var_x: Tensor,
        var_y: Tensor,
        corr_xy: Tensor,
        nb: Tensor,
    ) -> Tensor:
        args = (max_abs_dev_x, max_abs_dev_y, var_x, var_y, corr_xy, nb)
        if var_x.dtype == torch.float16:
            return original(*args)  # type: ignore[no-any-return]
        a = var_x / (nb - 1) * torch.pow(max_abs_dev_x, -2)
        b = var_y / (nb - 1) * torch.pow(max_abs_dev_y, -2)
        c = corr_xy / (nb - 1) / (max_abs_dev_x * max_abs_dev_y)
        bound = torch.finfo(a.dtype).eps ** 0.5
        bad = (a < bound) | (b < bound) | ~torch.isfinite(a) | ~torch.isfinite(b) | ~torch.isfinite(c)
        if bool(bad.any()):  # the only read: the original warns
            return original(*args)  # type: ignore[no-any-return]
        return (c / (a * b).sqrt()).clamp(-1.0, 1.0).squeeze()

    return compute


@replacement_for("functional.classification.matthews_corrcoef:_matthews_corrcoef_reduce", NOTE)
def _matthews(original: Function) -> Function:
    def reduce(confmat: Tensor) -> Tensor:
        """Return the coefficient of counts (C, C) or (L, 2, 2); one read for special cases of two classes."""
        cells = (confmat.sum(0) if confmat.dim() == 3 else confmat).float()
        actual, predicted = cells.sum(-1), cells.sum(-2)
        total, right = cells.sum(), cells.trace()
        # summed in TorchMetrics' order, to which the differences below are sensitive
        above = right * total - sum(actual * predicted)
        below = (total**2 - sum(predicted * predicted)) * (total**2 - sum(actual * actual))
        if cells.numel() == 4:
            special = (below == 0) | (right == 0) | (right == total)
            return original(confmat) if bool(special) else above / below.sqrt()
        return torch.where(below == 0, torch.zeros_like(above), above / below.sqrt())

    return reduce

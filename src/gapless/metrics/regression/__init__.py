"""Metrics of predicted numbers."""

from __future__ import annotations

from gapless.metrics.regression.correlation import ConcordanceCorrCoef, CosineSimilarity, PearsonCorrCoef
from gapless.metrics.regression.errors import (
    LogCoshError,
    MeanAbsoluteError,
    MeanAbsolutePercentageError,
    MeanSquaredError,
    MeanSquaredLogError,
    MinkowskiDistance,
    SymmetricMeanAbsolutePercentageError,
    WeightedMeanAbsolutePercentageError,
)
from gapless.metrics.regression.normalized import NormalizedRootMeanSquaredError
from gapless.metrics.regression.spearman import SpearmanCorrCoef
from gapless.metrics.regression.variance import ExplainedVariance, R2Score, RelativeSquaredError

__all__ = [
    "ConcordanceCorrCoef",
    "CosineSimilarity",
    "ExplainedVariance",
    "LogCoshError",
    "MeanAbsoluteError",
    "MeanAbsolutePercentageError",
    "MeanSquaredError",
    "MeanSquaredLogError",
    "MinkowskiDistance",
    "NormalizedRootMeanSquaredError",
    "PearsonCorrCoef",
    "R2Score",
    "RelativeSquaredError",
    "SpearmanCorrCoef",
    "SymmetricMeanAbsolutePercentageError",
    "WeightedMeanAbsolutePercentageError",
]

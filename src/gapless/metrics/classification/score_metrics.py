"""The base class of metrics that compare scores with all thresholds."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gapless.metrics.classification.predictions import PredictionMetric
from gapless.metrics.classification.scores import CumulativeCounts, Problem, Thresholds, make_score_statistic


class ScoreMetric(PredictionMetric, abstract=True):
    """A metric of scores at all thresholds, for any task.

    Args:
        thresholds: the number of evenly spaced thresholds, or the thresholds; None to keep every score.
        capacity: without thresholds, the maximum number of samples, kept in fixed storage.
    """

    needs_scores = True
    more_arguments = ("logits", "capacity")
    average: str | None = None
    scored: Any

    def update(self, preds: Tensor, target: Tensor) -> None:
        self.observe(preds, target)

    def value(self) -> Any:
        return self.score(self.scored.cumulative_counts(self.average == "micro"))

    def score(self, cumulative: CumulativeCounts) -> Any:
        """Return the metric's value from the counts at each threshold."""
        raise NotImplementedError

    def _set_up_scores(
        self,
        classes: int,
        thresholds: Thresholds,
        ignore_index: int | None,
        validate_args: bool,
        options: dict[str, Any],
    ) -> None:
        """Set the options, and set up the statistic of scores for `classes` classes or labels."""
        logits, capacity = options.pop("logits", None), options.pop("capacity", None)
        normalization = options.pop("normalization", "sigmoid")
        self._set_up(ignore_index, validate_args, options, classes)
        problem = Problem(self.task, classes, ignore_index, normalization, logits)
        statistic = make_score_statistic(problem, thresholds, validate_args, capacity)
        self.thresholds = thresholds
        self.use("scored", statistic)

    @property
    def _single(self) -> bool:
        """Whether the metric has a single curve."""
        return self.task == "binary" or self.average == "micro"


class BinaryScoreMetric(ScoreMetric, abstract=True):
    """The binary form of areas and curves."""

    def __init__(
        self,
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        self._set_up_scores(1, thresholds, ignore_index, validate_args, kwargs)

"""Metrics of scores against all thresholds."""

from __future__ import annotations

from typing import Any

from gapless.metrics.classification.predictions import PredictionMetric
from gapless.metrics.classification.scores import Problem, Rising, Thresholds, scored


class ScoreMetric(PredictionMetric, abstract=True):
    """A metric of scores, of whatever task.

    Args:
        thresholds: a number of evenly spaced thresholds, or the thresholds; with None every score is kept.
        capacity: without thresholds, the number of samples there is room for, in fixed storage.
    """

    needs_scores = True
    beyond = "logits capacity"
    average: str | None = None
    scored: Any

    def value(self) -> Any:
        return self.score(self.scored.rising(self.average == "micro"))

    def score(self, rising: Rising) -> Any:
        """The metric's value."""
        raise NotImplementedError

    def _score(
        self,
        classes: int,
        thresholds: Thresholds,
        ignore_index: int | None,
        validate_args: bool,
        options: dict[str, Any],
    ) -> None:
        """Set up the statistic for `classes` classes or labels."""
        logits, capacity = options.pop("logits", None), options.pop("capacity", None)
        normalization = options.pop("normalization", "sigmoid")
        self._begin(ignore_index, validate_args, options, classes)
        problem = Problem(self.task, classes, ignore_index, normalization, logits)
        statistic = scored(problem, thresholds, validate_args, capacity)
        self.thresholds = thresholds
        self.use("scored", statistic)

    @property
    def _single(self) -> bool:
        """Whether there is one curve only."""
        return self.task == "binary" or self.average == "micro"


class BinaryScored(ScoreMetric, abstract=True):
    """The binary form, of areas and curves."""

    def __init__(
        self,
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        self._score(1, thresholds, ignore_index, validate_args, kwargs)

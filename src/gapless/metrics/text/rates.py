"""Error rates of words and characters."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from gapless.metrics.batch import Batch
from gapless.metrics.metric import Metric
from gapless.metrics.statistic import Slot, Statistic
from gapless.metrics.text.strings import TextInput, as_list, edit_distance


def count_edits(batch: Batch, words: bool) -> tuple[int, int, int, int]:
    """Count edits, tokens of targets and of predictions, and tokens of the longer text of each pair."""
    wrong = of_targets = of_preds = of_longer = 0
    for pred, target in zip(*map(as_list, batch.args), strict=False):
        predicted, expected = (pred.split(), target.split()) if words else (pred, target)
        wrong += edit_distance(predicted, expected)
        of_targets += len(expected)
        of_preds += len(predicted)
        of_longer += max(len(predicted), len(expected))
    return wrong, of_targets, of_preds, of_longer


class Edits(Statistic):
    """The number of edits, and of tokens in targets, predictions and longer texts; counted on the host."""

    NAMES = ("wrong", "targets", "preds", "longer")

    def __init__(self, words: bool) -> None:
        self.words = words
        super().__init__((words,), {name: Slot() for name in self.NAMES}, checked=False)

    def count(self, batch: Batch) -> None:
        for name, number in zip(self.NAMES, batch.derive(count_edits, self.words), strict=True):
            self.state[name].add_(number)

    def preserved_share(self) -> Tensor:
        """Return the share of correct tokens in the targets times that in the predictions."""
        state = self.state
        hits = state["longer"] - state["wrong"]
        return hits / state["targets"] * (hits / state["preds"])


class TextMetric(Metric, abstract=True):
    """A metric of texts. Texts stay on the host; counts are on the metric's device."""

    plot_lower_bound = 0.0
    plot_upper_bound: float | None = 1.0
    is_differentiable = False
    higher_is_better = False
    function: ClassVar[str]

    def update(self, preds: TextInput, target: TextInput) -> None:
        """Add predicted texts and their targets: a string each, or sequences of equal length."""
        self.observe(preds, target)


class ErrorRate(TextMetric, abstract=True):
    """A rate of wrong tokens."""

    words: ClassVar[bool] = True
    denominator: ClassVar[str] = "targets"
    """The slot by which the number of edits is divided."""
    edits: Edits

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.use("edits", Edits(self.words))

    def value(self) -> Tensor:
        state = self.edits.state
        return torch.div(state["wrong"], state[self.denominator]).to(self.dtype)


class WordErrorRate(ErrorRate):
    """The words to insert, delete or substitute, divided by the words of the targets."""

    torchmetrics_file = "wer"
    torchmetrics_slots = (("errors", "wrong"), ("total", "targets"))


class CharErrorRate(ErrorRate):
    """The characters to insert, delete or substitute, divided by the characters of the targets."""

    torchmetrics_file = "cer"
    torchmetrics_slots = (("errors", "wrong"), ("total", "targets"))
    words = False


class MatchErrorRate(ErrorRate):
    """The words to insert, delete or substitute, divided by the words of the longer texts."""

    torchmetrics_file = "mer"
    torchmetrics_slots = (("errors", "wrong"), ("total", "longer"))
    denominator = "longer"


class WordInfoPreserved(ErrorRate):
    """The share of correct words in the targets, times that in the predictions."""

    torchmetrics_file = "wip"
    function = "word_information_preserved"

    def value(self) -> Tensor:
        return self.edits.preserved_share().to(self.dtype)


class WordInfoLost(ErrorRate):
    """1 minus the share of correct words in the targets, times that in the predictions."""

    torchmetrics_file = "wil"
    function = "word_information_lost"

    def value(self) -> Tensor:
        return (1 - self.edits.preserved_share()).to(self.dtype)

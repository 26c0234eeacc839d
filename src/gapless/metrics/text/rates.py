"""Shares of words or characters that are wrong."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from gapless.metrics.batch import Batch
from gapless.metrics.metric import Metric
from gapless.metrics.statistic import Slot, Statistic
from gapless.metrics.text.strings import Texts, as_list, edit_distance


def edits(batch: Batch, words: bool) -> tuple[int, int, int, int]:
    """Wrong tokens, tokens of the targets and of the predictions, and of the longer of each pair."""
    wrong = of_targets = of_preds = of_longer = 0
    for pred, target in zip(*map(as_list, batch.args), strict=False):
        said, meant = (pred.split(), target.split()) if words else (pred, target)
        wrong += edit_distance(said, meant)
        of_targets += len(meant)
        of_preds += len(said)
        of_longer += max(len(said), len(meant))
    return wrong, of_targets, of_preds, of_longer


class Edits(Statistic):
    """How many tokens were wrong, and of how many; counted on the host."""

    NAMES = ("wrong", "targets", "preds", "longer")

    def __init__(self, words: bool) -> None:
        self.words = words
        super().__init__((words,), {name: Slot() for name in self.NAMES}, checked=False)

    def count(self, batch: Batch) -> None:
        for name, number in zip(self.NAMES, batch.derive(edits, self.words), strict=True):
            self.state[name].add_(number)

    def hit(self) -> Tensor:
        """The tokens that were right, in shares of those of the targets, times those of the predictions."""
        state = self.state
        hits = state["longer"] - state["wrong"]
        return hits / state["targets"] * (hits / state["preds"])


class TextMetric(Metric, abstract=True):
    """A metric of texts. They stay on the host; what is counted of them is on the metric's device."""

    plot_lower_bound = 0.0
    plot_upper_bound: float | None = 1.0
    is_differentiable = False
    higher_is_better = False
    function: ClassVar[str]

    def update(self, preds: Texts, target: Texts) -> None:
        """Add texts and what they should be: a string each, or as many of both."""
        self.observe(preds, target)


class ErrorRate(TextMetric, abstract=True):
    """A rate of wrong tokens."""

    words: ClassVar[bool] = True
    among: ClassVar[str] = "targets"
    """Of what the wrong ones are a share."""
    edits: Edits

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.use("edits", Edits(self.words))

    def value(self) -> Tensor:
        state = self.edits.state
        return torch.div(state["wrong"], state[self.among]).to(self.dtype)


class WordErrorRate(ErrorRate):
    """How many words must be put in, left out or changed, in shares of the words of the targets."""

    torchmetrics_file = "wer"
    torchmetrics_slots = "errors:f=wrong total:f=targets"


class CharErrorRate(ErrorRate):
    """How many characters must be put in, left out or changed, in shares of the characters of the targets."""

    torchmetrics_file = "cer"
    torchmetrics_slots = "errors:f=wrong total:f=targets"
    words = False


class MatchErrorRate(ErrorRate):
    """How many words must be put in, left out or changed, in shares of the words of the longer texts."""

    torchmetrics_file = "mer"
    torchmetrics_slots = "errors:f=wrong total:f=longer"
    among = "longer"


class WordInfoPreserved(ErrorRate):
    """The share of right words in the targets, times that in the predictions."""

    torchmetrics_file = "wip"
    function = "word_information_preserved"

    def value(self) -> Tensor:
        return self.edits.hit().to(self.dtype)


class WordInfoLost(ErrorRate):
    """What is missing to 1 in the share of right words in the targets, times that in the predictions."""

    torchmetrics_file = "wil"
    function = "word_information_lost"

    def value(self) -> Tensor:
        return (1 - self.edits.hit()).to(self.dtype)

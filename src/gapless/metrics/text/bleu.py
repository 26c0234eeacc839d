"""The BLEU score of translations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from gapless.metrics.batch import Batch
from gapless.metrics.breadth import Breadth
from gapless.metrics.statistic import Slot, Statistic
from gapless.metrics.text.rates import TextMetric
from gapless.metrics.text.strings import TextInput, as_list


def count_n_grams(tokens: Sequence[str], n: int) -> Counter[Hashable]:
    """Count how often each sequence of `n` tokens occurs."""
    return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))


def count_common_n_grams(batch: Batch, max_n: int) -> tuple[list[int], list[int], int, int]:
    """Count the n-grams of predictions, and those in common with a reference, for each n up to `max_n`.

    Returns the common n-grams and all n-grams per n, then the words of the predictions, and of the references
    that are nearest in length.

    Raises:
        ValueError: the numbers of references and predictions differ.
    """
    preds, targets = as_list(batch.args[0]), batch.args[1]
    if len(preds) != len(targets):
        raise ValueError(f"Corpus has different size {len(preds)} != {len(targets)}")
    hits, totals, length, nearest = [0] * max_n, [0] * max_n, 0, 0
    for pred, references in zip(preds, targets, strict=True):
        words, *reference_words = (text.split() if text else [] for text in (pred, *as_list(references)))
        length += len(words)
        nearest += len(min(reference_words, key=lambda reference: abs(len(words) - len(reference))))
        for n in range(1, max_n + 1):
            pred_counts, reference_counts = count_n_grams(words, n), Counter[Hashable]()
            for reference in reference_words:
                reference_counts |= count_n_grams(reference, n)
            hits[n - 1] += (pred_counts & reference_counts).total()
            totals[n - 1] += pred_counts.total()
    return hits, totals, length, nearest


class CommonNGrams(Statistic):
    """The n-grams of predictions, and those in common with references, for each n; counted on the host."""

    def __init__(self, max_n: int) -> None:
        self.max_n = max_n
        self.breadth = Breadth("n-gram size", max_n)
        slots = {"hits": Slot((max_n,)), "seen": Slot((max_n,)), "length": Slot(), "nearest": Slot()}
        super().__init__((max_n,), slots, checked=False)

    def count(self, batch: Batch) -> None:
        hits, totals, length, nearest = batch.derive(count_common_n_grams, self.max_n)
        for name, numbers in (("hits", hits), ("seen", totals)):
            for index, number in enumerate(numbers):
                self.state[name][index].add_(number)
        self.state["length"].add_(length)
        self.state["nearest"].add_(nearest)


class BLEUScore(TextMetric):
    """The geometric mean of n-gram precisions, with a penalty for texts that are too short.

    Args:
        n_gram: the length of the longest n-grams that are counted.
        smooth: whether 1 is added to each number of n-grams of two words or more (Lin and Och, 2004).
        weights: the weight of each n-gram length; None for equal weights.
    """

    torchmetrics_file = "bleu"
    torchmetrics_slots = (
        ("preds_len", "length"),
        ("target_len", "nearest"),
        ("numerator", "hits"),
        ("denominator", "seen"),
    )
    function = "bleu_score"
    higher_is_better = True
    common: CommonNGrams

    def __init__(
        self, n_gram: int = 4, smooth: bool = False, weights: Sequence[float] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        if weights is not None and len(weights) != n_gram:
            raise ValueError(
                f"List of weights has different weights than `n_gram`: {len(weights)} != {n_gram}"
            )
        self.n_gram = n_gram
        self.smooth = smooth
        self.weights = [1.0 / n_gram] * n_gram if weights is None else list(weights)
        self.use("common", CommonNGrams(n_gram))

    def update(self, preds: TextInput, target: Sequence[TextInput]) -> None:
        """Add texts, and one or several references for each."""
        self.observe(preds, target)

    def value(self) -> Tensor:
        state = self.common.state
        hits, totals = state["hits"], state["seen"]
        shares = [hits[0] / totals[0]]
        added = int(self.smooth)
        shares += [(hits[n] + added) / (totals[n] + added) for n in range(1, self.n_gram)]
        mean: Any = 0.0
        for weight, share in zip(self.weights, shares, strict=True):
            mean = mean + weight * share.log()
        brevity_penalty = torch.exp((1 - state["nearest"] / state["length"]).clamp(max=0))
        return (brevity_penalty * torch.exp(mean)).masked_fill(hits.amin() == 0, 0.0).to(self.dtype)

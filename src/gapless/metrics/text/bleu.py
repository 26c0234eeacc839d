"""How many n-grams a translation has in common with its references."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from gapless.metrics.batch import Batch
from gapless.metrics.statistic import Slot, Statistic
from gapless.metrics.text.rates import TextMetric
from gapless.metrics.text.strings import Texts, as_list


def n_grams(tokens: Sequence[str], n: int) -> Counter[Hashable]:
    """How often each row of `n` tokens occurs."""
    return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))


def common_n_grams(batch: Batch, most: int) -> tuple[list[int], list[int], int, int]:
    """For each length up to `most`: n-grams in common with a reference, and of the predictions; then the
    words of the predictions, and of the references that are nearest in length.

    Raises:
        ValueError: there are not as many references as predictions.
    """
    preds, targets = as_list(batch.args[0]), batch.args[1]
    if len(preds) != len(targets):
        raise ValueError(f"Corpus has different size {len(preds)} != {len(targets)}")
    hits, seen, length, nearest = [0] * most, [0] * most, 0, 0
    for pred, several in zip(preds, targets, strict=True):
        said, *meant = (text.split() if text else [] for text in (pred, *as_list(several)))
        length += len(said)
        nearest += len(min(meant, key=lambda one: abs(len(said) - len(one))))
        for n in range(1, most + 1):
            found, known = n_grams(said, n), Counter[Hashable]()
            for one in meant:
                known |= n_grams(one, n)
            hits[n - 1] += (found & known).total()
            seen[n - 1] += found.total()
    return hits, seen, length, nearest


class CommonNGrams(Statistic):
    """How many n-grams were common, for each n; counted on the host."""

    def __init__(self, most: int) -> None:
        self.most = most
        slots = {"hits": Slot((most,)), "seen": Slot((most,)), "length": Slot(), "nearest": Slot()}
        super().__init__((most,), slots, checked=False)

    def count(self, batch: Batch) -> None:
        hits, seen, length, nearest = batch.derive(common_n_grams, self.most)
        for name, numbers in (("hits", hits), ("seen", seen)):
            for place, number in enumerate(numbers):
                self.state[name][place].add_(number)
        self.state["length"].add_(length)
        self.state["nearest"].add_(nearest)


class BLEUScore(TextMetric):
    """The geometric mean of the shares of n-grams that a reference has, less where texts are too short.

    Args:
        n_gram: the longest n-grams that are counted.
        smooth: whether 1 is added to each number of n-grams of two words or more (Lin and Och, 2004).
        weights: what each length of n-grams weighs; None for the same.
    """

    torchmetrics_file = "bleu"
    torchmetrics_slots = "preds_len:f=length target_len:f=nearest numerator:f=hits denominator:f=seen"
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

    def update(self, preds: Texts, target: Sequence[Texts]) -> None:
        """Add texts, and for each a reference or several."""
        self.observe(preds, target)

    def value(self) -> Tensor:
        state = self.common.state
        hits, seen = state["hits"], state["seen"]
        shares = [hits[0] / seen[0]]
        added = int(self.smooth)
        shares += [(hits[n] + added) / (seen[n] + added) for n in range(1, self.n_gram)]
        mean: Any = 0.0
        for weight, one in zip(self.weights, shares, strict=True):
            mean = mean + weight * one.log()
        short = torch.exp((1 - state["nearest"] / state["length"]).clamp(max=0))
        return (short * torch.exp(mean)).masked_fill(hits.amin() == 0, 0.0).to(self.dtype)

"""How much of a summary is in its references."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gapless.metrics.batch import Batch
from gapless.metrics.statistic import Slot, Statistic
from gapless.metrics.text.bleu import n_grams
from gapless.metrics.text.rates import TextMetric
from gapless.metrics.text.strings import Texts, as_list, common_length, common_places

KEYS = {**{f"rouge{n}": n for n in range(1, 10)}, "rougeL": "L", "rougeLsum": "Lsum"}
ALL = ("rouge1", "rouge2", "rougeL", "rougeLsum")
NUMBERS = ("fmeasure", "precision", "recall")
Score = tuple[float, float, float]


class Reader(NamedTuple):
    """How texts become words."""

    stem: Callable[[str], str] | None
    normalizer: Callable[[str], str] | None
    tokenizer: Callable[[str], Sequence[str]] | None

    def words(self, text: str) -> list[str]:
        """The words of a text."""
        plain = self.normalizer(text) if self.normalizer else re.sub(r"[^a-z0-9]+", " ", text.lower())
        found: Sequence[str] = self.tokenizer(plain) if self.tokenizer else plain.split()
        if self.stem is not None:
            found = [self.stem(word) if len(word) > 3 else word for word in found]
        return [word for word in found if isinstance(word, str) and word]


def sentences(text: str) -> Sequence[str]:
    """The sentences of a text, as NLTK tells them apart."""
    found: Sequence[str] = importlib.import_module("nltk").sent_tokenize(text)
    return found


def stemmer() -> Callable[[str], str]:
    """Porter's, of NLTK."""
    stem: Callable[[str], str] = importlib.import_module("nltk.stem.porter").PorterStemmer().stem
    return stem


def score(hits: int, of_pred: int, of_target: int) -> Score:
    """The F-measure, precision and recall."""
    if not hits:
        return 0.0, 0.0, 0.0
    precision, recall = hits / of_pred, hits / of_target
    return 2 * precision * recall / (precision + recall), precision, recall


def by_n_grams(pred: Sequence[str], target: Sequence[str], n: int) -> Score:
    found, known = n_grams(pred, n), n_grams(target, n)
    return score((found & known).total(), found.total(), known.total())


def by_sentences(pred: Sequence[Sequence[str]], target: Sequence[Sequence[str]]) -> Score:
    """By the words of each of the target's sentences that are in order in one of the prediction's."""
    left: Counter[Hashable] = Counter(word for one in pred for word in one)
    right: Counter[Hashable] = Counter(word for one in target for word in one)
    hits, of_pred, of_target = 0, left.total(), right.total()
    for meant in target:
        for place in sorted({at for said in pred for at in common_places(said, meant)}):
            word = meant[place]
            if left[word] > 0 and right[word] > 0:
                hits += 1
                left[word] -= 1
                right[word] -= 1
    return score(hits, of_pred, of_target)


class Overlaps(Statistic):
    """Sums over texts of F-measure, precision and recall for each kind; computed on the host."""

    def __init__(self, keys: tuple[str, ...], reader: Reader, accumulate: str) -> None:
        self.keys = keys
        self.reader = reader
        self.accumulate = accumulate
        slots = {key: Slot((3,), torch.float64) for key in keys}
        super().__init__((keys, reader, accumulate), {**slots, "seen": Slot()}, checked=False)

    def count(self, batch: Batch) -> None:
        preds, targets = paired(*batch.args)
        sums = {key: [0.0, 0.0, 0.0] for key in self.keys}
        for pred, several in zip(preds, targets, strict=False):
            for key, found in self._scores(pred, several).items():
                sums[key] = [total + one for total, one in zip(sums[key], found, strict=True)]
        for key, numbers in sums.items():
            for place, number in enumerate(numbers):
                self.state[key][place].add_(number)
        self.state["seen"].add_(min(len(preds), len(targets)))

    def _scores(self, pred: str, targets: Sequence[str]) -> dict[str, Score]:
        """Of one text: the best, or the mean, over its references."""
        found = {}
        for key in self.keys:
            scores = [self._score(key, pred, target) for target in targets]
            if self.accumulate == "best":
                # In single precision, so that rounding does not choose between references that are as good.
                found[key] = max(scores, key=lambda one: np.float32(one[0]))
            else:
                first, second, third = (sum(one) / len(scores) for one in zip(*scores, strict=True))
                found[key] = (first, second, third)
        return found

    def _score(self, key: str, pred: str, target: str) -> Score:
        kind, words = KEYS[key], self.reader.words
        if kind == "Lsum":
            return by_sentences(*([words(one) for one in sentences(text)] for text in (pred, target)))
        said, meant = words(pred), words(target)
        if isinstance(kind, int):
            return by_n_grams(said, meant, kind)
        return score(common_length(said, meant), len(said), len(meant))


def paired(preds: Any, target: Any) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Texts, and the references of each."""
    if isinstance(target, list) and all(isinstance(one, str) for one in target):
        target = [target] if isinstance(preds, str) else [[one] for one in target]
    return as_list(preds), [[target]] if isinstance(target, str) else target


class ROUGEScore(TextMetric):
    """How many words, rows of words or words in order a summary has in common with its references.

    ``"rougeLsum"`` and `use_stemmer` need NLTK, which tells sentences apart and finds stems.

    Args:
        use_stemmer: whether words are compared by Porter's stems.
        normalizer: makes a text what is cut into words; None for lower-case letters and digits.
        tokenizer: cuts a text into words; None to cut at blanks.
        accumulate: of several references ``"best"`` takes the one with the best F-measure, ``"avg"`` the
            mean.
        rouge_keys: what is counted: ``"rouge1"`` to ``"rouge9"``, ``"rougeL"`` or ``"rougeLsum"``, or some
            of these.

    Raises:
        ModuleNotFoundError: NLTK is needed, and is not there.
    """

    torchmetrics_file = "rouge"
    function = "rouge_score"
    higher_is_better = True
    overlaps: Overlaps

    def __init__(
        self,
        use_stemmer: bool = False,
        normalizer: Callable[[str], str] | None = None,
        tokenizer: Callable[[str], Sequence[str]] | None = None,
        accumulate: str = "best",
        rouge_keys: str | tuple[str, ...] = ALL,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        keys = rouge_keys if isinstance(rouge_keys, tuple) else (rouge_keys,)
        if use_stemmer or "rougeLsum" in keys:
            check_nltk()
        for key in keys:
            if key not in KEYS:
                raise ValueError(f"Got unknown rouge key {key}. Expected to be one of {list(KEYS)}")
        if accumulate not in ("avg", "best"):
            raise ValueError(
                f"Got unknown accumulate value {accumulate}. Expected to be one of ('avg', 'best')"
            )
        self.rouge_keys = keys
        self.accumulate = accumulate
        reader = Reader(stemmer() if use_stemmer else None, normalizer, tokenizer)
        self.use("overlaps", Overlaps(keys, reader, accumulate))

    def update(self, preds: Texts, target: Sequence[Texts]) -> None:
        """Add texts, and for each a reference or several."""
        self.observe(preds, target)

    def value(self) -> dict[str, Tensor]:
        found = {}
        for key in self.rouge_keys:
            means = (self.overlaps.state[key] / self.overlaps.state["seen"]).to(self.dtype)
            found.update({f"{key}_{name}": means[i].clone() for i, name in enumerate(NUMBERS)})
        return found


def check_nltk() -> None:
    """Raises ModuleNotFoundError where NLTK is not there."""
    try:
        importlib.import_module("nltk")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Stemmer and/or `rougeLsum` requires that `nltk` is installed. Use `pip install nltk`."
        ) from error

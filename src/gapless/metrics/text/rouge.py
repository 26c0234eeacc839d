"""The ROUGE scores of summaries."""

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
from gapless.metrics.text.bleu import count_n_grams
from gapless.metrics.text.rates import TextMetric
from gapless.metrics.text.strings import (
    TextInput,
    as_list,
    common_subsequence_length,
    common_subsequence_positions,
)

ROUGE_KINDS = {**{f"rouge{n}": n for n in range(1, 10)}, "rougeL": "L", "rougeLsum": "Lsum"}
"""What each key compares: n-grams of that length, common subsequences of texts, or those of sentences."""
DEFAULT_KEYS = ("rouge1", "rouge2", "rougeL", "rougeLsum")
RESULT_NAMES = ("fmeasure", "precision", "recall")
RougeScore = tuple[float, float, float]
"""F-measure, precision and recall."""


class WordSplitter(NamedTuple):
    """Splits texts into words, with an optional stemmer, normalizer and tokenizer."""

    stem: Callable[[str], str] | None
    normalizer: Callable[[str], str] | None
    tokenizer: Callable[[str], Sequence[str]] | None

    def words(self, text: str) -> list[str]:
        """Return the words of a text."""
        plain = self.normalizer(text) if self.normalizer else re.sub(r"[^a-z0-9]+", " ", text.lower())
        parts: Sequence[str] = self.tokenizer(plain) if self.tokenizer else plain.split()
        if self.stem is not None:
            # Words of up to 3 letters stay, as in rouge-score.
            parts = [self.stem(word) if len(word) > 3 else word for word in parts]
        return [word for word in parts if isinstance(word, str) and word]


def split_sentences(text: str) -> Sequence[str]:
    """Return the sentences of a text, split by NLTK."""
    parts: Sequence[str] = importlib.import_module("nltk").sent_tokenize(text)
    return parts


def load_stemmer() -> Callable[[str], str]:
    """Return the stemming function of NLTK's Porter stemmer."""
    stem: Callable[[str], str] = importlib.import_module("nltk.stem.porter").PorterStemmer().stem
    return stem


def score_hits(hits: int, of_pred: int, of_target: int) -> RougeScore:
    """Return F-measure, precision and recall of `hits` common tokens."""
    if not hits:
        return 0.0, 0.0, 0.0
    precision, recall = hits / of_pred, hits / of_target
    return 2 * precision * recall / (precision + recall), precision, recall


def score_n_grams(pred: Sequence[str], target: Sequence[str], n: int) -> RougeScore:
    """Return the score of `pred` by its n-grams in common with `target`."""
    pred_counts, target_counts = count_n_grams(pred, n), count_n_grams(target, n)
    return score_hits((pred_counts & target_counts).total(), pred_counts.total(), target_counts.total())


def score_sentences(pred: Sequence[Sequence[str]], target: Sequence[Sequence[str]]) -> RougeScore:
    """Return the score by the target words in a common subsequence with any predicted sentence."""
    pred_counts: Counter[Hashable] = Counter(word for sentence in pred for word in sentence)
    target_counts: Counter[Hashable] = Counter(word for sentence in target for word in sentence)
    hits, of_pred, of_target = 0, pred_counts.total(), target_counts.total()
    for target_sentence in target:
        for index in sorted(
            {
                position
                for pred_sentence in pred
                for position in common_subsequence_positions(pred_sentence, target_sentence)
            }
        ):
            word = target_sentence[index]
            if pred_counts[word] > 0 and target_counts[word] > 0:
                hits += 1
                pred_counts[word] -= 1
                target_counts[word] -= 1
    return score_hits(hits, of_pred, of_target)


class RougeSums(Statistic):
    """Sums over texts of F-measure, precision and recall, for each key; computed on the host."""

    def __init__(self, keys: tuple[str, ...], splitter: WordSplitter, accumulate: str) -> None:
        self.keys = keys
        self.splitter = splitter
        self.accumulate = accumulate
        slots = {key: Slot((3,), torch.float64) for key in keys}
        super().__init__((keys, splitter, accumulate), {**slots, "seen": Slot()}, checked=False)

    def count(self, batch: Batch) -> None:
        preds, targets = pair_references(*batch.args)
        sums = {key: [0.0, 0.0, 0.0] for key in self.keys}
        for pred, references in zip(preds, targets, strict=False):
            for key, score in self._scores(pred, references).items():
                sums[key] = [total + value for total, value in zip(sums[key], score, strict=True)]
        for key, numbers in sums.items():
            for index, number in enumerate(numbers):
                self.state[key][index].add_(number)
        self.state["seen"].add_(min(len(preds), len(targets)))

    def _scores(self, pred: str, targets: Sequence[str]) -> dict[str, RougeScore]:
        """Return the scores of one text by key: the best over its references, or their mean."""
        best = {}
        for key in self.keys:
            scores = [self._score(key, pred, target) for target in targets]
            if self.accumulate == "best":
                # In single precision, so that rounding does not decide between equally good references.
                best[key] = max(scores, key=lambda score: np.float32(score[0]))
            else:
                first, second, third = (sum(score) / len(scores) for score in zip(*scores, strict=True))
                best[key] = (first, second, third)
        return best

    def _score(self, key: str, pred: str, target: str) -> RougeScore:
        """Return the score of one text against one reference."""
        kind, words = ROUGE_KINDS[key], self.splitter.words
        if kind == "Lsum":
            return score_sentences(
                *([words(sentence) for sentence in split_sentences(text)] for text in (pred, target))
            )
        pred_words, target_words = words(pred), words(target)
        if isinstance(kind, int):
            return score_n_grams(pred_words, target_words, kind)
        return score_hits(
            common_subsequence_length(pred_words, target_words), len(pred_words), len(target_words)
        )


def pair_references(preds: Any, target: Any) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Return the texts as a list, and a list of references for each."""
    if isinstance(target, list) and all(isinstance(reference, str) for reference in target):
        target = [target] if isinstance(preds, str) else [[reference] for reference in target]
    return as_list(preds), [[target]] if isinstance(target, str) else target


class ROUGEScore(TextMetric):
    """How many words, n-grams or word subsequences a summary has in common with its references.

    ``"rougeLsum"`` and `use_stemmer` need NLTK, which splits sentences and finds stems.

    Args:
        use_stemmer: whether words are compared by their Porter stems.
        normalizer: prepares a text before it is split; None to keep lower-case letters and digits only.
        tokenizer: splits a text into words; None to split at whitespace.
        accumulate: with several references, ``"best"`` takes the one with the best F-measure, ``"avg"`` the
            mean.
        rouge_keys: the scores to compute: ``"rouge1"`` to ``"rouge9"``, ``"rougeL"`` or ``"rougeLsum"``, or
            a tuple of these.

    Raises:
        ModuleNotFoundError: NLTK is needed but not installed.
    """

    torchmetrics_file = "rouge"
    function = "rouge_score"
    higher_is_better = True
    overlaps: RougeSums

    def __init__(
        self,
        use_stemmer: bool = False,
        normalizer: Callable[[str], str] | None = None,
        tokenizer: Callable[[str], Sequence[str]] | None = None,
        accumulate: str = "best",
        rouge_keys: str | tuple[str, ...] = DEFAULT_KEYS,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        keys = rouge_keys if isinstance(rouge_keys, tuple) else (rouge_keys,)
        if use_stemmer or "rougeLsum" in keys:
            check_nltk()
        for key in keys:
            if key not in ROUGE_KINDS:
                raise ValueError(f"Got unknown rouge key {key}. Expected to be one of {list(ROUGE_KINDS)}")
        if accumulate not in ("avg", "best"):
            raise ValueError(
                f"Got unknown accumulate value {accumulate}. Expected to be one of ('avg', 'best')"
            )
        self.rouge_keys = keys
        self.accumulate = accumulate
        splitter = WordSplitter(load_stemmer() if use_stemmer else None, normalizer, tokenizer)
        self.use("overlaps", RougeSums(keys, splitter, accumulate))

    def update(self, preds: TextInput, target: Sequence[TextInput]) -> None:
        """Add texts, and one or several references for each."""
        self.observe(preds, target)

    def value(self) -> dict[str, Tensor]:
        result = {}
        for key in self.rouge_keys:
            means = (self.overlaps.state[key] / self.overlaps.state["seen"]).to(self.dtype)
            result.update({f"{key}_{name}": means[i].clone() for i, name in enumerate(RESULT_NAMES)})
        return result


def check_nltk() -> None:
    """Raise ModuleNotFoundError unless NLTK is installed."""
    try:
        importlib.import_module("nltk")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Stemmer and/or `rougeLsum` requires that `nltk` is installed. Use `pip install nltk`."
        ) from error

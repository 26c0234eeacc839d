"""Text metrics: distances against a full table, and messages."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from torchmetrics.functional.text import rouge as theirs
from torchmetrics.functional.text.helper import _edit_distance

import gapless
import gapless.metrics as metrics
from gapless.metrics import functional
from gapless.metrics.text import rates, rouge, strings

WORDS = st.lists(st.sampled_from("abcd"), max_size=80)


@given(first=WORDS, second=WORDS)
def test_distances_are_those_of_the_table(first: list[str], second: list[str]):
    assert strings.edit_distance(first, second) == _edit_distance(first, second)
    assert strings.common_subsequence_length(first, second) == theirs._lcs(first, second)
    table = theirs._lcs(first, second, return_full_table=True)
    assert strings.common_subsequence_positions(first, second) == theirs._backtracked_lcs(
        table, first, second
    )


SENTENCE = st.lists(st.sampled_from(["the", "cat", "sat", "Mat", "on", "7"]), max_size=6).map(" ".join)
TEXT = st.lists(SENTENCE, min_size=1, max_size=3).map("\n".join)


@example(pred="cat the the the the", several=["the the the the the the", "the the the"], how="best")
@given(pred=TEXT, several=st.lists(TEXT, min_size=1, max_size=3), how=st.sampled_from(["avg", "best"]))
def test_sentences_as_torchmetrics(pred: str, several: list[str], how: Any):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rouge, "check_nltk", lambda: None)
        patch.setattr(rouge, "split_sentences", str.splitlines)
        patch.setattr(theirs, "_split_sentence", str.splitlines)
        expected = theirs.rouge_score([pred], [several], accumulate=how)
        actual = functional.rouge_score([pred], [several], accumulate=how)
    assert {name: value.item() for name, value in actual.items()} == pytest.approx(
        {name: value.item() for name, value in expected.items()}
    )


def test_what_needs_nltk_says_so():
    try:
        importlib.import_module("nltk")
    except ModuleNotFoundError:
        for options in ({}, {"use_stemmer": True, "rouge_keys": "rouge1"}):
            with pytest.raises(ModuleNotFoundError, match="`nltk` is installed"):
                metrics.ROUGEScore(**options)


def test_rates_of_one_collection_compare_texts_once(monkeypatch):
    calls = []
    monkeypatch.setattr(rates, "edit_distance", lambda *texts: calls.append(texts) or 1)
    with gapless.emulate() as emulator:
        several = [metrics.WordErrorRate(), metrics.MatchErrorRate(), metrics.WordInfoLost()]
        collection = metrics.MetricCollection(several).to("cuda")
        collection.update(["a b", "c"], ["a d", "c"])
        values = collection.compute()
        assert (len(calls), emulator.waits) == (2, 0)
        assert values["WordErrorRate"].is_cuda
        assert values["WordErrorRate"].item() == pytest.approx(2 / 3)


@pytest.mark.parametrize("texts", [[[]], [""], ["", "a"]])
def test_empty_texts_have_no_n_grams(texts):
    bleu = metrics.BLEUScore()
    assert bleu(texts, [[text] for text in texts]) == 0.0
    assert bleu.common.state["length"] == sum(map(len, texts))


def test_texts_and_references_in_different_numbers_are_refused():
    with pytest.raises(ValueError, match="different size 2 != 1"):
        metrics.BLEUScore().update(["a", "b"], [["a"]])
    with pytest.raises(ValueError, match="different weights than `n_gram`: 1 != 4"):
        metrics.BLEUScore(weights=[1.0])
    with pytest.raises(ValueError, match="unknown rouge key rouge0"):
        metrics.ROUGEScore(rouge_keys="rouge0")
    with pytest.raises(ValueError, match="unknown accumulate value worst"):
        metrics.ROUGEScore(rouge_keys="rouge1", accumulate="worst")

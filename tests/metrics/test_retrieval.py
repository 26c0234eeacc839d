"""Retrieval metrics: ties, empty queries, bad targets."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchmetrics.retrieval as theirs
from hypothesis import given
from hypothesis import strategies as st

import gapless
import gapless.metrics as metrics

DOCUMENT = st.tuples(st.integers(-2, 3), st.integers(0, 3), st.integers(-5, 5))
NAMES = sorted(metrics.retrieval.__all__)


@given(documents=st.lists(DOCUMENT, min_size=1, max_size=30), top=st.sampled_from([None, 1, 3]))
def test_degrees_and_equal_scores_as_torchmetrics(documents: list[Any], top: int | None):
    score, degree, query = (torch.tensor(column) for column in zip(*documents, strict=True))
    ours, other = metrics.RetrievalNormalizedDCG(top_k=top), theirs.RetrievalNormalizedDCG(top_k=top)
    for metric in (ours, other):
        metric.update(score / 2, degree, query)
    torch.testing.assert_close(ours.compute(), other.compute())


@pytest.mark.parametrize("name", NAMES)
@given(
    rows=st.lists(st.tuples(st.booleans(), st.integers(0, 4)), min_size=1, max_size=25),
    action=st.sampled_from(["skip", "neg", "pos"]),
    seed=st.integers(0, 99),
)
def test_queries_of_any_number_as_torchmetrics(name: str, rows: list[Any], action: str, seed: int):
    relevant, query = (torch.tensor(column) for column in zip(*rows, strict=True))
    score = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)) - 4.5
    results = []
    for home in (metrics, theirs):
        metric = getattr(home, name)(empty_target_action=action)
        metric.update(score, relevant.long(), query)
        results.append(metric.compute())
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_query_may_be_an_error(name: str):
    metric = getattr(metrics, name)(empty_target_action="error")
    metric.update(torch.rand(2), torch.full((2,), int(name == "RetrievalFallOut")), torch.zeros(2).long())
    lacking = "negative" if name == "RetrievalFallOut" else "positive"
    with pytest.raises(ValueError, match=f"a query with no {lacking} target"):
        metric.compute()


def test_a_function_of_the_scores_waits_once():
    with gapless.emulate() as emulator:
        metric = metrics.RetrievalMRR(aggregation=lambda scores, dim: scores.sum()).to("cuda")
        target = torch.ones(4, dtype=torch.int64, device="cuda")
        metric.update(torch.rand(4, device="cuda"), target, torch.arange(4, device="cuda"))
        before = emulator.waits
        result = metric.compute()
        assert emulator.waits - before == 1
    assert result.item() == 4


def test_invalid_targets_are_ignored_and_reported():
    metric = metrics.RetrievalMAP(ignore_index=-1)
    with pytest.raises(RuntimeError, match="Detected 2 values in `target` outside 0 to 1"):
        metric.update(torch.rand(4), torch.tensor([1, -1, 2, -3]), torch.zeros(4).long())
    assert metric.compute().item() == 1
    full = metrics.RetrievalNormalizedDCG(capacity=2)
    with pytest.raises(RuntimeError, match="Dropped 1 row beyond the capacity of 2"):
        full.update(torch.rand(3), torch.ones(3), torch.zeros(3).long())


WRONG = [
    ((torch.rand(3), torch.ones(2), torch.zeros(3).long()), "same shape"),
    ((torch.rand(3), torch.ones(3), torch.zeros(3)), "`indexes` must be a tensor of long integers"),
    ((torch.ones(3).long(), torch.ones(3), torch.zeros(3).long()), "`preds` must be a tensor of floats"),
    ((torch.rand(0), torch.ones(0), torch.zeros(0).long()), "non-empty"),
]


@pytest.mark.parametrize(("arguments", "words"), WRONG)
def test_malformed_documents_are_refused(arguments: Any, words: str):
    with pytest.raises(ValueError, match=words):
        metrics.RetrievalRecall().update(*arguments)


OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"empty_target_action": "maybe"}, "received a wrong value `maybe`"),
    ({"ignore_index": 0.5}, "`ignore_index` must be an integer or None"),
    ({"aggregation": "sum"}, "`aggregation` must be one of"),
    ({"top_k": 0}, "`top_k` has to be a positive integer or None"),
    ({"adaptive_k": 1}, "`adaptive_k` has to be a boolean"),
]


@pytest.mark.parametrize(("options", "words"), OPTIONS)
def test_constructors_refuse(options: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=words):
        metrics.RetrievalPrecision(**options)

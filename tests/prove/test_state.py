"""Planted differences in what calls keep, change and draw."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from prove.planting import failures, labelled, masked, masked_mean, plain, proof
from torch import Tensor, nn

from gapless.prove.proving import BAD_NAME, PLAIN_NAME

pytestmark = pytest.mark.usefixtures("nothing_counted")


class TestState:
    def test_a_change_of_the_input(self):
        def fixed(x, mask):
            mask &= x.detach() > 0
            return torch.where(mask, x, 0.0).sum()

        result = proof(lambda x, mask: x[mask & (x > 0)].sum(), fixed, masked)
        assert failures(result)["as given"] == ["input mask after the call"]

    def test_a_change_made_only_by_the_original_is_reported(self):
        def original(x, labels):
            labels[labels < 0] = 0
            return x.sum() * labels.sum()

        result = proof(original, lambda x, labels: x.sum() * labels.clamp(min=0).sum(), labelled)
        assert result.same, failures(result)
        assert "only the first modifies its input labels in place" in result.notes

    def test_a_change_that_is_the_result(self):
        def original(x):
            x.zero_()

        result = proof(original, lambda x: None, lambda: torch.randn(3))
        assert failures(result)["as given"] == ["input x after the call"]

    def test_state_of_an_object(self):
        class Mean:
            def __init__(self, decay):
                self.total, self.decay = torch.zeros(()), decay

            def __call__(self, x):
                self.total = self.decay * self.total + x.detach().sum()
                return self.total

        mean = Mean(0.9)
        assert proof(mean, Mean(0.9), plain).same
        assert proof(mean.__call__, Mean(0.9).__call__, plain).same
        result = proof(mean, Mean(0.5), plain)
        assert set(failures(result)) == {PLAIN_NAME, BAD_NAME}
        assert result.failed[0].differences[0].call == 2
        assert mean.total == 0

    def test_what_is_kept_from_the_first_call(self):
        def kept():
            cache = {}

            def call(x, mask):
                results = cache.setdefault("mask", mask)
                return torch.where(results, x, 0.0).sum()

            return call

        result = proof(lambda x, mask: torch.where(mask, x, 0.0).sum(), kept(), masked)
        assert set(failures(result)) == {PLAIN_NAME, BAD_NAME}

    def test_counters_in_closures(self):
        def counting():
            calls = 0

            def call(x):
                nonlocal calls
                calls += 1
                return x.sum() * calls

            return call

        first = counting()
        assert proof(first, counting(), plain).same
        assert first(torch.ones(1)) == 1

    def test_globals_are_copied_and_restored(self):
        COUNTED.clear()
        result = proof(counts_globally, counts_globally, plain)
        assert result.same, failures(result)
        assert COUNTED == []

    def test_buffers_after_the_call(self):
        norm, frozen = nn.BatchNorm1d(6), nn.BatchNorm1d(6, momentum=0.0)
        assert proof(norm, nn.BatchNorm1d(6), plain).same
        result = proof(norm, frozen, plain)
        assert set(failures(result)["as given"]) == {
            "running_mean after the call",
            "running_var after the call",
        }
        assert norm.num_batches_tracked == 0


COUNTED: list[int] = []


def counts_globally(x: Tensor) -> Tensor:
    COUNTED.append(len(COUNTED))
    return x.sum() * len(COUNTED)


class TestRandomness:
    def test_both_draw_the_same(self):
        def own(x):
            keep = torch.empty_like(x).bernoulli_(0.75)
            return x * keep / 0.75

        assert proof(lambda x: F.dropout(x, 0.25), lambda x: F.dropout(x, 0.25), plain).same
        assert proof(own, own, plain).same
        assert not proof(lambda x: F.dropout(x, 0.25), lambda x: F.dropout(x, 0.5), plain)

    def test_python_and_numpy_draw_the_same(self):
        import numpy as np

        def draws(x):
            return x * random.random() + np.random.rand()

        assert proof(draws, draws, plain).same

    def test_generators_are_left_alone(self):
        torch.manual_seed(3)
        random.seed(3)
        before = torch.get_rng_state(), random.getstate()
        proof(lambda x: F.dropout(x), lambda x: F.dropout(x), plain)
        assert torch.equal(before[0], torch.get_rng_state())
        assert random.getstate() == before[1]

    def test_every_run_says_the_same(self):
        result = [proof(masked_mean, lambda x, m: (x * m).sum() / m.sum(), masked).cases for _ in range(2)]
        assert result[0] == result[1]
        other = proof(masked_mean, lambda x, m: (x * m).sum() / m.sum(), masked, seed=1)
        assert [case.name for case in other.cases] == [case.name for case in result[0]]

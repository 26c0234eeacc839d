"""Buckets: every item once, alike on every rank, within their bounds; padding that loses nothing."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
from collections import Counter, namedtuple
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from gapless.errors import UsageError
from gapless.loading import BucketBatchSampler, Padded, pad_collate, pad_to_multiple, pad_to_power_of_two

lengths_of = st.lists(st.integers(1, 60), max_size=60)
ranks_of = st.integers(1, 4)
bounds = st.sampled_from(
    [
        {"batch_size": 4},
        {"max_tokens": 128},
        {"batch_size": 6, "max_tokens": 128, "pad_to": 8},
        {"batch_size": 3, "pool": 2},
        {"max_tokens": 200, "pool": None, "largest_first": True},
        {"batch_size": 5, "shuffle": False},
    ]
)


def all_ranks(lengths: list[int], ranks: int, epoch: int = 0, **settings: Any) -> list[list[list[int]]]:
    samplers = [BucketBatchSampler(lengths, rank=rank, ranks=ranks, **settings) for rank in range(ranks)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    by_rank = [list(sampler) for sampler in samplers]
    assert [len(sampler) for sampler in samplers] == [len(batches) for batches in by_rank]
    return by_rank


def items(ranks: list[list[list[int]]]) -> list[int]:
    return [item for batches in ranks for batch in batches for item in batch]


@given(lengths=lengths_of, ranks=ranks_of, settings=bounds, seed=st.integers(0, 3))
def test_every_item_comes_once_and_every_rank_gets_as_many_batches(
    lengths: list[int], ranks: int, settings: dict[str, Any], seed: int
) -> None:
    batches_of_ranks = all_ranks(lengths, ranks, seed=seed, **settings)
    assert len({len(batches) for batches in batches_of_ranks}) == 1
    if len(lengths) >= ranks or not lengths:
        assert sorted(items(batches_of_ranks)) == list(range(len(lengths)))
    else:  # fewer items than ranks
        assert set(items(batches_of_ranks)) == set(range(len(lengths)))


@given(lengths=lengths_of, ranks=ranks_of, settings=bounds)
def test_no_batch_is_empty_or_above_its_bounds(
    lengths: list[int], ranks: int, settings: dict[str, Any]
) -> None:
    sampler = BucketBatchSampler(lengths, rank=0, ranks=1, **settings)
    for batch in itertools.chain.from_iterable(all_ranks(lengths, ranks, **settings)):
        assert 0 < len(batch) <= settings.get("batch_size", len(batch))
        assert sampler.tokens(batch) <= settings.get("max_tokens", sampler.tokens(batch))


@given(lengths=lengths_of, ranks=ranks_of, settings=bounds)
def test_repeating_loses_nothing_and_dropping_gives_nothing_twice(
    lengths: list[int], ranks: int, settings: dict[str, Any]
) -> None:
    repeated = all_ranks(lengths, ranks, even="repeat", **settings)
    assert set(items(repeated)) == set(range(len(lengths)))
    dropped = all_ranks(lengths, ranks, even="drop", **settings)
    assert max(Counter(items(dropped)).values(), default=1) == 1
    for by_rank in (repeated, dropped):
        assert len({len(batches) for batches in by_rank}) == 1


@given(lengths=lengths_of, epoch=st.integers(0, 5), at=st.integers(0, 20))
def test_resuming_anywhere_goes_on_as_if_nothing_had_been(lengths: list[int], epoch: int, at: int) -> None:
    sampler = BucketBatchSampler(lengths, 3, seed=1)
    sampler.set_epoch(epoch)
    whole = list(sampler)
    begun = list(itertools.islice(sampler, min(at, len(whole))))
    state = sampler.state_dict()
    resumed = BucketBatchSampler(lengths, 3, seed=1)
    resumed.load_state_dict(state)
    resumed.set_epoch(epoch)  # as a loop does at the beginning of an epoch
    assert begun + list(resumed) == whole
    assert list(resumed) == whole
    assert sampler.state_after(len(begun)) == state


def test_seed_and_epoch_decide_the_order() -> None:
    lengths = [1 + at % 13 for at in range(200)]

    def order(seed: int, epoch: int) -> list[list[int]]:
        return all_ranks(lengths, 1, epoch, batch_size=4, seed=seed, pool=4)[0]

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)


def test_batches_are_of_like_length_and_so_are_those_of_one_step() -> None:
    lengths = numpy.random.default_rng(0).integers(1, 500, 4000)
    sampler = BucketBatchSampler(lengths, 8, rank=0, ranks=1)
    padded = sum(sampler.tokens(batch) for batch in sampler)
    assert padded < 1.05 * lengths.sum()
    mixed = sum(sampler.tokens(list(range(at, at + 8))) for at in range(0, 4000, 8))
    assert mixed > 1.5 * lengths.sum()
    for step in zip(*all_ranks(lengths, 4, batch_size=8), strict=True):
        longest = [int(lengths[batch].max()) for batch in step]
        assert max(longest) - min(longest) < 60


def test_the_largest_batch_comes_first() -> None:
    lengths = numpy.random.default_rng(1).integers(1, 90, 300)
    for epoch in range(3):
        sampler = BucketBatchSampler(lengths, 7, largest_first=True)
        sampler.set_epoch(epoch)
        sizes = [sampler.tokens(batch) for batch in sampler]
        assert sizes[0] == max(sizes)


def test_the_last_batch_can_be_dropped() -> None:
    assert {len(batch) for batch in BucketBatchSampler([3] * 30, 8)} == {8, 6}
    assert {len(batch) for batch in BucketBatchSampler([3] * 30, 8, drop_last=True)} == {8}


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="needs batch_size=, max_tokens= or both"):
        BucketBatchSampler([1])
    with pytest.raises(UsageError, match=r"item 1 takes 56 tokens with padding, but max_tokens=50"):
        BucketBatchSampler([3, 51, 9], max_tokens=50, pad_to=8)
    with pytest.raises(UsageError, match="pool=0 is not positive"):
        BucketBatchSampler([1], 2, pool=0)
    with pytest.raises(UsageError, match="must be 'split'"):
        BucketBatchSampler([1], 2, even="always")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="drop_last=True needs batches of equal size"):
        BucketBatchSampler([1], max_tokens=9, drop_last=True)
    with pytest.raises(UsageError, match="the state was saved with seed=1, but here seed=0"):
        BucketBatchSampler([1], 2).load_state_dict(BucketBatchSampler([1], 2, seed=1).state_dict())


def test_in_a_loader_with_padding() -> None:
    words = [torch.arange(1, 2 + at % 5) for at in range(20)]
    sampler = BucketBatchSampler([len(word) for word in words], 4)
    loader = DataLoader(words, batch_sampler=sampler, collate_fn=pad_collate(4))
    batches = [
        row[mask].tolist() for batch in loader for row, mask in zip(batch.values, batch.mask, strict=True)
    ]
    assert sorted(batches) == sorted(word.tolist() for word in words)


sequences = st.lists(st.lists(st.integers(-9, 9), max_size=20), min_size=1, max_size=6)


@given(sequences, st.integers(1, 16), st.integers(0, 24))
def test_padding_loses_nothing(values: list[list[int]], multiple: int, least: int) -> None:
    tensors = [torch.tensor(value, dtype=torch.int64) for value in values]
    for padded in (
        pad_to_multiple(tensors, multiple, value=-100, least=least),
        pad_to_power_of_two(tensors, value=-100, least=least),
    ):
        assert padded.lengths.tolist() == [len(value) for value in values]
        assert torch.equal(padded.mask.sum(1), padded.lengths)
        assert padded.values.shape == padded.mask.shape
        assert padded.values.dtype == torch.int64
        rows = zip(padded.values, padded.mask, strict=True)
        assert [row[mask].tolist() for row, mask in rows] == values
        assert (padded.values[~padded.mask] == -100).all()


@given(st.integers(0, 70), st.integers(1, 16))
def test_the_padded_size(longest: int, multiple: int) -> None:
    sequences = [torch.zeros(longest), torch.zeros(longest // 2)]
    size = pad_to_multiple(sequences, multiple).values.shape[1]
    assert size % multiple == 0
    assert longest <= size < longest + multiple
    power = pad_to_power_of_two(sequences).values.shape[1]
    assert power & (power - 1) == 0
    assert longest <= power <= max(1, 2 * longest - 1)


def test_padding_has_a_limit_and_keeps_further_dimensions() -> None:
    padded = pad_to_multiple([torch.ones(5, 3), torch.ones(2, 3)], 8, most=6)
    assert padded.values.shape == (2, 6, 3)
    assert padded.values.sum() == 21
    with pytest.raises(UsageError, match="sequence 1 has 7 values, but the limit is 6"):
        pad_to_multiple([[1], [1] * 7], 8, most=6)
    with pytest.raises(UsageError, match="no sequence"):
        pad_to_multiple([])
    with pytest.raises(UsageError, match="no length"):
        pad_to_multiple([torch.tensor(1)])


Pair = namedtuple("Pair", ["text", "label"])


def test_collating_pads_what_has_a_length() -> None:
    collate = pickle.loads(pickle.dumps(pad_collate(4, value={"text": -1})))
    batch = collate([{"text": [1, 2], "label": 3}, {"text": [1], "label": 4}])
    assert isinstance(batch["text"], Padded)
    assert batch["text"].values.tolist() == [[1, 2, -1, -1], [1, -1, -1, -1]]
    assert batch["label"].tolist() == [3, 4]
    pair = pad_collate(2)([Pair(numpy.ones(3), "a"), Pair(numpy.ones(1), "b")])
    assert isinstance(pair, Pair)
    assert pair.text.lengths.tolist() == [3, 1]
    assert pair.label == ["a", "b"]
    images = pad_collate(4)([(torch.ones(3, 2), 0), (torch.ones(3, 2), 1)])
    assert images[0].shape == (2, 3, 2)
    chosen = pad_collate(4, fields=[0])([(torch.ones(3, 2), 0), (torch.ones(1, 2), 1)])
    assert chosen[0].values.shape == (2, 4, 2)
    power = pad_collate("power-of-two")([torch.ones(3), torch.ones(5)])
    assert power.values.shape == (2, 8)
    assert dataclasses.is_dataclass(power) is False
    with pytest.raises(UsageError, match="to=0 must be"):
        pad_collate(0)

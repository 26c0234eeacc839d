"""`shard`: every item once, over ranks and workers; the same count for each rank; resumed anywhere."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loading import datasets as d
from torch.utils.data import DataLoader, IterableDataset

from gapless.errors import UsageError
from gapless.loading import shard
from gapless.loading.sharding import Shard

counts = st.integers(0, 40)
ranks_of = st.integers(1, 5)
workers_of = st.integers(1, 4)


class Source(IterableDataset):
    """Not a sequence: it can only be gone through."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        yield from range(self.count)


def sources(count: int) -> list[Any]:
    def function() -> Iterator[int]:
        yield from range(count)

    return [range(count), Source(count), function]


def part(dataset: Shard, worker: int, workers: int) -> list[int]:
    """What a worker yields."""
    with mock.patch("gapless.loading.sharding.current_worker", return_value=(worker, workers)):
        return list(dataset)


def joined(parts: Iterable[list[int]]) -> list[int]:
    return [item for part in parts for item in part]


def of_rank(dataset: Shard, workers: int) -> list[int]:
    return joined(part(dataset, worker, workers) for worker in range(workers))


@given(count=counts, ranks=ranks_of, workers=workers_of)
def test_without_evening_out_every_item_comes_exactly_once(count: int, ranks: int, workers: int) -> None:
    for source in sources(count):
        parts = [of_rank(shard(source, even="none", rank=r, ranks=ranks), workers) for r in range(ranks)]
        assert sorted(joined(parts)) == list(range(count))
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1


@given(count=counts, ranks=ranks_of, workers=workers_of)
def test_repeating_gives_all_ranks_the_same_number_and_loses_nothing(
    count: int, ranks: int, workers: int
) -> None:
    for source in sources(count):
        parts = [of_rank(shard(source, rank=r, ranks=ranks), workers) for r in range(ranks)]
        assert {len(part) for part in parts} == {-(-count // ranks)}
        counter = Counter(joined(parts))
        assert set(counter) == set(range(count))
        assert sum(counter.values()) - count < ranks


@given(count=counts, ranks=ranks_of, workers=workers_of)
def test_dropping_gives_all_ranks_the_same_number_and_nothing_twice(
    count: int, ranks: int, workers: int
) -> None:
    for source in sources(count):
        parts = [of_rank(shard(source, even="drop", rank=r, ranks=ranks), workers) for r in range(ranks)]
        assert {len(part) for part in parts} == {count // ranks}
        assert sorted(joined(parts)) == list(range(count - count % ranks))


@given(count=counts, ranks=ranks_of, workers=workers_of, even=st.sampled_from(["repeat", "drop", "none"]))
def test_all_kinds_of_sources_are_divided_alike(count: int, ranks: int, workers: int, even: Any) -> None:
    for rank, worker in itertools.product(range(ranks), range(workers)):
        items_found = [
            part(shard(source, even=even, rank=rank, ranks=ranks), worker, workers)
            for source in sources(count)
        ]
        assert items_found[0] == items_found[1] == items_found[2]
        assert items_found[0] == sorted(items_found[0]) or even == "repeat"


@given(count=counts, ranks=ranks_of, even=st.sampled_from(["repeat", "drop", "none"]))
def test_a_ranks_items_and_its_length_do_not_depend_on_workers(count: int, ranks: int, even: Any) -> None:
    for rank in range(ranks):
        shard_dataset = shard(range(count), even=even, rank=rank, ranks=ranks)
        expected = sorted(of_rank(shard_dataset, 1))
        assert len(shard_dataset) == len(expected)
        assert all(sorted(of_rank(shard_dataset, workers)) == expected for workers in (2, 3))


@given(count=counts, ranks=st.integers(1, 3), at=st.integers(0, 40))
def test_resuming_anywhere_goes_on_as_if_nothing_had_been(count: int, ranks: int, at: int) -> None:
    for source in sources(count):
        shard_dataset = shard(source, rank=0, ranks=ranks)
        whole = list(shard_dataset)
        given_out = list(itertools.islice(shard_dataset, min(at, len(whole))))
        state = shard_dataset.state_dict()
        resumed = shard(source, rank=0, ranks=ranks)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert given_out + list(resumed) == whole
        assert list(resumed) == whole  # the next epoch begins at the beginning


@pytest.mark.parametrize("batches", [0, 1, 3, 4])
def test_resuming_a_loader_with_workers(batches: int) -> None:
    def loader(dataset: Shard) -> DataLoader:
        return DataLoader(dataset, batch_size=3, num_workers=2)

    whole = [batch.tolist() for batch in loader(shard(range(31)))]
    shard_dataset = shard(range(31))
    shard_dataset.load_state_dict(shard_dataset.state_after(batches, batch_size=3, num_workers=2))
    items_found = [batch.tolist() for batch in loader(shard_dataset)]
    # The loader begins with worker 0 again, so that the order of batches differs by one place at most.
    assert sorted(items_found) == sorted(whole[batches:])
    assert batches % 2 or items_found == whole[batches:]
    assert [batch.tolist() for batch in loader(shard_dataset)] == whole


def test_workers_that_are_spawned_get_their_parts() -> None:
    shard_dataset = shard(d.Numbers(11), rank=1, ranks=2)
    loader = DataLoader(shard_dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    assert [int(item) for item in loader] == [1, 3, 5, 7, 9, 0]


def test_endless_sources() -> None:
    shards = [shard(itertools.count, rank=rank, ranks=2) for rank in range(2)]
    assert list(itertools.islice(shards[0], 4)) == [0, 2, 4, 6]
    assert list(itertools.islice(shards[1], 4)) == [1, 3, 5, 7]
    with pytest.raises(TypeError, match="no length"):
        len(shards[0])


def test_of_what_has_positions_only_the_own_items_are_asked_for() -> None:
    class Table(torch.utils.data.Dataset):
        requests: list[int] = []  # noqa: RUF012

        def __len__(self) -> int:
            return 7

        def __getitem__(self, at: int) -> int:
            self.requests.append(at)
            return at

    assert list(shard(Table(), rank=1, ranks=3)) == [1, 4, 0]
    assert Table.requests == [1, 4, 0]


def test_ranks_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    shard_dataset = shard(range(6))
    assert list(shard_dataset) == list(range(6))
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "2")
    assert list(shard_dataset) == [2, 5]
    monkeypatch.delenv("RANK")
    with pytest.raises(UsageError, match="this one's number is unknown"):
        list(shard_dataset)


def test_what_cannot_be_divided_is_refused() -> None:
    with pytest.raises(UsageError, match="only once: pass the function"):
        shard(iter([1]))
    with pytest.raises(UsageError, match="not a int"):
        shard(3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="rank 2 is not one of 2"):
        shard([1], rank=2, ranks=2)
    with pytest.raises(UsageError, match="must be 'repeat'"):
        shard([1], even="always")  # type: ignore[arg-type]


def test_a_state_of_others_is_refused() -> None:
    shard_dataset = shard(range(9), rank=0, ranks=3)
    with pytest.raises(UsageError, match="the state is of rank 0 of 3, but this is rank 1 of 3"):
        shard(range(9), rank=1, ranks=3).load_state_dict(shard_dataset.state_dict())
    shard_dataset.load_state_dict(shard_dataset.state_after(2, batch_size=1, num_workers=2))
    with pytest.raises(UsageError, match="of 2 workers, but there are now 1"):
        list(shard_dataset)

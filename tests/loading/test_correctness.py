"""`verify` and `watch`: each mistake is found with its numbers, and what is right is left alone."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import fork_server
import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loading import datasets as d
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)  # fmt: skip
from torch.utils.data.distributed import DistributedSampler

from gapless import loading
from gapless.errors import UsageError
from gapless.loading.checks_common import RanksSeen
from gapless.loading.correctness import find_mistakes
from gapless.loading.forked import LoaderError
from gapless.loading.rank_items import Epoch, RankItems
from gapless.model.loading_mistakes import Mistake
from gapless.rules import rule

HERE = Path(__file__).parent


def stream(dataset: Any, workers: int = 2, **settings: Any) -> DataLoader:
    return DataLoader(dataset, batch_size=8, num_workers=workers, **settings)


def table(dataset: Any, **settings: Any) -> DataLoader:
    return DataLoader(dataset, **{"batch_size": 8, **settings})


def distributed() -> DataLoader:
    data = d.Table(41)
    return table(data, sampler=DistributedSampler(data))


MISTAKES = {
    "every worker yields everything": (
        lambda: stream(d.Numbers()), {}, "GAP311",
        "each of 2 workers yields all 40 items, so an epoch has 80",
    ),
    "every worker yields as many": (
        lambda: stream(d.NoiseForAll()), {}, "GAP311",
        "each of 2 workers yields all 40 items, so an epoch has 80",
    ),
    "endless": (
        lambda: stream(d.Endless()), {"items": 60}, "GAP311", "all 2 workers yield the same first 32 items",
    ),
    "items that depend on who makes them, and all from everyone": (
        lambda: stream(d.PackedForAll(158), drop_last=True), {}, "GAP311",
        "all 2 workers yield the same first 39 items",
    ),
    "by worker and not by rank": (
        lambda: stream(d.ByWorker(32)), {"ranks": 2}, "GAP312",
        "an epoch of 2 ranks has 64 items, but the data has only 32; the 2 workers of a rank split them, "
        "but the ranks do not",
    ),
    "no distributed sampler": (
        lambda: table(d.Table(), shuffle=True), {"ranks": 3}, "GAP312",
        "an epoch of 3 ranks has 120 items, but the data has only 40",
    ),
    "blocks of workers": (
        lambda: stream(d.Blocks(41), workers=2), {}, "GAP313",
        "1 of 41 items never come from 2 workers",
    ),
    "used up": (lambda: stream(d.UsedUp(), workers=0), {}, "GAP313", "the second epoch yields nothing"),
    "its own generator": (
        lambda: table(d.OwnGenerator(), num_workers=2), {}, "GAP314",
        "`self.rng` draws the same random numbers in 2 of 2 workers and in 2 epochs: the generator is "
        "created once, and every worker gets a copy of it",
    ),
    "a generator of its own, kept": (
        lambda: table(d.OwnGenerator(), num_workers=2, persistent_workers=True), {}, "GAP314",
        "`self.rng` draws the same random numbers in 2 of 2 workers: the generator is created once, and "
        "every worker gets a copy of it",
    ),
    "a generator of its own, one worker": (
        lambda: table(d.OwnGenerator(), num_workers=1), {}, "GAP314",
        "`self.rng` draws the same random numbers in 2 epochs: the generator is created once, and every "
        "worker gets a copy of it",
    ),
    "inside of a subset": (
        lambda: table(Subset(d.OwnGenerator(), range(32)), num_workers=2), {}, "GAP314",
        "`self.dataset.rng` draws the same random numbers in 2 of 2 workers and in 2 epochs: the generator "
        "is created once, and every worker gets a copy of it",
    ),
    "seeded alike": (
        lambda: table(d.GlobalNumbers(), num_workers=2, worker_init_fn=d.seed_alike), {}, "GAP314",
        "`numpy.random` draws the same random numbers in 2 of 2 workers and in 2 epochs: `worker_init_fn` "
        "gives every worker the same seed",
    ),
    "one order": (
        lambda: stream(d.OneOrder()), {}, "GAP315",
        "the first two epochs yield the same 40 items in the same order, although random numbers are drawn "
        "from `rng`",
    ),
    "an epoch that kept workers do not see": (
        lambda: stream(d.NewOrder(), persistent_workers=True), {}, "GAP315",
        "the first two epochs yield the same 40 items in the same order, although random numbers are drawn "
        "from `rng` (workers are kept and do not see what the loop changes in the dataset)",
    ),
    "a sampler without epochs": (
        lambda: table(d.Table(), sampler=d.OneShuffle(40)), {}, "GAP315",
        "OneShuffle shuffles every epoch the same way (40 positions), and the sampler has no `set_epoch`",
    ),
    "one item is left": (
        lambda: table(d.Table(41)), {}, "GAP317", "the last of 6 batches has 1 item",
    ),
    "one item is left in a worker": (
        lambda: stream(d.ByWorker(33)), {}, "GAP317", "the last batch of 1 of 2 workers has 1 item",
    ),
    "nothing is left": (
        lambda: table(d.Table(7), drop_last=True), {}, "GAP317", "`drop_last=True` drops all of 7 items",
    ),
    "each worker drops": (
        lambda: stream(d.ByWorker(30), drop_last=True), {}, "GAP317",
        "`drop_last=True` drops 14 of 30 items of 2 workers",
    ),
    "ranks by stride": (
        lambda: (lambda: table(d.Table(33), sampler=d.Strides(33), batch_size=4)), {"ranks": 2}, "GAP318",

            "rank 1 gets 4 batches and rank 0 5: at the end the other ranks wait for a rank that has "
            "already left the loop",
    ),
    "streams by stride": (
        lambda: stream(d.ByBoth(33), workers=0), {"ranks": 2}, "GAP318",

            "rank 1 gets 2 batches and rank 0 3: at the end the other ranks wait for a rank that has "
            "already left the loop",
    ),
    "blocks of ranks": (
        lambda: (lambda: table(d.Table(47), sampler=d.EqualBlocks(47))), {"ranks": 3}, "GAP313",
        "2 positions of 47 never come from any of 3 ranks in any of 4 epochs",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found(name: str) -> None:
    make, settings, code, words = MISTAKES[name]
    verification = loading.verify(make(), **settings)
    by_code = {mistake.code: mistake for mistake in verification.mistakes}
    assert code in by_code, verification
    assert by_code[code].seen == words
    assert by_code[code].name == rule(code).name
    line = by_code[code].line
    assert line is not None
    assert line.file == str(HERE / "datasets.py")
    assert line.code.startswith(("def __iter__", "def __getitem__"))


FINE = {
    "a table": (lambda: table(d.Table(), shuffle=True, num_workers=2), {}),
    "a table in order": (lambda: table(d.Table()), {}),
    "a fixed order that is no shuffling": (lambda: table(d.Table(), sampler=d.Longest(40)), {}),
    "drawn with replacement": (
        lambda: table(d.Table(), sampler=WeightedRandomSampler([1.0] * 40, 40)), {"ranks": 2},
    ),
    "a random part": (lambda: table(d.Table(), sampler=SubsetRandomSampler(range(16))), {}),
    "more than there is": (
        lambda: table(d.Table(), sampler=RandomSampler(d.Table(), replacement=True, num_samples=80)), {},
    ),
    "the rest is dropped": (lambda: table(d.Table(41), shuffle=True, drop_last=True), {}),
    "a distributed sampler": (lambda: distributed, {"ranks": 3}),
    "a distributed sampler of rank 0": (
        lambda: table(d.Table(41), sampler=DistributedSampler(d.Table(41), num_replicas=2, rank=0)),
        {"ranks": 2},
    ),
    "global random numbers": (lambda: table(d.GlobalNumbers(), num_workers=2), {}),
    "seeded apart": (lambda: table(d.GlobalNumbers(), num_workers=2, worker_init_fn=d.seed_apart), {}),
    "a generator that nobody uses": (lambda: table(d.UnusedGenerator(), num_workers=2), {}),
    "a generator without workers": (lambda: table(d.OwnGenerator()), {}),
    "a stream by worker": (lambda: stream(d.ByWorker(32)), {}),
    "a stream without workers": (lambda: stream(d.Numbers(), workers=0), {}),
    "a stream by worker and rank": (lambda: stream(d.ByBoth(32)), {"ranks": 2}),
    "new noise": (lambda: stream(d.Noise(32)), {}),
    "items that depend on who makes them": (lambda: stream(d.Packed(158)), {"ranks": 1}),
    "the same item over and over": (lambda: stream(d.Constant(32)), {}),
    "a new order": (lambda: stream(d.NewOrder(32)), {}),
    "blocks that divide": (lambda: stream(d.Blocks(32)), {}),
    "a shard": (lambda: stream(loading.shard(d.Numbers(43))), {"ranks": 2}),
    "a shard of an endless stream": (lambda: stream(loading.shard(d.Endless())), {"ranks": 2, "items": 40}),
    "a shard that drops": (lambda: stream(loading.shard(d.Numbers(43), even="drop")), {"ranks": 2}),
    "buckets": (
        lambda: (
            lambda: DataLoader(
                d.Table(), batch_sampler=loading.BucketBatchSampler([1 + i % 7 for i in range(40)], 6)
            )
        ),
        {"ranks": 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FINE)
def test_correct_loaders_have_no_mistakes(name: str) -> None:
    make, settings = FINE[name]
    verification = loading.verify(make(), **settings)
    assert not verification.mistakes, str(verification)
    assert verification.items > 0


def test_nothing_changes_here() -> None:
    data = d.OwnGenerator()
    generator = torch.Generator().manual_seed(1)
    loader = table(data, shuffle=True, generator=generator, num_workers=1)
    before = random.getstate(), numpy.random.get_state()[1].tobytes(), torch.get_rng_state().tolist()
    states = data.rng.bit_generator.state, generator.get_state().tolist()
    loading.verify(loader, ranks=2)
    assert before == (
        random.getstate(),
        numpy.random.get_state()[1].tobytes(),
        torch.get_rng_state().tolist(),
    )
    assert states == (data.rng.bit_generator.state, generator.get_state().tolist())
    assert not torch.distributed.is_initialized()


def test_a_failing_loader_is_reported_with_its_line() -> None:
    with pytest.raises(LoaderError, match=r"datasets.py:\d+: RuntimeError: .*no more lines|no more lines"):
        loading.verify(stream(d.Broken(), workers=0))


def test_what_cannot_be_asked_for() -> None:
    with pytest.raises(UsageError, match="needs a DataLoader"):
        loading.verify([1, 2])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not positive"):
        loading.verify(table(d.Table()), ranks=-1)
    sampler: DistributedSampler = DistributedSampler(d.Table(), num_replicas=2, rank=0)
    with pytest.raises(UsageError, match="DistributedSampler splits among 2 rank"):
        loading.verify(table(d.Table(), sampler=sampler), ranks=3)


def test_a_mistake_reads_as_one_line() -> None:
    (mistake,) = loading.verify(stream(d.Numbers())).mistakes
    assert str(mistake).startswith(f"{HERE / 'datasets.py'}:{mistake.line.line}: GAP311 items-repeated")
    assert "\n" not in str(mistake)


def test_watching_a_loop() -> None:
    data = TensorDataset(torch.arange(12))
    forgotten = table(data, sampler=DistributedSampler(data, num_replicas=2, rank=0))
    called = table(data, sampler=DistributedSampler(data, num_replicas=2, rank=0))
    ordered = table(data, sampler=DistributedSampler(data, num_replicas=2, rank=0, shuffle=False))
    seeded, fine = table(data, shuffle=True), table(data, shuffle=True)
    original = DataLoader.__iter__
    with loading.watch() as watched:
        for epoch in range(3):
            called.sampler.set_epoch(epoch)
            passes = [list(loader) for loader in (called, ordered, fine)]
            list(forgotten)  # forgotten
            torch.manual_seed(0)
            list(seeded)  # seeded
            assert len(passes) == 3
    assert DataLoader.__iter__ is original
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    codes_found = {mistake.code: mistake for mistake in watched.mistakes}
    assert set(codes_found) == {"GAP315", "GAP316"}
    assert lines[codes_found["GAP316"].line.line - 1].endswith("# forgotten")
    assert lines[codes_found["GAP315"].line.line - 1].endswith("# seeded")
    assert codes_found["GAP316"].counts == {"epochs": 3, "same": 2}
    assert "set_epoch is never called" in codes_found["GAP316"].seen


def test_watching_two_passes_at_two_places_says_nothing() -> None:
    data = TensorDataset(torch.arange(12))
    loader = table(data, sampler=DistributedSampler(data, num_replicas=2, rank=0))
    with loading.watch() as watched:
        list(loader)
        list(loader)
    assert watched.mistakes == ()


@pytest.mark.parametrize("ranks", [2, 3])
def test_real_ranks(ranks: int, tmp_path: Path) -> None:
    for done in fork_server.ranks(ranks, (str(HERE / "mistake_ranks.py"), str(tmp_path)), tmp_path):
        assert done.returncode == 0, done.stderr
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(ranks)]
    assert all(result["codes"] == results[0]["codes"] for result in results)
    codes = results[0]["codes"]
    assert codes["all"] == ["GAP311", "GAP312"]
    assert codes["by worker"] == ["GAP312"]
    assert codes["table"] == ["GAP312"]
    assert codes["strides"] == ["GAP317", "GAP318"]
    assert codes["blocks"] == ["GAP313"]
    for fine in ("by both", "shard", "sampler", "buckets"):
        assert codes[fine] == [], fine
    items = [result["shard"] for result in results]
    assert len({len(part) for part in items}) == 1
    assert set().union(*items) == set(range(45))
    assert sum(map(len, items)) < 45 + ranks
    assert all(result["watched"] == ["GAP316"] for result in results)


def observed(rank: int, parts: list[list[int]], workers: int = 2) -> RankItems:
    """A rank whose workers yield `parts`, each as one batch, alike in both epochs."""
    arrays = (
        [item for part in parts for item in part],
        [len(part) for part in parts],
        list(range(len(parts))),
    )
    names = ("items", "sizes", "workers")
    columns = {n: numpy.array(a, dtype=numpy.int64).tobytes() for n, a in zip(names, arrays, strict=True)}
    epoch = Epoch(**columns)
    return RankItems(
        rank=rank, workers=workers, batch_size=0, drop_last=False, length=-1, dataset="Stream",
        epochs=(epoch, epoch),
    )  # fmt: skip


@st.composite
def divided(draw: st.DrawFn) -> tuple[int, list[list[list[int]]]]:
    """How many items there are, and who yields each: by rank, by worker."""
    count, ranks, workers = draw(st.integers(1, 40)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    owners = draw(st.lists(st.integers(0, ranks * workers - 1), min_size=count, max_size=count))
    parts: list[list[list[int]]] = [[[] for _ in range(workers)] for _ in range(ranks)]
    for item, owner in enumerate(owners):
        parts[owner // workers][owner % workers].append(item)
    return count, parts


def codes(count: int, parts: list[list[list[int]]]) -> dict[str, Mistake]:
    world = RanksSeen(
        tuple(observed(rank, part, len(part)) for rank, part in enumerate(parts)),
        observed(0, [list(range(count))], 0),
    )
    return {mistake.code: mistake for mistake in find_mistakes(world)}


@given(divided())
def test_however_items_are_divided_nothing_is_repeated_or_lost(drawn: Any) -> None:
    count, parts = drawn
    assert not {"GAP311", "GAP312", "GAP313"} & set(codes(count, parts))


@given(divided(), st.data())
def test_missing_items_are_counted(drawn: Any, data: st.DataObject) -> None:
    count, parts = drawn
    gone = data.draw(st.sets(st.integers(0, count - 1)))
    left = [[[item for item in part if item not in gone] for part in rank] for rank in parts]
    found_codes = codes(count, left)
    assert ("GAP313" in found_codes) == (len(gone) > len(parts) - 1)
    if "GAP313" in found_codes:
        assert found_codes["GAP313"].counts["lost"] == len(gone)
    assert not {"GAP311", "GAP312"} & set(found_codes)


@given(divided())
def test_what_ranks_have_in_common_is_counted(drawn: Any) -> None:
    count, parts = drawn
    every = [sorted(item for part in rank for item in part) for rank in parts]
    whole = [[list(range(count)), *([[]] * (len(rank) - 1))] for rank in parts]
    found_codes = codes(count, whole)
    again = count * (len(parts) - 1)
    assert ("GAP312" in found_codes) == (len(every) > 1 and again >= len(parts))
    if "GAP312" in found_codes:
        assert found_codes["GAP312"].counts["repeated"] == again
    assert not {"GAP311", "GAP313"} & set(found_codes)


@given(divided())
def test_what_workers_have_in_common_is_counted(drawn: Any) -> None:
    count, parts = drawn
    workers = len(parts[0])
    found_codes = codes(count, [[list(range(count))] * workers])
    assert ("GAP311" in found_codes) == (workers > 1)
    if "GAP311" in found_codes:
        assert found_codes["GAP311"].counts["repeated"] == count * (workers - 1)

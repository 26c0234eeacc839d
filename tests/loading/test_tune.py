"""`tune`: other settings, the same batches in the same order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from loading import datasets as d
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from gapless.errors import UsageError
from gapless.loading import measure, shard, tune


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


class Mine(DataLoader):
    """A subclass that is made from something else."""

    def __init__(self, count: int) -> None:
        self.note = "kept"
        super().__init__(d.Table(count), batch_size=3, shuffle=True)


LOADERS = {
    "in order": lambda: DataLoader(d.Table(10), batch_size=3),
    "shuffled": lambda: DataLoader(d.Table(10), batch_size=3, shuffle=True),
    "shuffled by a generator": lambda: DataLoader(d.Table(10), 3, shuffle=True, generator=generator()),
    "the rest dropped": lambda: DataLoader(d.Table(10), batch_size=3, shuffle=True, drop_last=True),
    "a sampler": lambda: DataLoader(d.Table(10), 3, sampler=RandomSampler(d.Table(10), num_samples=7)),
    "a batch sampler": lambda: DataLoader(
        d.Table(10), batch_sampler=BatchSampler(SequentialSampler(d.Table(10)), 4, True)
    ),
    "a distributed sampler": lambda: DataLoader(
        d.Table(10), 3, sampler=DistributedSampler(d.Table(10), num_replicas=2, rank=1)
    ),
    "without batches": lambda: DataLoader(d.Table(10), batch_size=None, shuffle=True),
    "collated": lambda: DataLoader(d.Table(10), batch_size=3, collate_fn=len),
    "a subclass": lambda: Mine(10),
    "a shard": lambda: DataLoader(shard(d.Numbers(9)), batch_size=3),
}


def epochs(loader: DataLoader) -> list[list[Any]]:
    torch.manual_seed(11)
    return [
        [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in loader] for _ in range(2)
    ]


@pytest.mark.parametrize("name", LOADERS)
def test_the_same_batches_in_the_same_order(name: str) -> None:
    plain = LOADERS[name]()
    tuned = tune(plain, num_workers=1, prefetch_factor=3)
    assert type(tuned) is type(plain)
    assert (tuned.num_workers, tuned.persistent_workers, tuned.prefetch_factor) == (1, False, 3)
    assert (plain.num_workers, plain.persistent_workers, plain.prefetch_factor) == (0, False, None)
    for kept in ("dataset", "sampler", "batch_sampler", "collate_fn", "generator", "drop_last"):
        assert getattr(tuned, kept) is getattr(plain, kept), kept
    if plain.generator is not None:
        plain.generator.manual_seed(5)
    epoch_batches = epochs(tuned)
    if plain.generator is not None:
        plain.generator.manual_seed(5)
    assert epoch_batches == epochs(plain)


def test_kept_workers_begin_with_the_same_epoch() -> None:
    plain = DataLoader(d.Table(10), batch_size=3, shuffle=True)
    tuned = tune(plain, num_workers=1, persistent_workers=True)
    assert epochs(tuned)[0] == epochs(plain)[0]


def test_a_loader_with_workers_without_them() -> None:
    loader = DataLoader(
        d.Table(8), 3, num_workers=2, persistent_workers=True, timeout=9, multiprocessing_context="fork"
    )
    tuned = tune(loader, num_workers=0)
    assert (tuned.persistent_workers, tuned.prefetch_factor, tuned.timeout) == (False, None, 0)
    assert tuned.multiprocessing_context is None
    assert loader.multiprocessing_context.get_start_method() == "fork"
    assert epochs(tuned) == [[[[0], [1], [2]], [[3], [4], [5]], [[6], [7]]]] * 2


def test_what_a_subclass_holds_is_kept_and_running_workers_are_not_shared() -> None:
    loader = tune(Mine(6), num_workers=1, persistent_workers=True)
    list(loader)
    tuned = tune(loader, pin_memory=False)
    assert tuned.note == "kept"  # type: ignore[attr-defined]
    assert loader._iterator is not None
    assert tuned._iterator is None


def test_start_method() -> None:
    tuned = tune(DataLoader(d.Table(4)), num_workers=1, multiprocessing_context="spawn")
    assert tuned.multiprocessing_context.get_start_method() == "spawn"


def test_the_recommended_settings_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    advised = {"num_workers": 2, "prefetch_factor": 4, "persistent_workers": True, "pin_memory": None}
    monkeypatch.setattr(
        measure, "diagnose", lambda loader: SimpleNamespace(recommended=advised), raising=False
    )
    tuned = tune(DataLoader(d.Table(4), pin_memory=True))
    assert (tuned.num_workers, tuned.prefetch_factor, tuned.persistent_workers) == (2, 4, True)
    assert tuned.pin_memory is True


def test_what_would_change_the_batches_is_refused() -> None:
    loader = DataLoader(d.Table(4))
    with pytest.raises(UsageError, match=r"does not change batch_size, because that could change"):
        tune(loader, batch_size=3)
    with pytest.raises(UsageError, match=r"prefetch_factor=3 needs num_workers above 0"):
        tune(loader, prefetch_factor=3)
    with pytest.raises(UsageError, match=r"PyTorch rejects these settings: num_workers"):
        tune(loader, num_workers=-1)
    with pytest.raises(UsageError, match=r"PyTorch rejects"):
        tune(loader, num_workers=1, multiprocessing_context="thread")


def test_a_stream_that_does_not_know_its_worker_gets_no_more_of_them(tmp_path: Any) -> None:
    (tmp_path / "undivided.py").write_text(
        "from torch.utils.data import IterableDataset\n"
        "class Lines(IterableDataset):\n"
        "    def __iter__(self):\n"
        "        yield from range(3)\n"
    )
    import importlib.util
    import sys

    spec = importlib.util.spec_from_file_location("undivided", tmp_path / "undivided.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["undivided"] = module
    try:
        spec.loader.exec_module(module)
        loader = DataLoader(module.Lines(), batch_size=1)
        with pytest.raises(
            UsageError, match=r"Lines.__iter__ .*undivided.py:3\) does not check which worker"
        ):
            tune(loader, num_workers=2)
        assert tune(loader, num_workers=1).num_workers == 1
    finally:
        del sys.modules["undivided"]
    assert tune(DataLoader(d.ByWorker()), num_workers=2).num_workers == 2


def test_stateful_data_loader() -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def shuffled(**settings: int) -> Any:
        torch.manual_seed(2)  # its sampler takes its seed when it is made
        return stateful.StatefulDataLoader(d.Table(12), batch_size=2, shuffle=True, **settings)

    tuned = tune(shuffled(), num_workers=2)
    assert type(tuned) is stateful.StatefulDataLoader
    assert epochs(tuned) == epochs(shuffled(num_workers=2))
    whole = [batch.tolist() for batch in tune(shard_loader(stateful), num_workers=2)]
    begun = tune(shard_loader(stateful), num_workers=2)
    batches = iter(begun)
    lengths_loaded = [next(batches).tolist() for _ in range(3)]
    state = begun.state_dict()
    resumed = tune(shard_loader(stateful), num_workers=2)
    resumed.load_state_dict(state)
    assert lengths_loaded + [batch.tolist() for batch in resumed] == whole


def shard_loader(stateful: Any) -> Any:
    return stateful.StatefulDataLoader(shard(d.Numbers(17)), batch_size=2)

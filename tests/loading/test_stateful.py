"""torchdata's StatefulDataLoader: measured, verified, watched and tuned, also in the midst of an epoch."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from loading import datasets as d
from torch.utils.data.distributed import DistributedSampler

from gapless import loading
from gapless.loading.forked import can_fork
from gapless.loading.uses import Uses

stateful = pytest.importorskip("torchdata.stateful_dataloader")
pytestmark = pytest.mark.skipif(not can_fork(), reason="processes cannot be copied here")
WORKERS = pytest.mark.parametrize("workers", [0, 2])


def loader(workers: int, dataset: Any = None, **other: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchdata's own, of a function of torch's
        torch.manual_seed(2)  # its sampler takes its seed when it is made
        return stateful.StatefulDataLoader(
            d.Table(40) if dataset is None else dataset, batch_size=4, num_workers=workers, **other
        )


def rest(batches: Any) -> list[list[int]]:
    return [batch.flatten().tolist() for batch in batches]


@WORKERS
def test_what_is_measured_and_verified_in_the_midst_leaves_its_place(workers):
    plain = iter(loader(workers, shuffle=True))
    whole = rest(plain)
    made_loader = loader(workers, shuffle=True)
    batches = iter(made_loader)
    remaining = rest(next(batches) for _ in range(3))
    before = str(made_loader.state_dict())
    assert loading.diagnose(made_loader, budget=0.3, step=0.005).fetch.batch_size == 4
    assert loading.verify(made_loader, seconds=3).mistakes == ()
    assert str(made_loader.state_dict()) == before
    state = made_loader.state_dict()
    assert remaining + rest(batches) == whole
    # Resumed with other settings than it was saved with, and looked at in between.
    again = loading.tune(loader(workers, shuffle=True), pin_memory=False)
    again.load_state_dict(state)
    loading.diagnose(again, budget=0.3)
    assert remaining + rest(again) == whole


def test_mistakes_of_a_stream():
    assert loading.verify(loader(2, d.Numbers()), seconds=5).codes == ("GAP311",)
    assert loading.verify(loader(2, loading.shard(d.Numbers())), seconds=5).codes == ()


@WORKERS
def test_watched(workers):
    made_loader = loader(workers, sampler=DistributedSampler(d.Table(40), num_replicas=2, rank=0))
    with loading.watch() as watched:
        for _ in range(2):
            rest(made_loader)
    assert [mistake.code for mistake in watched.mistakes] == ["GAP316"]


def test_passes_are_seen_also_of_workers_that_are_kept():
    made_loader = loader(1, persistent_workers=True)
    uses = Uses().start()
    for _ in range(2):
        rest(made_loader)
    uses.stop()
    assert [(use.passes, use.batches) for use in uses.uses] == [(2, 20)]


def test_tuned_by_a_measurement():
    tuned = loading.tune(loader(0))
    assert type(tuned) is stateful.StatefulDataLoader
    assert rest(tuned) == rest(loader(0))

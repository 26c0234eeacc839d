"""Looking on while loops go through loaders: what is seen, and that nothing changes for it."""

from __future__ import annotations

import gc
import random
import weakref

import numpy
import pytest
import torch
from loading import datasets as d
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

import gapless
from gapless.loading.hooks import LoaderHooks
from gapless.loading.uses import Uses


@pytest.fixture
def uses():
    recorder = Uses().start()
    yield recorder
    recorder.stop()


def states() -> tuple[object, ...]:
    return random.getstate(), numpy.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()


def batches(loader: DataLoader, epochs: int = 2) -> list[list[float]]:
    torch.manual_seed(3)
    return [batch.flatten().tolist() for _ in range(epochs) for batch in loader]


def line_of(code: str) -> int:
    with open(__file__) as source:
        return next(n for n, row in enumerate(source, 1) if row.strip().startswith(code))


@pytest.mark.parametrize("settings", [{}, {"num_workers": 1}, {"num_workers": 2, "persistent_workers": True}])
def test_the_same_batches_and_random_states_with_and_without_a_look(settings):
    loader_made = DataLoader(d.Table(12), batch_size=5, shuffle=True, **settings)
    torch.manual_seed(3)
    plain = batches(loader_made), states()
    other = Uses().start()
    again = DataLoader(d.Table(12), batch_size=5, shuffle=True, **settings)
    looked = batches(again), states()
    other.stop()
    assert looked == plain


def test_lines_passes_batches_and_setting(uses):
    loader = DataLoader(d.Table(12), batch_size=5, num_workers=1)
    for _ in range(3):
        for _batch in loader:
            pass
    (use,) = uses.uses
    assert (use.passes, use.batches, use.setting.workers) == (3, 9, 1)
    assert use.made is not None
    assert use.asked is not None
    assert use.made.line == line_of("loader = DataLoader(d.Table(12), batch_size=5, num_workers=1)")
    assert use.asked.line == line_of("for _batch in loader:")
    assert use.loader is not None
    assert use.loader is not loader
    assert use.loader.dataset is loader.dataset
    assert 0 < use.wait < use.first


def test_kept_workers_begin_a_pass_each_time(uses):
    loader = DataLoader(d.Table(12), batch_size=5, num_workers=1, persistent_workers=True)
    assert len(batches(loader, 3)) == 9
    (use,) = uses.uses
    assert (use.passes, use.batches) == (3, 9)


def test_loaders_made_anew_at_one_line_are_one(uses):
    for _ in range(4):
        list(DataLoader(d.Table(4), batch_size=2))
    (use,) = uses.uses
    assert (use.passes, use.batches) == (4, 8)


@pytest.mark.parametrize(
    ("ahead", "each", "per_step"),
    [(0, 1, 1.0), (0, 3, 3.0), (2, 1, 1.0)],
    ids=["one a step", "accumulated", "asked in advance"],
)
def test_what_a_step_takes(uses, ahead, each, per_step):
    batch = iter(DataLoader(d.Table(40)))
    for _ in range(ahead):
        next(batch)
    for _ in range(6):
        for _ in range(each):
            next(batch)
        uses.stepped()
    (use,) = uses.uses
    assert use.per_step(6) == per_step
    assert use.fed == 6


def test_a_loader_between_the_steps_feeds_few_of_them(uses):
    training, evaluation = iter(DataLoader(d.Table(40))), DataLoader(d.Table(7))
    for step in range(6):
        next(training)
        if step == 3:
            list(evaluation)
        uses.stepped()
    assert [use.fed for use in uses.uses] == [6, 1]


def test_no_loader_and_no_worker_lives_longer_for_it(uses):
    loader = DataLoader(d.Table(12), num_workers=1, persistent_workers=True)
    iterator = iter(loader)
    next(iterator)
    gone, worker = weakref.ref(loader), iterator._workers[0]
    del loader, iterator
    worker.join(20)
    assert gone() is None
    assert not worker.is_alive()


@pytest.mark.parametrize("workers", [0, 1])
def test_complete_passes_are_distinguished_from_abandoned_ones(workers):
    uses = Uses().start()
    loader = DataLoader(d.Table(3), num_workers=workers)
    for _ in range(2):
        list(loader)
    next(iter(loader))
    uses.stop()
    assert [(use.passes, use.ended) for use in uses.uses if use.passes > 1] == [(2, 2)]
    assert sum(use.ended for use in uses.uses) == 2


def test_what_goes_wrong_in_looking_on_is_no_matter_of_the_loop():
    class Clumsy:
        def on_created(self, loader):
            raise RuntimeError

        on_pass_begun = on_batch = on_pass_ended = on_created

    hooks = LoaderHooks(Clumsy())
    hooks.install()
    try:
        assert len(list(DataLoader(d.Table(3)))) == 3
    finally:
        hooks.remove()


def test_everything_is_put_back():
    own = DataLoader.__init__, _BaseDataLoaderIter.__init__, _BaseDataLoaderIter.__next__
    first, second = Uses().start(), Uses().start()
    list(DataLoader(d.Table(3)))
    second.stop()
    list(DataLoader(d.Table(3)))
    first.stop()
    list(DataLoader(d.Table(3)))
    assert [use.batches for use in second.uses] == [3]
    assert [use.batches for use in first.uses] == [3, 3]
    assert own == (DataLoader.__init__, _BaseDataLoaderIter.__init__, _BaseDataLoaderIter.__next__)


@pytest.mark.parametrize(("on_gpu", "kept"), [(False, True), (True, False)])
def test_a_dataset_on_the_gpu_is_not_kept_for_the_measurement(on_gpu, kept):
    with gapless.emulate():
        uses = Uses().start()
        try:
            rows = TensorDataset(torch.ones(4, 2, device="cuda" if on_gpu else "cpu"))
            loader, alive = DataLoader(rows, 2), weakref.ref(rows)
            list(loader)
            (use,) = uses.uses
            assert use.loader is not None
            del rows, loader
            gc.collect()
            assert (alive() is not None) is kept
            assert (use.loader is not None) is kept
        finally:
            uses.stop()

"""What is taken for what: loaders, steps around them, datasets of items or batches, foreign iterators."""

from __future__ import annotations

import sys
import threading

import msgspec
import pytest
import torch
from loading import datasets as d
from torch.utils.data import DataLoader, IterableDataset

from gapless.errors import UsageError
from gapless.loading import diagnose, verify
from gapless.loading.factory import find_feed, loader_factory
from gapless.loading.feed import identify_feed
from gapless.loading.forked import LoaderError, can_fork, run_in_copy
from gapless.loading.looking import _batches_per_loop_batch, observe
from gapless.loading.measure_loop import run_loop
from gapless.loading.nested import count_items, tensors_of
from gapless.loading.predict import MeasuredCosts, predict, predict_again
from gapless.loading.sentence import cost
from gapless.model.loading import Demand, Fetch, Machine, Seen, Setting, Transfer
from gapless.model.loading_feed import Around

pytestmark = pytest.mark.skipif(not can_fork(), reason="processes cannot be copied here")
MS = 1e6


class Rebatched(IterableDataset):
    """A pipeline over a loader, and a stream by its class: takes batches apart and makes others."""

    def __init__(self, loader, size: int, ahead: int = 0) -> None:
        self.loader, self.size, self.ahead = loader, size, ahead

    def __iter__(self):
        held: list[torch.Tensor] = []
        for batch in self.loader:
            held += list(batch)
            while len(held) >= self.size + self.ahead:
                yield torch.stack(held[: self.size])
                del held[: self.size]


class Ahead(DataLoader):
    """A loader that holds one batch back, to know the last one."""

    def __iter__(self):
        batches = super().__iter__()
        held = next(batches)
        for batch in batches:
            yield held
            held = batch
        yield held


class Pipe:
    """Yields ready batches, as libraries that decode on a GPU do."""

    def __init__(self, count: int = 9) -> None:
        self.count = self.at = 0
        self.count = count

    def __iter__(self):
        self.at = 0
        return self

    def __len__(self) -> int:
        return self.count

    def __next__(self):
        if self.at >= self.count:
            raise StopIteration
        self.at += 1
        return [{"data": torch.zeros(4, 3, 2, 2), "label": torch.zeros(4)}]


class Indexed:
    """Items by their position, of a class that knows nothing of torch."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, at: int):
        return {"x": torch.tensor([float(at)])}


class Threaded:
    """Goes through its loader in a thread."""

    def __init__(self, loader) -> None:
        self.loader = loader

    def __iter__(self):
        held: list[object] = []
        worker = threading.Thread(target=lambda: held.extend(self.loader))
        worker.start()
        worker.join()
        return iter(held)


class Batches(IterableDataset):
    def __iter__(self):
        for _ in range(9):
            yield torch.zeros(4, 3, 2), [0, 1, 2, 3]


def passes():
    for batch in DataLoader(d.Table(60), batch_size=4):
        yield batch + 1


def test_a_loader_is_what_it_is_and_nothing_is_drawn_from_it():
    loader = DataLoader(d.Table(12), batch_size=4)
    assert identify_feed(loader).loader is loader
    assert identify_feed(loader).around is None


@pytest.mark.parametrize(("inner", "outer", "each"), [(4, 12, 3.0), (12, 4, 1 / 3), (4, 4, 1.0), (4, 6, 1.5)])
def test_a_pipeline_around_a_loader_takes_so_many_of_its_batches(inner, outer, each):
    loader = DataLoader(d.Table(240), batch_size=inner)
    feed = identify_feed(Rebatched(loader, outer, ahead=outer))
    assert feed.loader is loader
    assert feed.around is not None
    assert feed.around.batches == pytest.approx(each)
    assert feed.around.name == "Rebatched"


@pytest.mark.parametrize(
    ("numbers", "each"),
    [
        ([0, 0, 1, 2, 3], 1.0),  # looks one ahead
        ([0, 0, 0, 0, 4, 8, 12], 0.25),  # fills a buffer, then one for every four
        ([0, 1, 1, 2, 2, 3, 3], 2.0),
        ([0], 1.0),
    ],
)
def test_how_many_for_each_is_counted_without_what_is_held_back(numbers, each):
    assert _batches_per_loop_batch(numbers) == each


def test_a_loader_that_looks_ahead_is_a_loader():
    feed = identify_feed(Ahead(d.Table(60), batch_size=4))
    assert isinstance(feed.loader, Ahead)
    assert feed.around is None or feed.around.batches == 1


class Counting(DataLoader):
    """Counts the items of its batches, as a loader does that can be resumed."""

    def __iter__(self):
        for batch in super().__iter__():
            self.seen = getattr(self, "seen", 0) + batch.shape[0]
            yield batch


def test_mistakes_of_a_loader_that_looks_into_its_batches():
    assert verify(Counting(d.Table(40), batch_size=4, num_workers=1), seconds=20).mistakes == ()


def test_a_generator_that_makes_its_own_loader_is_made_anew_for_each_look():
    before = torch.get_rng_state()
    feed = identify_feed(passes(), make=passes)
    assert isinstance(feed.loader, DataLoader)
    assert not feed.is_persistent
    assert feed.around is not None
    assert feed.around.anew
    assert torch.equal(torch.get_rng_state(), before)
    assert "creates a new DataLoader" in feed.remarks[0]


def test_a_generator_that_cannot_be_made_anew_is_measured_as_it_is():
    feed = identify_feed(passes())
    assert feed.loader is None
    assert feed.around is not None
    assert feed.around.foreign


@pytest.mark.parametrize("thing", [Pipe(), Threaded(DataLoader(d.Table(40), batch_size=4))])
def test_what_has_no_loader_that_can_be_varied_is_foreign(thing):
    feed = identify_feed(thing)
    assert feed.loader is None
    assert "other settings cannot be tried" in feed.remarks[0]


def test_of_two_loaders_the_one_that_takes_the_time(capsys):
    class Both:
        def __init__(self) -> None:
            self.slow = DataLoader(d.Table(60), batch_size=20, collate_fn=_slowly)
            self.fast = DataLoader(d.Table(60), batch_size=2)

        def __iter__(self):
            return zip(self.fast, self.slow, strict=False)

    both = Both()
    feed = identify_feed(both)
    assert feed.loader is both.slow
    assert "2 DataLoaders" in feed.remarks[0]


def _slowly(items):
    return torch.stack([torch.stack(items).sort().values for _ in range(1000)])


def test_datasets_of_items_and_of_batches():
    assert identify_feed(Indexed()).loader.batch_size == 32
    assert identify_feed([torch.zeros(2)] * 5).loader.batch_size == 32
    feed = identify_feed(Batches())
    assert feed.loader.batch_size is None
    assert "batches of 4 itself" in feed.remarks[0]


@pytest.mark.parametrize(
    ("batch", "items"),
    [
        ((torch.zeros(8, 3, 4, 4), torch.zeros(8)), 8),
        ({"x": torch.zeros(8, 5), "names": ["a"] * 8}, 8),
        ((torch.zeros(8, 20, dtype=torch.long), torch.ones(8, 20, dtype=torch.long)), 8),
        ((torch.zeros(3, 4, 4), 7), 0),  # an image and its label
        ((torch.zeros(3, 4, 4), torch.zeros(3, 8, 8)), 0),  # two images of one item
        ({"ids": torch.zeros(20), "mask": torch.zeros(20)}, 0),  # a sequence
        ((torch.zeros(3, 9), torch.tensor(1)), 0),
        ("text", 0),
    ],
)
def test_a_batch_is_distinguished_from_an_item_only_when_certain(batch, items):
    assert count_items(batch) == items


def test_a_loop_over_another_setting_goes_through_the_same_batches():
    loader = DataLoader(d.Table(60), batch_size=4)
    for thing, make in ((Rebatched(loader, 6), None), (passes(), passes)):
        feed = identify_feed(thing, make)

        def work(tell, feed=feed):
            with feed.under(Setting(workers=1, prefetch=2)) as changed:
                return run_loop(changed, Setting(workers=1, prefetch=2), 0.0, 0.0, 1.0, tell)

        assert run_in_copy(work, Seen, 20.0, lambda part: None).batches > 0
        assert loader.num_workers == 0


def test_a_step_around_a_loader_is_part_of_every_prediction():
    """By hand: two batches of 4 ms and 3 ms besides for each step of 10 ms."""
    fetch = Fetch(items=80, item_cpu=0.5 * MS, batch_size=8, batches=((int(4 * MS), 0),) * 8)
    of = MeasuredCosts(
        machine=Machine(allowed=8, start="fork"),
        fetch=fetch,
        transfer=Transfer(batches=9),
        demand=Demand(step=10 * MS),
        around=Around(name="Pipeline", batches=2.0, wall=3 * MS, cpu=3 * MS),
    )
    alone = predict(of, Setting())
    assert alone.step == pytest.approx(2 * 4 * MS + 3 * MS + 10 * MS, rel=0.01)
    assert alone.wait == pytest.approx(11 * MS, rel=0.01)
    fed = predict(of, Setting(workers=4, prefetch=2))
    assert fed.step == pytest.approx(13 * MS, rel=0.02)
    assert fed.wait == pytest.approx(3 * MS, rel=0.1)


def test_a_diagnosis_of_a_pipeline_and_of_a_foreign_iterator():
    diagnosis = diagnose(Rebatched(DataLoader(d.Table(400), batch_size=4), 8), 0.6, 0.001, busy=0.0)
    assert diagnosis.around is not None
    assert diagnosis.around.batches == pytest.approx(2, rel=0.1)
    assert "of its DataLoader" in cost(diagnosis)
    assert diagnosis.predictions
    diagnosis = diagnose(Pipe(400), 0.4, 0.001, busy=0.0)
    assert diagnosis.around.foreign
    assert (diagnosis.fetch.tensors, diagnosis.fetch.batch_bytes) == (2, 4 * (48 + 4))
    assert diagnosis.seen is not None
    assert diagnosis.advised is None
    other = predict_again(msgspec.structs.replace(diagnosis, doubt=None), Demand(step=5 * MS))
    assert other.seen is None
    assert "if batches are prefetched" in other.sentence


def test_what_yields_nothing_says_so():
    with pytest.raises(UsageError, match="yields no batches"):
        identify_feed(7)
    with pytest.raises(LoaderError, match="yields no batch"):
        identify_feed(Pipe(0))


def test_tensors_of_a_graph_batch_are_found_within_its_stores():
    class Store:
        def __init__(self) -> None:
            self.x = torch.zeros(3, 2)

    class Batch:
        def __init__(self) -> None:
            self.store = Store()
            self.same = self.store.x

    assert [tensor.shape for tensor in tensors_of(Batch())] == [(3, 2)]


SCRIPT = """
import torch
from torch.utils.data import DataLoader
class Module:
    def prepare_data(self): self.ready = True
    def setup(self, stage): self.data = [torch.zeros(2)] * (40 if self.ready and stage == "fit" else 0)
    def train_dataloader(self): return DataLoader(self.data, batch_size=8)
class Pipeline:
    def __init__(self): self.loader = DataLoader([torch.zeros(2)] * 40, batch_size=8)
    def __iter__(self): return iter(self.loader)
def both(): return {"count": 40, "train": Pipeline(), "val": Pipeline()}
pipeline = Pipeline()
def generator():
    yield from DataLoader([torch.zeros(2)] * 40, batch_size=8)
"""


@pytest.mark.parametrize("name", ["Module", "Pipeline", "both", "pipeline", "generator"])
def test_names_of_a_script(tmp_path, monkeypatch, name):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    (tmp_path / "feeding.py").write_text(SCRIPT)
    target = f"{tmp_path / 'feeding.py'}:{name}"
    feed = find_feed(target)
    assert feed.loader.batch_size == 8
    assert len(feed.loader.dataset) == 40
    assert loader_factory(target)().batch_size == 8


def test_accelerate():
    accelerate = pytest.importorskip("accelerate")
    loader = accelerate.Accelerator(cpu=True).prepare(DataLoader(d.Table(60), batch_size=4))
    feed = identify_feed(loader)
    assert type(feed.loader) is DataLoader
    assert feed.around is None or feed.around.batches == 1


def test_torchdata_nodes_and_its_resumable_loader():
    pytest.importorskip("torchdata.nodes")
    from torchdata import nodes
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = nodes.Loader(nodes.Batcher(nodes.IterableWrapper(range(40)), 4))
    assert identify_feed(loader).around.name == "Loader"
    resumable = StatefulDataLoader(d.Table(12), batch_size=4)
    assert identify_feed(resumable).loader is resumable


@pytest.mark.filterwarnings("ignore")
def test_lightning_loaders_together():
    utilities = pytest.importorskip("lightning.pytorch.utilities")
    loader = DataLoader(d.Table(60), batch_size=4)
    feed = identify_feed(utilities.CombinedLoader({"a": loader, "b": DataLoader(d.Table(20), batch_size=1)}))
    assert feed.around.name == "CombinedLoader"
    assert len(feed.remarks) == 1


def test_looking_on_leaves_no_hooks_behind():
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    before = _BaseDataLoaderIter.__next__
    observed = observe(lambda: DataLoader(d.Table(12), batch_size=4), "it", lambda part: None)
    assert observed.sources[0].each == 1
    assert _BaseDataLoaderIter.__next__ is before

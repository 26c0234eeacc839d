"""What a thing is that yields batches: a DataLoader, steps around one, or something else.

Nothing is known by its name. It is gone through in a copy of this process, where hooks tell which
DataLoader's batches come meanwhile, how many for each that the loop gets, and what time passes outside of it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader, IterableDataset

from gapless.errors import UsageError
from gapless.loading import forked
from gapless.loading.batches import alike, is_bare
from gapless.loading.hooks import Hooks
from gapless.loading.looking import SECONDS, Looked, Silent, Source, look
from gapless.model.loading import Setting
from gapless.model.loading_feed import Around
from gapless.model.source import SourceLine

BATCH = 32
"""Items in a batch where only a dataset is given."""
_NOTHING = 0.01, 50_000
"""Part of a batch, and nanoseconds, below which the time around a DataLoader is none."""

Make = Callable[[], Any]


@dataclass(frozen=True)
class Feed:
    """What a loop goes through: `thing`, its `loader` where it has one that can be varied, and what is
    `around` that (None: nothing). `make` makes it anew; `remarks` say what it was taken for."""

    thing: Any
    loader: DataLoader | None
    around: Around | None = None
    make: Make | None = None
    remarks: tuple[str, ...] = ()
    held: bool = True
    """Whether the loader exists before a pass begins, and is not made by each."""
    line: SourceLine | None = None
    """The user's line that makes the loader."""
    anew: bool = False
    """Whether a copy of this process has to make it anew: the threads that it has started are not there."""

    def fresh(self) -> Any:
        """Something to go through once more, in a copy of this process."""
        gone = self.anew or not _again(self.thing)
        return self.make() if self.make is not None and gone else self.thing

    @contextmanager
    def under(self, setting: Setting) -> Iterator[Callable[[], Any]]:
        """What gives the thing, its loader changed to `setting`: for a copied process that ends."""
        assert self.loader is not None
        if self.held:
            _change(self.loader, setting)
            yield lambda: self.thing
            return
        hooks = Hooks(_Changing(type(self.loader.dataset), setting))
        hooks.install()
        try:
            yield self.fresh
        finally:
            hooks.remove()


def understood(thing: Any, make: Make | None = None, *, anew: bool = False) -> Feed:
    """What `thing` is; `make` makes it anew, where that is possible (`anew`: in each copied process).

    Raises:
        UsageError: nothing comes out of it by its kind.
        LoaderError: the user's code fails.
    """
    if isinstance(thing, DataLoader) and is_bare(type(thing)):
        return Feed(thing, thing)
    if not isinstance(thing, DataLoader | IterableDataset) and _indexed(thing):
        return _of_items(thing)
    if not hasattr(thing, "__iter__") or isinstance(thing, str | bytes):
        raise UsageError(f"{type(thing).__name__} yields no batches: pass a DataLoader or a dataset")
    if not forked.available():
        return _unlooked(thing)
    feed = Feed(thing, None, make=make, anew=anew)

    def work(tell: forked.Tell) -> Looked:
        return look(feed.fresh, _name(thing), tell)

    looked = forked.measured(work, Looked, 10 * SECONDS, lambda part: None)
    if looked.sources and not looked.threaded:
        return _wrapped(feed, looked)
    if isinstance(thing, IterableDataset) and not looked.sources:
        return _of_stream(thing, looked)
    return _foreign(feed, looked)


def _indexed(thing: Any) -> bool:
    """Whether items are had by their position, as of a dataset."""
    return (
        hasattr(thing, "__getitem__")
        and hasattr(thing, "__len__")
        and not isinstance(thing, (Mapping, str, bytes, torch.Tensor, numpy.ndarray))
    )


def _again(thing: Any) -> bool:
    """Whether it can be gone through again from its beginning."""
    return not isinstance(thing, Iterator) or hasattr(thing, "__len__")


def _of_items(dataset: Any) -> Feed:
    remark = f"this is a dataset ({type(dataset).__name__}): it is measured in batches of {BATCH}"
    return Feed(dataset, DataLoader(dataset, batch_size=BATCH), remarks=(remark,))


def _of_stream(dataset: Any, looked: Looked) -> Feed:
    """A stream in a DataLoader: of its items, or of the batches that it makes itself."""
    if looked.batched:
        remark = (
            f"this dataset ({type(dataset).__name__}) builds batches of {looked.batched} itself: it is "
            "measured in a DataLoader with batch_size=None"
        )
        return Feed(dataset, DataLoader(dataset, batch_size=None), remarks=(remark,))
    return _of_items(dataset)


def _unlooked(thing: Any) -> Feed:
    if isinstance(thing, DataLoader):
        return Feed(thing, thing)
    if isinstance(thing, IterableDataset):
        return _of_items(thing)
    return Feed(thing, None, Around(name=type(thing).__qualname__))


def _wrapped(feed: Feed, looked: Looked) -> Feed:
    """Steps around a DataLoader: the one that the most time goes to."""
    source = looked.sources[0]
    found = _held(source)
    loader = found if found is not None else _made_by(feed)
    if loader is None:
        return _foreign(feed, looked)
    each = source.each
    name = _name(feed.thing)
    least = max(_NOTHING[0] * looked.total, _NOTHING[1])
    if each == 1 and looked.wall < least and len(looked.sources) == 1 and isinstance(feed.thing, DataLoader):
        return Feed(feed.thing, loader)
    remarks = []
    if found is None:
        remarks.append(f"{name} creates a new DataLoader for each pass")
    if len(looked.sources) > 1:
        remarks.append(
            f"{name} uses {len(looked.sources)} DataLoaders: this is the one (of {source.dataset}) that "
            "takes the most time; the others are left unchanged"
        )
    around = Around(name=name, batches=each, wall=looked.wall, cpu=looked.cpu, anew=found is None)
    return replace(feed, loader=loader, around=around, remarks=tuple(remarks), held=found is not None)


def _name(thing: Any) -> str:
    """What to call it: its class, or the function that yields."""
    return str(getattr(thing, "__qualname__", "") or type(thing).__qualname__)


def _foreign(feed: Feed, looked: Looked) -> Feed:
    name = _name(feed.thing)
    why = (
        "its batches come from a DataLoader through a thread, or from a DataLoader that does not "
        "survive a pass"
        if looked.sources
        else "it contains no DataLoader"
    )
    remark = f"{name} is measured as it is; other settings cannot be tried: {why}"
    return replace(feed, around=Around(name=name), remarks=(remark,))


def _held(source: Source) -> DataLoader | None:
    """The DataLoader of this process that the copy went through: in both it is at the same place."""
    for one in gc.get_objects():
        if id(one) == source.place and isinstance(one, DataLoader):
            return one if type(one.dataset).__qualname__ == source.dataset else None
    return None


class _Begun(BaseException):
    """A pass through a DataLoader is about to begin, and is not to."""


def _made_by(feed: Feed) -> DataLoader | None:
    """The DataLoader that a pass makes, from a pass that ends before its first batch."""
    if feed.make is None and not _again(feed.thing):
        return None
    caught: list[DataLoader] = []

    class Catching(Silent):
        def begun(self, loader: DataLoader, iterator: Any) -> None:
            caught.append(loader)
            iterator._shutdown = True  # it is never finished, and has nothing to end
            raise _Begun

    hooks = Hooks(Catching())
    hooks.install()
    try:
        with forked.unchanged(), suppress(_Begun):
            for _ in feed.fresh():
                break
    finally:
        hooks.remove()
    return caught[0] if caught else None


def _change(loader: DataLoader, setting: Setting) -> None:
    """Give `loader` itself another setting."""
    like = alike(loader, setting)
    names = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "timeout")
    for name in (*names, "_DataLoader__multiprocessing_context", "_iterator"):
        if name in like.__dict__:
            loader.__dict__[name] = like.__dict__[name]


class _Changing(Silent):
    """Gives each loader of a dataset of that kind another setting as soon as it is made."""

    def __init__(self, dataset: type, setting: Setting) -> None:
        self._dataset, self._setting = dataset, setting

    def made(self, loader: DataLoader) -> None:
        if type(loader.dataset) is self._dataset:
            _change(loader, self._setting)

"""Determine what an object that yields batches is: a DataLoader, steps around one, or something else.

Its name does not matter. It is iterated in a copy of this process, where hooks observe which DataLoaders
yield batches, how many for each batch of the loop, and the time spent outside of them.
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
from gapless.loading.batches import is_bare, with_setting
from gapless.loading.hooks import LoaderHooks
from gapless.loading.looking import OBSERVE_SECONDS, ObservedFeed, ObservedLoader, SilentListener, observe
from gapless.model.loading import Setting
from gapless.model.loading_feed import Around
from gapless.model.source import SourceLine

DEFAULT_BATCH_SIZE = 32
"""Items in a batch if only a dataset is given."""
_MIN_TIME_AROUND = 0.01, 50_000
"""Time around a DataLoader below this share of a batch, or these nanoseconds, is ignored."""

Make = Callable[[], Any]


@dataclass(frozen=True)
class Feed:
    """What a loop iterates over: `thing`, its `loader` if it has one that can be changed, and what is
    `around` that (None: nothing). `make` creates it anew; `remarks` say what it was taken for.
    """

    thing: Any
    loader: DataLoader | None
    around: Around | None = None
    make: Make | None = None
    remarks: tuple[str, ...] = ()
    is_persistent: bool = True
    """Whether the loader exists before a pass, and is not created by each."""
    line: SourceLine | None = None
    """The user's line that creates the loader."""
    anew: bool = False
    """Whether copies of this process must create it anew, as they lack the threads it has started."""

    def fresh(self) -> Any:
        """Return an object that can be iterated once more, in a copy of this process."""
        gone = self.anew or not _is_repeatable(self.thing)
        return self.make() if self.make is not None and gone else self.thing

    @contextmanager
    def under(self, setting: Setting) -> Iterator[Callable[[], Any]]:
        """Return a function that gives the thing with its loader changed to `setting`; only in a copied
        process.
        """
        assert self.loader is not None
        if self.is_persistent:
            _change(self.loader, setting)
            yield lambda: self.thing
            return
        hooks = LoaderHooks(_SettingChanger(type(self.loader.dataset), setting))
        hooks.install()
        try:
            yield self.fresh
        finally:
            hooks.remove()


def identify_feed(thing: Any, make: Make | None = None, *, anew: bool = False) -> Feed:
    """Identify what `thing` is; `make` creates it anew, if possible (`anew`: required in each copied
    process).

    Raises:
        UsageError: objects of this kind yield no batches.
        LoaderError: the user's code fails.
    """
    if isinstance(thing, DataLoader) and is_bare(type(thing)):
        return Feed(thing, thing)
    if not isinstance(thing, DataLoader | IterableDataset) and _is_indexable(thing):
        return _feed_of_items(thing)
    if not hasattr(thing, "__iter__") or isinstance(thing, str | bytes):
        raise UsageError(f"{type(thing).__name__} yields no batches: pass a DataLoader or a dataset")
    if not forked.can_fork():
        return _direct_feed(thing)
    feed = Feed(thing, None, make=make, anew=anew)

    def work(tell: forked.Tell) -> ObservedFeed:
        return observe(feed.fresh, _name(thing), tell)

    looked = forked.run_in_copy(work, ObservedFeed, 10 * OBSERVE_SECONDS, lambda part: None)
    if looked.sources and not looked.threaded:
        return _feed_around_loader(feed, looked)
    if isinstance(thing, IterableDataset) and not looked.sources:
        return _feed_of_stream(thing, looked)
    return _feed_without_loader(feed, looked)


def _is_indexable(thing: Any) -> bool:
    """Whether items are accessed by index, as in a dataset."""
    return (
        hasattr(thing, "__getitem__")
        and hasattr(thing, "__len__")
        and not isinstance(thing, (Mapping, str, bytes, torch.Tensor, numpy.ndarray))
    )


def _is_repeatable(thing: Any) -> bool:
    """Whether it can be iterated again from its beginning."""
    return not isinstance(thing, Iterator) or hasattr(thing, "__len__")


def _feed_of_items(dataset: Any) -> Feed:
    remark = (
        f"this is a dataset ({type(dataset).__name__}): it is measured in batches of {DEFAULT_BATCH_SIZE}"
    )
    return Feed(dataset, DataLoader(dataset, batch_size=DEFAULT_BATCH_SIZE), remarks=(remark,))


def _feed_of_stream(dataset: Any, looked: ObservedFeed) -> Feed:
    """Put a stream in a DataLoader: of its items, or of the batches that it builds itself."""
    if looked.batched:
        remark = (
            f"this dataset ({type(dataset).__name__}) builds batches of {looked.batched} itself: it is "
            "measured in a DataLoader with batch_size=None"
        )
        return Feed(dataset, DataLoader(dataset, batch_size=None), remarks=(remark,))
    return _feed_of_items(dataset)


def _direct_feed(thing: Any) -> Feed:
    if isinstance(thing, DataLoader):
        return Feed(thing, thing)
    if isinstance(thing, IterableDataset):
        return _feed_of_items(thing)
    return Feed(thing, None, Around(name=type(thing).__qualname__))


def _feed_around_loader(feed: Feed, looked: ObservedFeed) -> Feed:
    """Return the feed of steps around the DataLoader that takes the most time."""
    source = looked.sources[0]
    persistent = _find_persistent(source)
    loader = persistent if persistent is not None else _catch_loader(feed)
    if loader is None:
        return _feed_without_loader(feed, looked)
    each = source.each
    name = _name(feed.thing)
    least = max(_MIN_TIME_AROUND[0] * looked.total, _MIN_TIME_AROUND[1])
    if each == 1 and looked.wall < least and len(looked.sources) == 1 and isinstance(feed.thing, DataLoader):
        return Feed(feed.thing, loader)
    remarks = []
    if persistent is None:
        remarks.append(f"{name} creates a new DataLoader for each pass")
    if len(looked.sources) > 1:
        remarks.append(
            f"{name} uses {len(looked.sources)} DataLoaders: this is the one (of {source.dataset}) that "
            "takes the most time; the others are left unchanged"
        )
    around = Around(name=name, batches=each, wall=looked.wall, cpu=looked.cpu, anew=persistent is None)
    return replace(
        feed, loader=loader, around=around, remarks=tuple(remarks), is_persistent=persistent is not None
    )


def _name(thing: Any) -> str:
    """Return its class, or the function that yields."""
    return str(getattr(thing, "__qualname__", "") or type(thing).__qualname__)


def _feed_without_loader(feed: Feed, looked: ObservedFeed) -> Feed:
    name = _name(feed.thing)
    why = (
        "its batches come from a DataLoader through a thread, or from a DataLoader that does not "
        "survive a pass"
        if looked.sources
        else "it contains no DataLoader"
    )
    remark = f"{name} is measured as it is; other settings cannot be tried: {why}"
    return replace(feed, around=Around(name=name), remarks=(remark,))


def _find_persistent(source: ObservedLoader) -> DataLoader | None:
    """Return the DataLoader of this process that the copy iterated: it has the same address in both."""
    for candidate in gc.get_objects():
        if id(candidate) == source.place and isinstance(candidate, DataLoader):
            return candidate if type(candidate.dataset).__qualname__ == source.dataset else None
    return None


class _PassBegins(BaseException):
    """Raised when a pass through a DataLoader begins, to stop it."""


def _catch_loader(feed: Feed) -> DataLoader | None:
    """Return the DataLoader that a pass creates, by stopping the pass before its first batch."""
    if feed.make is None and not _is_repeatable(feed.thing):
        return None
    caught: list[DataLoader] = []

    class Catching(SilentListener):
        def on_pass_begun(self, loader: DataLoader, iterator: Any) -> None:
            caught.append(loader)
            iterator._shutdown = True  # it never starts, so there is nothing to shut down
            raise _PassBegins

    hooks = LoaderHooks(Catching())
    hooks.install()
    try:
        with forked.preserve_random_state(), suppress(_PassBegins):
            for _ in feed.fresh():
                break
    finally:
        hooks.remove()
    return caught[0] if caught else None


def _change(loader: DataLoader, setting: Setting) -> None:
    """Change `loader` itself to another setting."""
    like = with_setting(loader, setting)
    names = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "timeout")
    for name in (*names, "_DataLoader__multiprocessing_context", "_iterator"):
        if name in like.__dict__:
            loader.__dict__[name] = like.__dict__[name]


class _SettingChanger(SilentListener):
    """Changes each new loader of a dataset class to another setting."""

    def __init__(self, dataset: type, setting: Setting) -> None:
        self._dataset, self._setting = dataset, setting

    def on_created(self, loader: DataLoader) -> None:
        if type(loader.dataset) is self._dataset:
            _change(loader, self._setting)

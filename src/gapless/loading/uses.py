"""`Uses`: record which loaders a script iterates, how often, and what they give to its training steps."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader

from gapless.loading.batches import setting_of
from gapless.loading.hooks import LoaderHooks
from gapless.loading.lines import calling_library, calling_line, source_line
from gapless.loading.nested import tensors_of
from gapless.loading.watching import SamplerWatch
from gapless.model.loading import Setting
from gapless.model.source import SourceLine

_MAX_USES = 64
"""Loaders told apart; a script that creates loaders in a loop has more, and these are ignored."""

_MAX_TENSORS_CHECKED = 256
"""Tensors of a dataset checked in each pass for being on the GPU."""

CallerPlace = tuple[tuple[str, int], str] | None


class LoaderUses:
    """The loaders created at one line and iterated at another.

    `loader` is the last of them without its iterator, so that no worker lives longer for it. It is kept to be
    measured after the run, when the function that created it has returned; one with tensors on the GPU, whose
    memory would be counted, only as long as the script keeps it.
    """

    def __init__(self, created_at: CallerPlace, iterated_at: CallerPlace, library: str) -> None:
        self._made, self._asked, self.library = created_at, iterated_at, library
        self._loader: Callable[[], DataLoader | None] = lambda: None
        self.setting = Setting()
        self.passes = self.batches = self.ended = 0
        self.later = self.waited = self.begun = self.firsts = 0
        self.fed = self.given = self.pending = 0
        self.before, self.since = 0, -1
        self.on_device = self.threaded = False

    @property
    def loader(self) -> DataLoader | None:
        """The last of the loaders; None if it is gone, or there was none."""
        return self._loader()

    def keep(self, loader: DataLoader) -> None:
        """Set the last loader."""
        if _on_device(loader):
            self._loader = weakref.ref(loader)
            return
        kept = without_iterator(loader)
        self._loader = lambda: kept

    @property
    def made(self) -> SourceLine | None:
        """The line that creates the loader; the line of the loop if that is unknown."""
        return _line(self._made or self._asked)

    @property
    def asked(self) -> SourceLine | None:
        """The line that iterates over it."""
        return _line(self._asked)

    @property
    def wait(self) -> float:
        """Mean nanoseconds until a batch came, without the first of each pass."""
        return self.waited / self.later if self.later else 0.0

    def per_step(self, steps: int) -> float:
        """Return the batches for each of `steps` that have ended."""
        if steps > self.since >= 0:
            return (self.given - self.before) / (steps - self.since)
        return self.given / max(steps, 1)

    @property
    def first(self) -> float:
        """Mean nanoseconds from the beginning of a pass to its first batch."""
        return self.firsts / self.begun if self.begun else 0.0


def _line(place: CallerPlace) -> SourceLine | None:
    return source_line(*place[0], place[1]) if place is not None else None


class _PassInProgress:
    def __init__(self, use: LoaderUses, began: int) -> None:
        self.use, self.began, self.batches = use, began, 0


class Uses:
    """Records from `start` to `stop`; call `stepped` at the end of each training step.

    It draws no random number and holds the dataset and the sampler of the last loader of each place.
    """

    def __init__(self) -> None:
        self.watched = SamplerWatch()
        self.steps = 0
        self._hooks = LoaderHooks(self)
        self._clock = self._hooks.clock
        self._lock = threading.Lock()
        self._made: dict[int, tuple[Any, CallerPlace, str]] = {}
        self._uses: dict[tuple[Any, ...], LoaderUses] = {}
        self._passes: weakref.WeakKeyDictionary[Any, _PassInProgress] = weakref.WeakKeyDictionary()

    def start(self) -> Uses:
        self._hooks.install()
        return self

    def stop(self) -> None:
        self._hooks.remove()

    def stepped(self) -> None:
        """Count the batches since the last step for the step that ends now."""
        self.steps += 1
        for use in tuple(self._uses.values()):
            if not use.pending:
                continue
            if use.since < 0:  # a loop that requests in advance has more before its first step
                use.before, use.since = use.pending, self.steps
            use.fed += 1
            use.given += use.pending
            use.pending = 0

    @property
    def uses(self) -> tuple[LoaderUses, ...]:
        """The recorded loaders, in the order of their first passes."""
        return tuple(self._uses.values())

    def line_of(self, loader: DataLoader | None) -> SourceLine | None:
        """Return the line that created `loader`; None if that is unknown."""
        creation = self._made.get(id(loader))
        return _line(creation[1]) if creation is not None and creation[0]() is loader else None

    # -- events of the hooks -------------------------------------------------------------------------

    def on_created(self, loader: DataLoader) -> None:
        """Record the line as long as the loader lives."""
        number = id(loader)
        gone = weakref.ref(loader, lambda _: self._made.pop(number, None))
        self._made[number] = (gone, calling_line(), calling_library())

    def on_pass_begun(self, loader: DataLoader, iterator: Any) -> None:
        self.watched.on_pass_begun(loader, iterator)
        use = self._use_of(loader)
        if use is None:
            return
        use.passes += 1
        use.setting = setting_of(loader)
        use.keep(loader)
        use.threaded |= threading.current_thread() is not threading.main_thread()
        self._passes[iterator] = _PassInProgress(use, self._clock())

    def on_batch(self, iterator: Any, batch: Any, request_time: int, got: int) -> None:
        current = self._passes.get(iterator)
        if current is None:
            return
        use = current.use
        use.batches += 1
        use.pending += 1
        if current.batches:
            use.later += 1
            use.waited += got - request_time
        else:
            use.begun += 1
            use.firsts += got - current.began
            use.on_device |= any(tensor.is_cuda for tensor in tensors_of(batch))
        current.batches += 1

    def on_pass_ended(self, iterator: Any) -> None:
        current = self._passes.pop(iterator, None)
        if current is not None:
            current.use.ended += 1

    def _use_of(self, loader: DataLoader) -> LoaderUses | None:
        creation = self._made.get(id(loader))
        created_at, library = (
            (creation[1], creation[2]) if creation is not None and creation[0]() is loader else (None, "")
        )
        iterated_at = calling_line()
        key = (created_at, iterated_at and iterated_at[0], type(loader.dataset).__qualname__)
        with self._lock:
            if key not in self._uses and len(self._uses) < _MAX_USES:
                self._uses[key] = LoaderUses(created_at, iterated_at, library)
            return self._uses.get(key)


def _on_device(loader: DataLoader) -> bool:
    """Whether the loader's dataset, sampler or collate function has tensors on the GPU, judged by the
    first.
    """
    parts = (loader.dataset, loader.collate_fn, loader.sampler, loader.batch_sampler)
    held = itertools.chain.from_iterable(tensors_of(getattr(part, "__dict__", {})) for part in parts)
    return any(tensor.is_cuda for tensor in itertools.islice(held, _MAX_TENSORS_CHECKED))


def without_iterator(loader: DataLoader) -> DataLoader:
    """Return a copy of the loader with the same dataset and sampler, without running workers."""
    kept = object.__new__(type(loader))
    kept.__dict__.update(loader.__dict__)
    kept.__dict__["_iterator"] = None
    return kept

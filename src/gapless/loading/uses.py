"""`Uses`: which loaders a script goes through, how often, and what they give to its training steps."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader

from gapless.loading.batches import setting_of
from gapless.loading.hooks import Hooks
from gapless.loading.lines import calling_library, calling_line, source_line
from gapless.loading.nested import tensors_of
from gapless.loading.watching import Watched
from gapless.model.loading import Setting
from gapless.model.source import SourceLine

_MOST = 64
"""Places that are told apart; a script that makes loaders by program has more, and they are left out."""

_LOOKED_AT = 256
"""Tensors of a dataset that are looked at, once in each pass, for whether they are on the GPU."""

Place = tuple[tuple[str, int], str] | None


class Use:
    """The loaders made at one line and gone through at another.

    `loader` is the last of them without its iterator, so that no worker lives longer for it. It is kept to be
    measured after the run, when the function that made it has returned; one with tensors on the GPU, which
    would be counted there, as long as the script has it.
    """

    def __init__(self, made: Place, asked: Place, library: str) -> None:
        self._made, self._asked, self.library = made, asked, library
        self._loader: Callable[[], DataLoader | None] = lambda: None
        self.setting = Setting()
        self.passes = self.batches = self.ended = 0
        self.later = self.waited = self.begun = self.firsts = 0
        self.fed = self.given = self.pending = 0
        self.before, self.since = 0, -1
        self.on_device = self.threaded = False

    @property
    def loader(self) -> DataLoader | None:
        """The last of the loaders; None where it is no more, or there was none."""
        return self._loader()

    def keep(self, loader: DataLoader) -> None:
        """`loader` is the last of them."""
        if _on_device(loader):
            self._loader = weakref.ref(loader)
            return
        kept = without_iterator(loader)
        self._loader = lambda: kept

    @property
    def made(self) -> SourceLine | None:
        """The line that makes the loader; that of the loop where nobody saw it being made."""
        return _line(self._made or self._asked)

    @property
    def asked(self) -> SourceLine | None:
        """The line that goes through it."""
        return _line(self._asked)

    @property
    def wait(self) -> float:
        """Mean nanoseconds until a batch came, those of each pass's first left out."""
        return self.waited / self.later if self.later else 0.0

    def per_step(self, steps: int) -> float:
        """Batches for each of `steps` that have ended."""
        if steps > self.since >= 0:
            return (self.given - self.before) / (steps - self.since)
        return self.given / max(steps, 1)

    @property
    def first(self) -> float:
        """Mean nanoseconds from the beginning of a pass to its first batch."""
        return self.firsts / self.begun if self.begun else 0.0


def _line(place: Place) -> SourceLine | None:
    return source_line(*place[0], place[1]) if place is not None else None


class _Pass:
    def __init__(self, use: Use, began: int) -> None:
        self.use, self.began, self.batches = use, began, 0


class Uses:
    """Looks on from `start` to `stop`; `stepped` is to be called when a training step ends.

    It draws no random number and holds the dataset and the sampler of the last loader of each place.
    """

    def __init__(self) -> None:
        self.watched = Watched()
        self.steps = 0
        self._hooks = Hooks(self)
        self._clock = self._hooks.clock
        self._lock = threading.Lock()
        self._made: dict[int, tuple[Any, Place, str]] = {}
        self._uses: dict[tuple[Any, ...], Use] = {}
        self._passes: weakref.WeakKeyDictionary[Any, _Pass] = weakref.WeakKeyDictionary()

    def start(self) -> Uses:
        self._hooks.install()
        return self

    def stop(self) -> None:
        self._hooks.remove()

    def stepped(self) -> None:
        """A training step ends: what has come since the one before was for it."""
        self.steps += 1
        for use in tuple(self._uses.values()):
            if not use.pending:
                continue
            if use.since < 0:  # a loop that asks in advance has more of them before its first step
                use.before, use.since = use.pending, self.steps
            use.fed += 1
            use.given += use.pending
            use.pending = 0

    @property
    def uses(self) -> tuple[Use, ...]:
        """What was seen, in the order of the first passes."""
        return tuple(self._uses.values())

    def line_of(self, loader: DataLoader | None) -> SourceLine | None:
        """The line that made `loader`; None where nobody saw it."""
        known = self._made.get(id(loader))
        return _line(known[1]) if known is not None and known[0]() is loader else None

    # -- what the hooks tell -------------------------------------------------------------------------

    def made(self, loader: DataLoader) -> None:
        """Remember the line, for as long as the loader lives."""
        number = id(loader)
        gone = weakref.ref(loader, lambda _: self._made.pop(number, None))
        self._made[number] = (gone, calling_line(), calling_library())

    def begun(self, loader: DataLoader, iterator: Any) -> None:
        self.watched.begun(loader, iterator)
        use = self._of(loader)
        if use is None:
            return
        use.passes += 1
        use.setting = setting_of(loader)
        use.keep(loader)
        use.threaded |= threading.current_thread() is not threading.main_thread()
        self._passes[iterator] = _Pass(use, self._clock())

    def came(self, iterator: Any, batch: Any, asked: int, got: int) -> None:
        current = self._passes.get(iterator)
        if current is None:
            return
        use = current.use
        use.batches += 1
        use.pending += 1
        if current.batches:
            use.later += 1
            use.waited += got - asked
        else:
            use.begun += 1
            use.firsts += got - current.began
            use.on_device |= any(tensor.is_cuda for tensor in tensors_of(batch))
        current.batches += 1

    def ended(self, iterator: Any) -> None:
        current = self._passes.pop(iterator, None)
        if current is not None:
            current.use.ended += 1

    def _of(self, loader: DataLoader) -> Use | None:
        known = self._made.get(id(loader))
        made, library = (known[1], known[2]) if known is not None and known[0]() is loader else (None, "")
        asked = calling_line()
        key = (made, asked and asked[0], type(loader.dataset).__qualname__)
        with self._lock:
            if key not in self._uses and len(self._uses) < _MOST:
                self._uses[key] = Use(made, asked, library)
            return self._uses.get(key)


def _on_device(loader: DataLoader) -> bool:
    """Whether what the loader goes through, or goes by, has tensors on the GPU: of many the first tell."""
    parts = (loader.dataset, loader.collate_fn, loader.sampler, loader.batch_sampler)
    held = itertools.chain.from_iterable(tensors_of(getattr(part, "__dict__", {})) for part in parts)
    return any(tensor.is_cuda for tensor in itertools.islice(held, _LOOKED_AT))


def without_iterator(loader: DataLoader) -> DataLoader:
    """The same loader once more, over the same dataset and sampler, without workers that may be at work."""
    kept = object.__new__(type(loader))
    kept.__dict__.update(loader.__dict__)
    kept.__dict__["_iterator"] = None
    return kept

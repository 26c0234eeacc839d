"""Hooks in torch's loaders: where one is made, where a pass through it begins, when a batch comes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any, Protocol

from torch.utils.data import DataLoader

from gapless.torch_internals import LoaderIter


class Listener(Protocol):
    """Who is told."""

    def made(self, loader: DataLoader) -> None:
        """`loader` has been made."""

    def begun(self, loader: DataLoader, iterator: Any) -> None:
        """A pass through `loader` is about to begin: nothing of it has been drawn yet."""

    def came(self, iterator: Any, batch: Any, asked: Any, got: Any) -> None:
        """`batch` was asked for and came at these readings of the clock."""

    def ended(self, iterator: Any) -> None:
        """There are no more: the pass has come to its end."""


class Hooks:
    """Tells `listener`, in this process, between `install` and `remove`.

    The iterators' base class is where all loaders meet, torchdata's StatefulDataLoader and those that a
    library derives as well, whenever they are imported.
    """

    def __init__(self, listener: Listener, clock: Callable[[], Any] = time.perf_counter_ns) -> None:
        self._listener, self.clock = listener, clock
        self._pid = os.getpid()
        self._on = False
        self._undo: list[tuple[type, str, Any, Any]] = []

    def install(self) -> None:
        """Begin to tell."""
        self._on = True
        self._set(DataLoader, "__init__", self._made)
        self._set(LoaderIter, "__init__", self._begun)
        self._set(LoaderIter, "_reset", self._again)
        self._set(LoaderIter, "__next__", self._next)

    def remove(self) -> None:
        """Say no more. What somebody has wrapped since stays where it is, and only passes on."""
        self._on = False
        for owner, name, ours, theirs in reversed(self._undo):
            if owner.__dict__.get(name) is ours:
                setattr(owner, name, theirs)
        self._undo.clear()

    def _set(self, owner: type, name: str, make: Callable[[Any], Any]) -> None:
        real = owner.__dict__[name]
        ours = wraps(real)(make(real))
        setattr(owner, name, ours)
        self._undo.append((owner, name, ours, real))

    def _tell(self, what: Callable[..., None], *told: Any) -> None:
        """Whatever goes wrong in looking on is no matter of the script's."""
        if self._on and os.getpid() == self._pid:  # a worker's own loaders are its own affair
            with suppress(Exception):
                what(*told)

    def _made(self, real: Any) -> Any:
        def made(loader: Any, *args: Any, **kwargs: Any) -> None:
            real(loader, *args, **kwargs)
            self._tell(self._listener.made, loader)

        return made

    def _begun(self, real: Any) -> Any:
        def begun(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            self._tell(self._listener.begun, loader, iterator)
            real(iterator, loader, *args, **kwargs)

        return begun

    def _again(self, real: Any) -> Any:
        def again(iterator: Any, loader: Any, first_iter: bool = False, **kwargs: Any) -> None:
            if not first_iter:  # workers that are kept
                self._tell(self._listener.begun, loader, iterator)
            real(iterator, loader, first_iter, **kwargs)

        return again

    def _next(self, real: Any) -> Any:
        clock = self.clock

        def following(iterator: Any) -> Any:
            if not self._on:
                return real(iterator)
            asked = clock()
            try:
                batch = real(iterator)
            except StopIteration:
                self._tell(self._listener.ended, iterator)
                raise
            got = clock()
            self._tell(self._listener.came, iterator, batch, asked, got)
            return batch

        return following

"""Hook torch's loaders: creation, beginning of a pass, arrival of a batch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any, Protocol

from torch.utils.data import DataLoader

from gapless.torch_internals import LoaderIter


class LoaderListener(Protocol):
    """Receives the events of loaders."""

    def on_created(self, loader: DataLoader) -> None:
        """A loader was created."""

    def on_pass_begun(self, loader: DataLoader, iterator: Any) -> None:
        """A pass through `loader` is about to begin: nothing has been drawn yet."""

    def on_batch(self, iterator: Any, batch: Any, request_time: Any, got: Any) -> None:
        """`batch` arrived; the times are readings of the hooks' clock."""

    def on_pass_ended(self, iterator: Any) -> None:
        """A pass has come to its end."""


class LoaderHooks:
    """Calls `listener` in this process, between `install` and `remove`.

    Hooks the iterators' base class, which all loaders share: torchdata's StatefulDataLoader and those of
    libraries too, whenever they are imported.
    """

    def __init__(self, listener: LoaderListener, clock: Callable[[], Any] = time.perf_counter_ns) -> None:
        self._listener, self.clock = listener, clock
        self._pid = os.getpid()
        self._on = False
        self._undo: list[tuple[type, str, Any, Any]] = []

    def install(self) -> None:
        """Start calling the listener."""
        self._on = True
        self._set(DataLoader, "__init__", self._wrap_init)
        self._set(LoaderIter, "__init__", self._wrap_iterator_init)
        self._set(LoaderIter, "_reset", self._wrap_reset)
        self._set(LoaderIter, "__next__", self._wrap_next)

    def remove(self) -> None:
        """Stop. A method that was wrapped again since stays, and only passes calls on."""
        self._on = False
        for owner, name, ours, original in reversed(self._undo):
            if owner.__dict__.get(name) is ours:
                setattr(owner, name, original)
        self._undo.clear()

    def _set(self, owner: type, name: str, make: Callable[[Any], Any]) -> None:
        real = owner.__dict__[name]
        ours = wraps(real)(make(real))
        setattr(owner, name, ours)
        self._undo.append((owner, name, ours, real))

    def _notify(self, callback: Callable[..., None], *values: Any) -> None:
        """Call the listener; its errors must not affect the script."""
        if self._on and os.getpid() == self._pid:  # not for loaders of a worker
            with suppress(Exception):
                callback(*values)

    def _wrap_init(self, real: Any) -> Any:
        def init_and_notify(loader: Any, *args: Any, **kwargs: Any) -> None:
            real(loader, *args, **kwargs)
            self._notify(self._listener.on_created, loader)

        return init_and_notify

    def _wrap_iterator_init(self, real: Any) -> Any:
        def begun(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            self._notify(self._listener.on_pass_begun, loader, iterator)
            real(iterator, loader, *args, **kwargs)

        return begun

    def _wrap_reset(self, real: Any) -> Any:
        def again(iterator: Any, loader: Any, first_iter: bool = False, **kwargs: Any) -> None:
            if not first_iter:  # persistent workers begin a pass here
                self._notify(self._listener.on_pass_begun, loader, iterator)
            real(iterator, loader, first_iter, **kwargs)

        return again

    def _wrap_next(self, real: Any) -> Any:
        clock = self.clock

        def following(iterator: Any) -> Any:
            if not self._on:
                return real(iterator)
            request_time = clock()
            try:
                batch = real(iterator)
            except StopIteration:
                self._notify(self._listener.on_pass_ended, iterator)
                raise
            got = clock()
            self._notify(self._listener.on_batch, iterator, batch, request_time, got)
            return batch

        return following

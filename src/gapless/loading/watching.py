"""`watch`: check what a training loop does with its samplers between epochs."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler

from gapless.loading import digests
from gapless.loading.hooks import LoaderHooks
from gapless.loading.lines import calling_line, source_line
from gapless.loading.simulated import list_samplers
from gapless.model.loading_mistakes import Mistake, mistake
from gapless.model.source import SourceLine


class SamplerWatch:
    """What `watch` records. `mistakes` can be read at any time."""

    def __init__(self) -> None:
        self._passes: list[_SamplerPasses] = []
        self._lock = threading.Lock()

    @property
    def mistakes(self) -> tuple[Mistake, ...]:
        """GAP316 if ``set_epoch`` is never called, GAP315 if the order is seeded anew in each epoch."""
        with self._lock:
            candidates = [passes.mistake() for passes in self._passes]
        return tuple(mistake for mistake in candidates if mistake is not None)

    def on_created(self, loader: DataLoader) -> None:
        """Ignored."""

    def on_batch(self, iterator: Any, batch: Any, request_time: int, got: int) -> None:
        """Ignored."""

    def on_pass_ended(self, iterator: Any) -> None:
        """Ignored."""

    def on_pass_begun(self, loader: DataLoader, iterator: Any) -> None:
        """Compare the sampler's state with that of the last pass."""
        caller = calling_line()
        if caller is None:
            return
        place, function = caller
        for sampler in list_samplers(loader):
            state = _state(sampler)
            if state is None:
                continue
            with self._lock:
                passes = self._passes_of(sampler, place, function)
                passes.count += 1
                passes.same += state == passes.state
                passes.state = state

    def _passes_of(self, sampler: Any, place: tuple[str, int], function: str) -> _SamplerPasses:
        for passes in self._passes:
            if passes.sampler() is sampler and passes.place == place:
                return passes
        self._passes.append(_SamplerPasses(sampler, place, function))
        return self._passes[-1]


class _SamplerPasses:
    """The passes that one line of the user's makes with one sampler."""

    def __init__(self, sampler: Any, place: tuple[str, int], function: str) -> None:
        self.sampler, self.kind = _reference(sampler), type(sampler)
        self.place, self.function = place, function
        self.count, self.same = 0, 0
        self.state: Any = None

    def mistake(self) -> Mistake | None:
        if not self.same:
            return None
        line: SourceLine = source_line(*self.place, self.function)
        counts = {"epochs": self.count, "same": self.same}
        if issubclass(self.kind, RandomSampler):
            return mistake(
                "GAP315",
                line,
                f"{self.same + 1} of {self.count} epochs shuffle from the same random state",
                "seed once before the loop over epochs, not inside it",
                **counts,
            )
        observation = (
            f"{self.count} epochs, and {self.same + 1} of them in the same order: "
            f"{self.kind.__name__}.set_epoch is never called between them"
        )
        return mistake(
            "GAP316",
            line,
            observation,
            "call `loader.sampler.set_epoch(epoch)` at the start of every epoch",
            **counts,
        )


def _reference(sampler: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(sampler)
    except TypeError:
        return lambda: sampler


def _state(sampler: Any) -> Any:
    """Return what determines the order of the next pass; None if unknown or irrelevant."""
    if getattr(sampler, "shuffle", True) is False:
        return None
    if isinstance(sampler, RandomSampler):
        generator = sampler.generator
        state = torch.get_rng_state() if generator is None else generator.get_state()
        return digests.digest_state(state)
    epoch = getattr(sampler, "epoch", None)
    return (epoch,) if callable(getattr(sampler, "set_epoch", None)) and isinstance(epoch, int) else None


@contextmanager
def watch() -> Iterator[SamplerWatch]:
    """Check a training loop while it runs::
        with gapless.loading.watch() as seen:
            train()
        print(*seen.mistakes, sep="\\n")

    Reported are passes that begin at the same line of the loop with a sampler that would shuffle as before: a
    DistributedSampler (or another with ``set_epoch``) whose epoch has not changed, and random orders that
    begin in the same random state. It costs some microseconds per pass.
    """
    watched = SamplerWatch()
    hooks = LoaderHooks(watched)
    hooks.install()
    try:
        yield watched
    finally:
        hooks.remove()

"""Checks that are counted on the device and reported later: they stay on and cost no wait in an update."""

from __future__ import annotations

import atexit
import re
import sys
import threading
import weakref
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from gapless.metrics import faults
from gapless.metrics.faults import Complaint
from gapless.transfer import Reading

Delivery = Literal["compute", "later", "off"]
"""When checks are reported: with the next ``compute`` (which reads the counts: one wait), as soon as they
have arrived by themselves (no wait; at the end of a later call), or never (nothing is counted)."""

SLOTS = 8
"""Kinds of checks that one metric can tell apart; more share the last."""


class Check(NamedTuple):
    """What is wrong, in words with ``{n}`` in it, and whether that is an error or worth a warning."""

    words: str
    error: bool = True

    def told(self, n: int) -> str:
        """The words for so many: ``1 value was``, ``2 values were``."""
        text = self.words.format(n=n)
        return re.sub(r"^1 (\w+)s were\b", r"1 \1 was", text)


@dataclass(eq=False)
class Counter:
    """What one metric has counted since its last report.

    `counts` holds an int64 tensor (SLOTS,) for each device that has counted. `owed` says that something was
    counted, `waiting` that a check asked for by the metric's options was among it: that is worth a read. It
    is copied and pickled with its metric; a copy under way is not.
    """

    delivery: Delivery = "compute"
    name: str = ""
    kinds: list[Check] = field(default_factory=list)
    counts: dict[torch.device, Tensor] = field(default_factory=dict)
    waiting: bool = False
    owed: bool = False
    silent: int = 0
    noted: list[tuple[Check, int]] = field(default_factory=list)
    copies: list[tuple[Reading, bool]] = field(default_factory=list)
    """On their way to the host, and whether among them is one that was asked for."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Counter:
        made = super().__new__(cls)
        _live.add(made)
        return made

    def __del__(self) -> None:
        if not sys.is_finalizing() and self.__dict__ and (self.owed or self.copies or self.noted):
            _gone.append(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "copies": [], "silent": 0}

    def note(self, check: Check, n: int) -> None:
        """Keep what the host knows by now for the next report."""
        if n and self.delivery != "off":
            self.noted.append((check, n))

    def take_noted(self) -> list[tuple[Check, int]]:
        noted, self.noted = self.noted, []
        return noted

    def add(self, check: Check, bad: Tensor, asked: bool) -> None:
        """Count `bad`, a 0-dim integer or a mask, under `check`. Waits never."""
        if check not in self.kinds:
            if len(self.kinds) == SLOTS:
                check = self.kinds[-1]
            else:
                self.kinds.append(check)
        counts = self.counts.get(bad.device)
        if counts is None:
            counts = self.counts[bad.device] = torch.zeros(SLOTS, dtype=torch.int64, device=bad.device)
        with torch.no_grad():
            counts[self.kinds.index(check)].add_(bad.sum() if bad.dim() else bad)
        self.owed = True
        self.waiting = self.waiting or asked

    def found(self, values: Iterable[int]) -> list[tuple[Check, int]]:
        """The checks that failed, and how often, by `values`: counts in order of the slots."""
        return [(check, n) for check, n in zip(self.kinds, values, strict=False) if n]

    def clear(self) -> None:
        for counts in self.counts.values():
            counts.zero_()
        self.waiting = self.owed = False

    def news(self, wait: bool = False) -> list[tuple[Check, int]]:
        """What nobody was told of yet, as far as it has arrived; sends what was counted since on its way.

        Waits never, unless it is to `wait` for what was asked for.
        """
        values = self.arrived(wait)
        if self.owed and not self.copies:
            away = {device: counts for device, counts in self.counts.items() if device.type == "cuda"}
            here = [counts.tolist() for device, counts in self.counts.items() if device not in away]
            values = [sum(column) for column in zip(values, *here, strict=True)]
            self.copies = [(Reading(counts), self.waiting) for counts in away.values()]
            self.clear()
        return self.take_noted() + self.found(values)

    def arrived(self, wait: bool = False) -> list[int]:
        """Counts that have reached the host since the last call, summed up; `wait` for those that were asked
        for.
        """
        total = [0] * SLOTS
        for reading, asked in list(self.copies):
            if reading.ready() or (wait and asked):
                self.copies.remove((reading, asked))
                total = [a + b for a, b in zip(total, reading.result().tolist(), strict=True)]
        return total


_live: weakref.WeakSet[Counter] = weakref.WeakSet()
_gone: list[Counter] = []
"""Those whose metrics are gone before they were told of."""


@atexit.register
def tell_the_rest() -> None:
    """When the process ends: what nobody was told of. **This waits** for the device."""
    found: list[tuple[str, Check, int]] = []
    with suppress(RuntimeError):  # of a device that is no more: then nothing can be said
        for counter in (*_live, *_gone):
            rows = [counts.tolist() for counts in counter.counts.values() if counter.owed]
            rows += [reading.result().tolist() for reading, _ in counter.copies]
            values = [sum(column) for column in zip(*rows, strict=True)]
            told = [*counter.take_noted(), *counter.found(values)]
            found += [(counter.name, check, n) for check, n in told]
    for name, check, n in found:
        sys.stderr.write(f"gapless.metrics.torchmetrics: {name}: {check.told(n)}\n")


_current = threading.local()


def count_for(owner: Any) -> Any:
    """From now on `report` counts for `owner`, a metric that has a counter, or for none. Returns the one
    before.
    """
    outer = getattr(_current, "owner", None)
    _current.owner = owner
    return outer


def report(words: str, bad: Tensor, error: bool = True, asked: bool = True) -> None:
    """Count `bad` (a mask or a 0-dim integer) for the metric that is being updated.

    What was not `asked` for, a check where TorchMetrics has none, is told when it has arrived and never
    waited for.
    """
    counter = counter_of(getattr(_current, "owner", None))
    if counter is not None and counter.delivery != "off":
        counter.add(Check(words, error), bad, asked)


def checks_are_on() -> bool:
    """Whether what is counted now will be told to anyone."""
    counter = counter_of(getattr(_current, "owner", None))
    return counter is not None and counter.delivery != "off"


def counter_of(metric: Any) -> Counter | None:
    """The metric's counter, if it has one."""
    found = getattr(metric, "__dict__", {}).get("_unwaited_checks")
    return found if isinstance(found, Counter) else None


def deliver(metrics: Iterable[Any]) -> None:
    """Read the counts of `metrics`, in one wait for all on one device, and tell what is wrong.

    Raises:
        RuntimeError: a check failed that is an error. What is only worth a warning is warned of before.
    """
    members = [(metric, counter) for metric in metrics if (counter := counter_of(metric))]
    read = [(metric, counter) for metric, counter in members if counter.waiting]
    by_device: dict[torch.device, list[tuple[Any, Counter]]] = {}
    for metric, counter in read:
        for device in counter.counts:
            by_device.setdefault(device, []).append((metric, counter))
    found: list[tuple[Any, Check, int]] = []
    for device, counted in by_device.items():
        values = torch.stack([counter.counts[device] for _, counter in counted]).tolist()
        for (metric, counter), row in zip(counted, values, strict=True):
            found += [(metric, check, n) for check, n in counter.found(row)]
    for _, counter in read:
        counter.clear()
    found += [(metric, check, n) for metric, counter in members for check, n in counter.news(wait=True)]
    tell(found)


def poll(metric: Any) -> None:
    """Tell what has arrived by itself, and send on its way what has been counted since. Waits never."""
    counter = counter_of(metric)
    if counter is None or counter.silent:
        return
    tell([(metric, check, n) for check, n in counter.news()])


def tell(found: list[tuple[Any, Check, int]], warn_only: bool = False) -> None:
    """Warn of, or raise, what failed: first the warnings, then all errors in one."""
    since = "(in updates since the last report)"
    complaints = [
        Complaint(f"{type(metric).__name__}: {check.told(n)} {since}", check.error)
        for metric, check, n in found
    ]
    faults.deliver(complaints, errors=not warn_only)

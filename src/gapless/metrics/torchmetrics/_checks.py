"""Checks that are counted on the device and reported later, so that an update does not wait for them."""

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
"""When checks are reported: with the next ``compute`` (which reads the counts: one wait), at the end of a
later call once they have arrived (no wait), or never (nothing is counted)."""

SLOTS = 8
"""Kinds of checks that one metric counts separately; further kinds share the last slot."""


class Check(NamedTuple):
    """A message with ``{n}`` in it, and whether it is an error or a warning."""

    words: str
    error: bool = True

    def describe(self, n: int) -> str:
        """Return the message for `n` values, with a singular for one: ``1 value was``, ``2 values were``."""
        text = self.words.format(n=n)
        return re.sub(r"^1 (\w+)s were\b", r"1 \1 was", text)


@dataclass(eq=False)
class Counter:
    """The failed checks of one metric since its last report.

    `counts` holds an int64 tensor (SLOTS,) for each device. `owed` says that something was counted, `waiting`
    that this includes a check requested by the metric's options, for which `compute` reads the counts. It is
    copied and pickled with its metric, without `copies`.
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
    """Counts on their way to the host, and whether they include a requested check."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Counter:
        counter = super().__new__(cls)
        _live.add(counter)
        return counter

    def __del__(self) -> None:
        if not sys.is_finalizing() and self.__dict__ and (self.owed or self.copies or self.noted):
            _unreported.append(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "copies": [], "silent": 0}

    def note(self, check: Check, n: int) -> None:
        """Keep the result of a check that the host knows already for the next report."""
        if n and self.delivery != "off":
            self.noted.append((check, n))

    def take_noted(self) -> list[tuple[Check, int]]:
        """Return the results kept by :meth:`note`, and forget them."""
        noted, self.noted = self.noted, []
        return noted

    def add(self, check: Check, bad: Tensor, requested: bool) -> None:
        """Count `bad`, a 0-dim integer or a mask, under `check`. Never waits."""
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
        self.waiting = self.waiting or requested

    def failed_checks(self, values: Iterable[int]) -> list[tuple[Check, int]]:
        """Return the checks that failed and how often, from `values`: counts in order of the slots."""
        return [(check, n) for check, n in zip(self.kinds, values, strict=False) if n]

    def clear(self) -> None:
        for counts in self.counts.values():
            counts.zero_()
        self.waiting = self.owed = False

    def collect_failures(self, wait: bool = False) -> list[tuple[Check, int]]:
        """Return unreported failures that have arrived, and start copying later counts to the host.

        Never waits, unless `wait` is set: then for requested checks.
        """
        values = self.take_arrived(wait)
        if self.owed and not self.copies:
            away = {device: counts for device, counts in self.counts.items() if device.type == "cuda"}
            here = [counts.tolist() for device, counts in self.counts.items() if device not in away]
            values = [sum(column) for column in zip(values, *here, strict=True)]
            self.copies = [(Reading(counts), self.waiting) for counts in away.values()]
            self.clear()
        return self.take_noted() + self.failed_checks(values)

    def take_arrived(self, wait: bool = False) -> list[int]:
        """Return the sum of counts that have arrived since the last call; with `wait`, wait for
        requested checks.
        """
        total = [0] * SLOTS
        for reading, requested in list(self.copies):
            if reading.ready() or (wait and requested):
                self.copies.remove((reading, requested))
                total = [a + b for a, b in zip(total, reading.result().tolist(), strict=True)]
        return total


_live: weakref.WeakSet[Counter] = weakref.WeakSet()
_unreported: list[Counter] = []
"""Counters of deleted metrics with failures that were not reported."""


@atexit.register
def report_at_exit() -> None:
    """Write failures that were never reported to stderr at exit. **This waits** for the device."""
    failures: list[tuple[str, Check, int]] = []
    with suppress(RuntimeError):  # the device may be gone already
        for counter in (*_live, *_unreported):
            rows = [counts.tolist() for counts in counter.counts.values() if counter.owed]
            rows += [reading.result().tolist() for reading, _ in counter.copies]
            values = [sum(column) for column in zip(*rows, strict=True)]
            failed = [*counter.take_noted(), *counter.failed_checks(values)]
            failures += [(counter.name, check, n) for check, n in failed]
    for name, check, n in failures:
        sys.stderr.write(f"gapless.metrics.torchmetrics: {name}: {check.describe(n)}\n")


_current = threading.local()


def set_counting_metric(owner: Any) -> Any:
    """Make `report` count for `owner`, a metric with a counter, or for none; return the previous owner."""
    outer = getattr(_current, "owner", None)
    _current.owner = owner
    return outer


def report(words: str, bad: Tensor, error: bool = True, requested: bool = True) -> None:
    """Count `bad` (a mask or a 0-dim integer) for the metric that is being updated.

    A check that was not `requested`, where TorchMetrics has none, is reported once it has arrived, without a
    wait.
    """
    counter = counter_of(getattr(_current, "owner", None))
    if counter is not None and counter.delivery != "off":
        counter.add(Check(words, error), bad, requested)


def checks_are_on() -> bool:
    """Whether failures counted now will be reported."""
    counter = counter_of(getattr(_current, "owner", None))
    return counter is not None and counter.delivery != "off"


def counter_of(metric: Any) -> Counter | None:
    """Return the metric's counter, if it has one."""
    counter = getattr(metric, "__dict__", {}).get("_unwaited_checks")
    return counter if isinstance(counter, Counter) else None


def deliver_checks(metrics: Iterable[Any]) -> None:
    """Read the counts of `metrics`, with one wait per device, and warn or raise.

    Raises:
        RuntimeError: a check failed that is an error. Warnings are issued first.
    """
    members = [(metric, counter) for metric in metrics if (counter := counter_of(metric))]
    read = [(metric, counter) for metric, counter in members if counter.waiting]
    by_device: dict[torch.device, list[tuple[Any, Counter]]] = {}
    for metric, counter in read:
        for device in counter.counts:
            by_device.setdefault(device, []).append((metric, counter))
    failures: list[tuple[Any, Check, int]] = []
    for device, counted in by_device.items():
        values = torch.stack([counter.counts[device] for _, counter in counted]).tolist()
        for (metric, counter), row in zip(counted, values, strict=True):
            failures += [(metric, check, n) for check, n in counter.failed_checks(row)]
    for _, counter in read:
        counter.clear()
    failures += [
        (metric, check, n) for metric, counter in members for check, n in counter.collect_failures(wait=True)
    ]
    deliver_failures(failures)


def poll(metric: Any) -> None:
    """Report failures that have arrived, and start copying later counts. Never waits."""
    counter = counter_of(metric)
    if counter is None or counter.silent:
        return
    deliver_failures([(metric, check, n) for check, n in counter.collect_failures()])


def deliver_failures(failures: list[tuple[Any, Check, int]], warn_only: bool = False) -> None:
    """Warn of failed checks, then raise all errors in one."""
    since = "(in updates since the last report)"
    complaints = [
        Complaint(f"{type(metric).__name__}: {check.describe(n)} {since}", check.error)
        for metric, check, n in failures
    ]
    faults.deliver(complaints, errors=not warn_only)

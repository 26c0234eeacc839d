"""What `unwait` tells of what it did: text for a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gapless.metrics.torchmetrics._measured import Waits

WIDTH = 80
CHECKS = (
    "checks cost one additional sync in each compute, one in total for a whole collection, none with "
    '`checks="later"`'
)


@dataclass(frozen=True)
class MetricChanges:
    """What was changed in one metric, and what of it still waits.

    `path` is where it was found, empty for the metric itself. `waits` are counts for its class with options
    of the same kind, None where none were made.
    """

    path: str
    name: str
    changed: tuple[str, ...]
    left: tuple[str, ...]
    waits: Waits | None = None

    @property
    def label(self) -> str:
        """The path, and the class where the path does not end in it."""
        if not self.path or self.path.rpartition(".")[2] == self.name:
            return self.path or self.name
        return f"{self.path} ({self.name})"

    def __str__(self) -> str:
        return "\n".join(render([self]))


def _wrapped(text: str, first: str, rest: str | None = None) -> list[str]:
    rest = " " * len(first) if rest is None else rest
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def render(changes: Iterable[MetricChanges], strange: Iterable[str] = (), version: str = "") -> Iterator[str]:
    """The lines of a report: waits, what was changed and what still waits, each text once for all it is true
    of.
    """
    changes = list(changes)
    yield from _waits_table(changes)
    alone = len(changes) == 1
    yield from _texts("changed", [(one.label, one.changed) for one in changes], alone)
    if not any(one.changed for one in changes):
        yield "changed: nothing"
    yield from _texts("still", [(one.label, one.left) for one in changes], alone)
    strange = list(strange)
    if strange:
        names = ", ".join(strange)
        yield from _wrapped(
            f"left unchanged, because TorchMetrics {version} has different code for it: {names}", ""
        )


def _waits_table(changes: list[MetricChanges]) -> Iterator[str]:
    counted = [(one.label, one.waits) for one in changes if one.waits is not None]
    if not counted:
        yield from _wrapped(", ".join(one.label for one in changes), "")
        return
    width = min(46, max(len(label) for label, _ in counted))
    yield f"{'syncs per':{width}}  {'update':^11}  {'compute':^11}".rstrip()
    for label, waits in counted:
        if len(label) > width:
            yield from _wrapped(label, "")
            label = ""
        update = f"{waits.update:>4} → {waits.update_unwaited:<4}"
        compute = f"{waits.compute:>4} → {waits.compute_unwaited:<4}"
        yield f"{label:{width}}  {update}  {compute}".rstrip()
    yield from _wrapped("as counted for these classes with typical inputs", "  ")
    if any(waits.checks for _, waits in counted):
        yield from _wrapped(CHECKS, "  ")


def _texts(head: str, found: list[tuple[str, tuple[str, ...]]], alone: bool) -> Iterator[str]:
    labels: dict[str, list[str]] = {}
    for label, texts in found:
        for text in texts:
            labels.setdefault(text, []).append(label)
    if labels:
        yield head
    for text, of in labels.items():
        yield from _wrapped(text, "  ")
        if not alone:
            yield from _wrapped(", ".join(of), "    · ", "      ")

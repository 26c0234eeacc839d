"""Render the report of `unwait`: text for a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gapless.metrics.torchmetrics._measured import WaitCounts

WIDTH = 80
"""Columns of the report: those of a standard terminal."""
CHECKS_NOTE = (
    "checks cost one additional sync in each compute, one in total for a whole collection, none with "
    '`checks="later"`'
)


@dataclass(frozen=True)
class MetricChanges:
    """What was changed in one metric, and what in it still waits.

    `path` is where it was found, empty for the metric itself. `waits` are counts for its class with the same
    kind of options, None if there are none.
    """

    path: str
    name: str
    changed: tuple[str, ...]
    left: tuple[str, ...]
    waits: WaitCounts | None = None

    @property
    def label(self) -> str:
        """The path, with the class unless the path ends in it."""
        if not self.path or self.path.rpartition(".")[2] == self.name:
            return self.path or self.name
        return f"{self.path} ({self.name})"

    def __str__(self) -> str:
        return "\n".join(render_changes([self]))


def _wrap(text: str, first: str, rest: str | None = None) -> list[str]:
    rest = " " * len(first) if rest is None else rest
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def render_changes(
    changes: Iterable[MetricChanges], unmatched: Iterable[str] = (), version: str = ""
) -> Iterator[str]:
    """Yield the lines of a report: waits, changes and remaining waits, each text once for all metrics it
    applies to.
    """
    changes = list(changes)
    yield from _waits_table(changes)
    alone = len(changes) == 1
    yield from _render_texts("changed", [(change.label, change.changed) for change in changes], alone)
    if not any(change.changed for change in changes):
        yield "changed: nothing"
    yield from _render_texts("still", [(change.label, change.left) for change in changes], alone)
    unmatched = list(unmatched)
    if unmatched:
        names = ", ".join(unmatched)
        yield from _wrap(
            f"left unchanged, because TorchMetrics {version} has different code for it: {names}", ""
        )


def _waits_table(changes: list[MetricChanges]) -> Iterator[str]:
    counted = [(change.label, change.waits) for change in changes if change.waits is not None]
    if not counted:
        yield from _wrap(", ".join(change.label for change in changes), "")
        return
    width = min(46, max(len(label) for label, _ in counted))
    yield f"{'syncs per':{width}}  {'update':^11}  {'compute':^11}".rstrip()
    for label, waits in counted:
        if len(label) > width:
            yield from _wrap(label, "")
            label = ""
        update = f"{waits.update:>4} → {waits.update_unwaited:<4}"
        compute = f"{waits.compute:>4} → {waits.compute_unwaited:<4}"
        yield f"{label:{width}}  {update}  {compute}".rstrip()
    yield from _wrap("as counted for these classes with typical inputs", "  ")
    if any(waits.checks for _, waits in counted):
        yield from _wrap(CHECKS_NOTE, "  ")


def _render_texts(head: str, labelled_texts: list[tuple[str, tuple[str, ...]]], alone: bool) -> Iterator[str]:
    labels: dict[str, list[str]] = {}
    for label, texts in labelled_texts:
        for text in texts:
            labels.setdefault(text, []).append(label)
    if labels:
        yield head
    for text, labels_of_text in labels.items():
        yield from _wrap(text, "  ")
        if not alone:
            yield from _wrap(", ".join(labels_of_text), "    · ", "      ")

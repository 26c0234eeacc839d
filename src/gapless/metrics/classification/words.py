"""What is said about labels that are no labels, and about classes that do not occur."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from gapless.metrics.batch import Batch
from gapless.metrics.checks import warn
from gapless.metrics.host import within_reach
from gapless.metrics.statistic import Statistic


class Subject(Protocol):
    """What knows which labels there may be."""

    def complaint(self, count: int) -> str:
        """What is said of `count` labels, wherever they were."""

    def found(self, batch: Batch) -> str | None:
        """What is said of those in a batch on the CPU, into which one may look; None for nothing more."""


class Labelled(Statistic):
    """A statistic of labels, whose subject says what is wrong with them."""

    subject: Subject

    def complaint(self, count: int) -> str:
        return self.subject.complaint(count) + self.full()

    def complaint_about(self, batch: Batch, count: int) -> str:
        return (self.subject.found(batch) or self.subject.complaint(count)) + self.full()


def some(count: int, what: str = "value") -> str:
    """``"1 value"``, ``"2 values"``."""
    return f"{count} {what}{'s' * (count != 1)}"


def outside(count: int, allowed: str, what: str = "value") -> str:
    """What is said about `count` labels, wherever they were."""
    return f"Detected {some(count, what)} in `preds` or `target` outside the expected values: {allowed}"


def more_than_classes(batch: Batch, classes: int, ignore_index: int | None) -> str | None:
    """What is said where a batch on the CPU has more distinct labels than there are classes; else None."""
    expected = classes + (ignore_index is not None)
    for name, value in _labels(batch):
        unique = value.unique()
        if len(unique) > expected:
            return (
                f"Detected more unique values in `{name}` than expected. Expected only {expected} but found"
                f" {len(unique)} in `{name}`. Found values: {unique}."
            )
    return None


def more_than_num_classes(batch: Batch, classes: int, ignore_index: int | None) -> str | None:
    """The same, of scores against targets."""
    expected, found = classes + (ignore_index is not None), len(batch.args[1].unique())
    if found <= expected:
        return None
    return (
        "Detected more unique values in `target` than `num_classes`. "
        f"Expected only {expected} but found {found} in `target`."
    )


def neither_zero_nor_one(batch: Batch, ignore_index: int | None) -> str | None:
    """What is said where a batch on the CPU has labels that are neither 0 nor 1; else None."""
    for name, value in _labels(batch):
        unique = value.unique()
        allowed = [0, 1] if ignore_index is None or name == "preds" else sorted({0, 1, ignore_index})
        if not set(unique.tolist()) <= set(allowed):
            why = " since `preds` is a label tensor" if name == "preds" else ""
            return (
                f"Detected the following values in `{name}`: {unique} but expected only the following values"
                f" {allowed}{why}."
            )
    return None


def _labels(batch: Batch) -> list[tuple[str, Tensor]]:
    preds, target = batch.args
    return [("target", target)] if preds.is_floating_point() else [("target", target), ("preds", preds)]


def warn_on_host(found: Tensor, message: str) -> None:
    """Warn where any of `found` holds; on the CPU only, as elsewhere the host would wait to learn it."""
    if within_reach(found) and found.any():
        warn(message)

"""Messages about invalid labels, and the base class of statistics that report them."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from gapless.metrics.batch import Batch
from gapless.metrics.checks import warn
from gapless.metrics.host import is_readable_on_host
from gapless.metrics.statistic import Statistic


class LabelRules(Protocol):
    """Knows the valid labels of a statistic."""

    def complaint(self, count: int) -> str:
        """Return the message about `count` invalid labels."""

    def describe_values(self, batch: Batch) -> str | None:
        """Return a message that names the invalid values of a batch on the CPU; None if there is none."""


class LabelStatistic(Statistic):
    """A statistic of labels; its `label_rules` write the messages about invalid ones."""

    label_rules: LabelRules

    def complaint(self, count: int) -> str:
        return self.label_rules.complaint(count) + self.capacity_note()

    def complaint_about(self, batch: Batch, count: int) -> str:
        return (
            self.label_rules.describe_values(batch) or self.label_rules.complaint(count)
        ) + self.capacity_note()


def count_noun(count: int, noun: str = "value") -> str:
    """Return ``"1 value"``, ``"2 values"``."""
    return f"{count} {noun}{'s' * (count != 1)}"


def outside_message(count: int, allowed: str, noun: str = "value") -> str:
    """Return the message about `count` labels outside the `allowed` ones."""
    return f"Detected {count_noun(count, noun)} in `preds` or `target` outside the expected values: {allowed}"


def too_many_values_message(batch: Batch, classes: int, ignore_index: int | None) -> str | None:
    """Return a message if a batch on the CPU has more distinct labels than classes; else None."""
    expected = classes + (ignore_index is not None)
    for name, value in _label_tensors(batch):
        unique = value.unique()
        if len(unique) > expected:
            return (
                f"Detected more unique values in `{name}` than expected. Expected only {expected} but found"
                f" {len(unique)} in `{name}`. Found values: {unique}."
            )
    return None


def too_many_targets_message(batch: Batch, classes: int, ignore_index: int | None) -> str | None:
    """Return a message if the target has more distinct values than classes; else None."""
    expected, distinct = classes + (ignore_index is not None), len(batch.args[1].unique())
    if distinct <= expected:
        return None
    return (
        "Detected more unique values in `target` than `num_classes`. "
        f"Expected only {expected} but found {distinct} in `target`."
    )


def not_binary_message(batch: Batch, ignore_index: int | None) -> str | None:
    """Return a message if a batch on the CPU has labels other than 0 and 1; else None."""
    for name, value in _label_tensors(batch):
        unique = value.unique()
        allowed = [0, 1] if ignore_index is None or name == "preds" else sorted({0, 1, ignore_index})
        if not set(unique.tolist()) <= set(allowed):
            why = " since `preds` is a label tensor" if name == "preds" else ""
            return (
                f"Detected the following values in `{name}`: {unique} but expected only the following values"
                f" {allowed}{why}."
            )
    return None


def _label_tensors(batch: Batch) -> list[tuple[str, Tensor]]:
    """Return the arguments that hold labels, with their names: the target, and predictions unless scores."""
    preds, target = batch.args
    return [("target", target)] if preds.is_floating_point() else [("target", target), ("preds", preds)]


def warn_if_any(mask: Tensor, message: str) -> None:
    """Warn if any of `mask` is true; only on the CPU, because on a device the host would wait for it."""
    if is_readable_on_host(mask) and mask.any():
        warn(message)

"""Merge checkpoints of several processes into one, to continue with another number of processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gapless.metrics.metric import Metric
from gapless.metrics.statistic import Statistic

StateDict = Mapping[str, Any]


def merge_states(module: nn.Module, states: Sequence[StateDict]) -> dict[str, Any]:
    """Return one ``state_dict`` with the data of the metrics of several.

    Every state is merged by its own reduction: sums are added, extremes compared, means and deviations
    combined, rows concatenated. Entries of no metric (a model's weights) are taken from the first.

    To continue with another number of processes, each loads its share, if it has any::

        mine = states[rank::processes]
        if mine:
            metrics.load_state_dict(merge_states(metrics, mine))

    Args:
        module: a metric, a collection, or a model that holds some, set up like the saved ones; not changed.
        states: the ``state_dict`` of each process, with the metrics' ``persistent(True)``.

    Raises:
        ValueError: `states` is empty.
        KeyError: a metric's states are in one of them but not in another.
    """
    if not states:
        raise ValueError("Expected the states of at least one process, but got none")
    merged = dict(states[0])
    with torch.no_grad():
        for name, metric in module.named_modules(remove_duplicate=False):
            if isinstance(metric, Metric):
                merged.update(join_metric(f"{name}." if name else "", metric, states))
    return merged


def join_metric(place: str, metric: Metric, states: Sequence[StateDict]) -> dict[str, Tensor]:
    """Merge the entries of one metric over all `states`, with names that begin with `place`."""
    entries: dict[str, Tensor] = {}
    for name, statistic in metric.statistics():
        begin = f"{place}{name}."
        have = [any(begin + slot in state for slot in statistic.saved_slots) for state in states]
        if not any(have):
            continue
        if not all(have):
            raise KeyError(f"The states of process {have.index(False)} have no entries under {begin!r}")
        entries.update(
            (begin + slot, value) for slot, value in join_statistic(begin, statistic, states).items()
        )
    return entries


def join_statistic(begin: str, statistic: Statistic, states: Sequence[StateDict]) -> dict[str, Tensor]:
    """Merge the saved states of `statistic`."""
    parts = [load_statistic(begin, statistic, state) for state in states]
    if not statistic.gathers:
        # A process without a batch may not know the number of outputs yet.
        parts.sort(key=lambda part: -sum(value.numel() for value in part.state.values()))
    for part in parts[1:]:
        parts[0].absorb(part)
    return {slot: value.clone() for slot, value in parts[0].saved_state().items()}


def load_statistic(begin: str, statistic: Statistic, state: StateDict) -> Statistic:
    """Return a copy of `statistic` with a saved state."""
    loaded = statistic.silent_copy()
    loaded.reset()
    names = [slot for slot in loaded.saved_state_names() if begin + slot in state]
    loaded.load({slot: state[begin + slot] for slot in names})
    return loaded

"""Checkpoints of several processes as one, for a job that goes on with another number of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gapless.metrics.metric import Metric
from gapless.metrics.statistic import Statistic

StateDict = Mapping[str, Any]


def merge_states(module: nn.Module, states: Sequence[StateDict]) -> dict[str, Any]:
    """One ``state_dict`` that holds what the metrics of several have seen.

    Every state is joined by its own kind of reduction: sums are added, extremes compared, means and
    deviations folded, rows put one after the other. What belongs to no metric (a model's weights) is the
    first's.

    To go on with another number of processes, each takes its share, and those left without load nothing::

        mine = states[rank::processes]
        if mine:
            metrics.load_state_dict(merge_states(metrics, mine))

    Args:
        module: a metric, a collection, or a model that holds some, set up as those that were saved; it stays
            as it is.
        states: what ``state_dict`` gave in each process, with the metrics' ``persistent(True)``.

    Raises:
        ValueError: there are no states.
        KeyError: one of them has a metric's states that another has not.
    """
    if not states:
        raise ValueError("Expected the states of at least one process, but got none")
    merged = dict(states[0])
    with torch.no_grad():
        for name, metric in module.named_modules(remove_duplicate=False):
            if isinstance(metric, Metric):
                merged.update(joined(f"{name}." if name else "", metric, states))
    return merged


def joined(place: str, metric: Metric, states: Sequence[StateDict]) -> dict[str, Tensor]:
    """The entries of one metric over all of `states`, under names that begin with `place`."""
    found: dict[str, Tensor] = {}
    for name, statistic in metric.statistics():
        begin = f"{place}{name}."
        have = [any(begin + slot in state for slot in statistic.saved_slots) for state in states]
        if not any(have):
            continue
        if not all(have):
            raise KeyError(f"The states of process {have.index(False)} have no entries under {begin!r}")
        found.update((begin + slot, value) for slot, value in whole(begin, statistic, states).items())
    return found


def whole(begin: str, statistic: Statistic, states: Sequence[StateDict]) -> dict[str, Tensor]:
    """The saved states of `statistic`, joined."""
    parts = [loaded(begin, statistic, state) for state in states]
    if not statistic.gathers:
        # One without a batch may not know yet how many outputs there are.
        parts.sort(key=lambda part: -sum(value.numel() for value in part.state.values()))
    for part in parts[1:]:
        parts[0].absorb(part)
    return {slot: value.clone() for slot, value in parts[0].saved().items()}


def loaded(begin: str, statistic: Statistic, state: StateDict) -> Statistic:
    """A statistic like `statistic`, with a saved state."""
    made = statistic.silent_copy()
    made.reset()
    names = [slot for slot in made.saved_names() if begin + slot in state]
    made.load({slot: state[begin + slot] for slot in names})
    return made

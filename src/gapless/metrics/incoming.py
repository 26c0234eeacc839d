"""Check and convert states that are merged into a metric: from another metric, or in a dict."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

from gapless.metrics import declared
from gapless.metrics.breadth import SizeMismatch
from gapless.metrics.statistic import Statistic

state_readers: list[Callable[[Any, dict[str, Any], str, list[str]], bool]] = []
"""Functions ``(metric, states, prefix, errors)`` that read states saved by another package.

Each removes them from the dict, returns whether there were any, and adds messages to `errors`.
"""


def statistics_from_dict(metric: Any, states: Mapping[str, Any]) -> Iterator[tuple[str, Statistic]]:
    """Return statistics like those of `metric` with these states, named as here or as in TorchMetrics.

    Raises:
        ValueError: a state is missing.
    """
    clone, errors = copy.deepcopy(metric), list[str]()
    for _, part in clone.statistics():
        part.silent = True
    if any(read(clone, dict(states), "", errors) for read in state_readers) and not errors:
        yield from clone.statistics()
        return
    for name, part in metric.statistics():
        slots = {
            slot: states[f"{name}.{slot}"] for slot in part.saved_state_names() if f"{name}.{slot}" in states
        }
        if not slots:
            raise ValueError(f"Expected state variable {name} to be present in incoming state {dict(states)}")
        other = part.silent_copy()
        other.reset()
        tensors = {
            slot: declared.concatenate(v) if isinstance(v, list) else v
            for slot, v in slots.items()
            if v != []
        }
        other.load({**{s: v for s, v in other.saved_state().items() if s in other.saved_slots}, **tensors})
        yield name, other


def load_or_explain(
    part: Statistic, saved: Mapping[str, Tensor | None], errors: list[str], place: str
) -> None:
    """Load slots of a checkpoint into `part`; add the reason to `errors` if that fails."""
    try:
        part.load({slot: value for slot, value in saved.items() if value is not None})
    except SizeMismatch as error:
        errors.append(f"{place}: {error}")


def check_mergeable(metric: Any, state: Any) -> Any:
    """Return `state` if it may be merged into `metric`.

    Raises:
        ValueError: `state` is not the state of such a metric.
        RuntimeError: states of this metric cannot be merged.
    """
    kind = type(metric)
    if not isinstance(state, dict) and not hasattr(state, "metric_state"):
        raise ValueError(
            f"Expected incoming state to be a dict or an instance of Metric but got {type(state)}"
        )
    if kind.full_state_update is not False or metric.dist_sync_on_step:
        raise RuntimeError(
            "``merge_state`` is not supported for metrics with ``full_state_update=True`` or"
            f" ``dist_sync_on_step=True``; {kind.__name__} would have to define it."
        )
    if not isinstance(state, (dict, kind)):
        raise ValueError(
            f"Expected incoming state to be an instance of {kind.__name__} but got {type(state)}"
        )
    return state

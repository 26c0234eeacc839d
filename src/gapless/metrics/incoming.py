"""States to be merged into a metric, as they come: from another metric, or in a dict."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

from gapless.metrics import declared
from gapless.metrics.statistic import SizeMismatch, Statistic

others_states: list[Callable[[Any, dict[str, Any], str, list[str]], bool]] = []
"""What reads states that another package has saved: takes them out of the dict, and says whether there were
any; given the metric, the dict, the prefix, and a list for what to raise.
"""


def from_dict(metric: Any, states: Mapping[str, Any]) -> Iterator[tuple[str, Statistic]]:
    """Statistics like those of `metric`, with these states, whose names may be TorchMetrics'.

    Raises:
        ValueError: there are none.
    """
    made, errors = copy.deepcopy(metric), list[str]()
    for _, part in made.statistics():
        part.silent = True
    if any(read(made, dict(states), "", errors) for read in others_states) and not errors:
        yield from made.statistics()
        return
    for name, part in metric.statistics():
        found = {slot: states[f"{name}.{slot}"] for slot in part.saved_names() if f"{name}.{slot}" in states}
        if not found:
            raise ValueError(f"Expected state variable {name} to be present in incoming state {dict(states)}")
        other = part.silent_copy()
        other.reset()
        tensors = {
            slot: declared.joined(v) if isinstance(v, list) else v for slot, v in found.items() if v != []
        }
        other.load({**{s: v for s, v in other.saved().items() if s in other.saved_slots}, **tensors})
        yield name, other


def load_or_explain(
    part: Statistic, saved: Mapping[str, Tensor | None], errors: list[str], place: str
) -> None:
    """Load slots of a checkpoint into `part`; why that cannot be goes to `errors`, with its `place`."""
    try:
        part.load({slot: value for slot, value in saved.items() if value is not None})
    except SizeMismatch as error:
        errors.append(f"{place}: {error}")


def incoming(metric: Any, state: Any) -> Any:
    """`state`, if it may be merged into `metric`.

    Raises:
        ValueError: it is no state of such a metric.
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

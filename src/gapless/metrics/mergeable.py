"""Adding what another metric has seen."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gapless.metrics import declared
from gapless.metrics.stateful import Stateful
from gapless.metrics.statistic import Statistic

others_states: list[Callable[[Any, dict[str, Any], str, list[str]], bool]] = []
"""What reads states that another package has saved: takes them out of the dict, and says whether there were
any; given the metric, the dict, the prefix, and a list for what to raise.
"""


class Mergeable(Stateful):
    """A metric to which another can be added."""

    def merge_state(self: Any, incoming_state: dict[str, Any] | Mergeable) -> None:
        """Add what another metric of this class has seen, given as it is or as its ``metric_state``.

        Raises:
            ValueError: it is no state of such a metric.
            RuntimeError: states of this metric cannot be merged.
        """
        self._reduce_states(incoming(self, incoming_state))
        self._ledger.updated_once(compiling=True)

    def _reduce_states(self: Any, given: Mapping[str, Any] | Mergeable) -> None:
        if self._lender is not None:
            self._take_back()
        others = given.statistics() if isinstance(given, Mergeable) else from_dict(self, given)
        for name, other in list(others):
            if name in self._names:
                part = self._parts[self._names.index(name)]
                part.absorb(other)
                part.told.count += other.told.count
            else:  # The first batch decides what it is computed from, and there was none here.
                self.use(name, copy.deepcopy(other))
        if self._own_defaults:
            states = given.metric_state if isinstance(given, Mergeable) else given
            declared.merge(self, states, self.update_count)


def from_dict(metric: Mergeable, states: Mapping[str, Any]) -> Iterator[tuple[str, Statistic]]:
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


def incoming(metric: Mergeable, state: Any) -> Mapping[str, Any] | Mergeable:
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

"""Members of a collection, and which arguments of a call each of them gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import nn

from gapless.metrics.checks import warn
from gapless.metrics.faults import NamedStatistic as Watched
from gapless.metrics.foreign import is_torchmetrics_metric, torchmetrics_classes
from gapless.metrics.metric import Metric
from gapless.metrics.statistic import Statistic
from gapless.metrics.update_history import UpdateHistory

Sources = tuple[int | str, ...]
"""Arguments of a call: positions and keywords."""
Affixes = tuple[str, str]
"""Prefix and postfix of a nested collection."""
METRIC_CLASSES = "`gapless.metrics.Metric` or `gapless.metrics.MetricCollection`"


class Plan(NamedTuple):
    """How the arguments of one form of call reach the statistics."""

    groups: list[tuple[Sources | None, list[Watched]]]
    """Statistics with the names of their metrics, by the arguments they get; None for all, in order."""
    direct: list[tuple[Sources, str, Metric]]
    """Arguments, name and metric of the members whose ``update`` must be called."""
    first: Statistic | None
    histories: list[UpdateHistory]
    """Histories of updates, of members that do not share the collection's."""


def iter_members(
    metrics: Any, additional: Sequence[Any], collection: Any
) -> Iterator[tuple[str, Metric, Affixes]]:
    """Yield members with their names and affixes; nested ones, of the class `collection`, are flattened."""
    kinds = (Metric, collection, *torchmetrics_classes())
    if isinstance(metrics, Mapping) and not isinstance(metrics, nn.Module):
        if additional:
            raise ValueError(
                f"You have passed extra arguments {additional} which are not compatible with the first,"
                f" the dictionary {metrics}."
            )
        for name in sorted(metrics):
            if not isinstance(metrics[name], kinds):
                raise ValueError(
                    f"Value {metrics[name]} belonging to key {name} is not an instance of {METRIC_CLASSES}"
                )
            yield from name_member(metrics[name], name)
        return
    if not isinstance(metrics, (*kinds, Sequence)) or isinstance(metrics, str):
        raise ValueError(
            "Unknown input to MetricCollection. Expected `Metric`, `MetricCollection` or a `dict` or"
            f" `sequence` of these, but got {metrics}"
        )
    several = metrics if isinstance(metrics, Sequence) else [metrics]
    ignored = [member for member in additional if not isinstance(member, kinds)]
    if ignored:
        warn(f"You have passed extra arguments {ignored} which are not `Metric` so they will be ignored.")
    for metric in (*several, *additional):
        if isinstance(metric, kinds):
            yield from name_member(metric, None)
        elif not any(metric is member for member in ignored):
            raise ValueError(f"Input {metric} to `MetricCollection` is not a instance of {METRIC_CLASSES}")


def name_member(metric: Any, name: str | None) -> Iterator[tuple[str, Metric, Affixes]]:
    """Yield a metric, or the members of a nested collection, with name and affixes."""
    if isinstance(metric, Metric) or is_torchmetrics_metric(metric):
        yield name or type(metric).__name__, metric, ("", "")
        return
    for inner, member in metric.items(keep_base=False):
        affixes = (metric.prefix or "", metric.postfix or "")
        yield (inner if name is None else f"{name}_{inner}"), member, affixes


def select_arguments(
    sources: Sources, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and the named arguments of a call that `sources` lists."""
    positional = [args[source] for source in sources if isinstance(source, int)]
    return positional, {source: kwargs[source] for source in sources if isinstance(source, str)}


def sources_of(member: Metric, num_positional: int, names: tuple[str, ...]) -> Sources:
    """Return which arguments of a call go to the member's ``update``, in its order.

    Raises:
        TypeError: the call has too many positional arguments, or lacks one.
    """
    parameters = list(member._parameters_of_update())
    kind = type(member).__name__
    plain = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if num_positional > len(plain) and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise TypeError(f"`update` of {kind} takes {len(plain)} arguments, but {num_positional} were given")
    sources: list[int | str] = list(range(num_positional))
    remaining = [
        p
        for p in parameters
        if p not in plain[:num_positional] and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return (*sources, *names)
    for p in remaining:
        if p.name in names:
            sources.append(p.name)
        elif p.default is p.empty:
            raise TypeError(f"`update` of {kind} misses the argument `{p.name}`")
        elif not member.direct and any(later.name in names for later in remaining[remaining.index(p) + 1 :]):
            break  # Statistics take arguments by position.
    return tuple(sources)


def flatten_results(results: Mapping[str, Any], affixes: Mapping[str, Affixes]) -> dict[str, Any]:
    """Return results by name, with those that are dicts flattened.

    Their keys get the affixes of the nested collection they come from, and the member's name if two keys
    would be the same.
    """
    if not any(isinstance(value, dict) for value in results.values()):
        return dict(results)
    keys = Counter(
        key for name, value in results.items() for key in (value if isinstance(value, dict) else (name,))
    )
    clash = any(count > 1 for count in keys.values())
    flat: dict[str, Any] = {}
    for name, value in results.items():
        if not isinstance(value, dict):
            flat[name] = value
            continue
        before, behind = affixes.get(name, ("", ""))
        own = f"{name.removeprefix(before).removesuffix(behind)}_" if clash else ""
        flat.update((f"{before}{own}{key}{behind}", inner_value) for key, inner_value in value.items())
    return flat

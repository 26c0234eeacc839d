"""What a collection is made of, and which arguments of a call go to whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import nn

from gapless.metrics.checks import warn
from gapless.metrics.faults import Watched as Watched
from gapless.metrics.foreign import is_theirs, their_kinds
from gapless.metrics.ledger import Ledger
from gapless.metrics.metric import Metric
from gapless.metrics.statistic import Statistic

Sources = tuple[int | str, ...]
Affixes = tuple[str, str]
KINDS = "`gapless.metrics.Metric` or `gapless.metrics.MetricCollection`"


class Plan(NamedTuple):
    """How the arguments of one form of call reach the statistics."""

    groups: list[tuple[Sources | None, list[Watched]]]
    """Statistics with the names of their metrics, by the arguments they get; None for all, in order."""
    direct: list[tuple[Sources, str, Metric]]
    first: Statistic | None
    ledgers: list[Ledger]
    """Those of members that went their own way for a while, beside the collection's."""


def named(metrics: Any, additional: Sequence[Any], collection: Any) -> Iterator[tuple[str, Metric, Affixes]]:
    """Members with their names and affixes; nested ones, of the class `collection`, are taken apart."""
    kinds = (Metric, collection, *their_kinds())
    if isinstance(metrics, Mapping) and not isinstance(metrics, nn.Module):
        if additional:
            raise ValueError(
                f"You have passed extra arguments {additional} which are not compatible with the first,"
                f" the dictionary {metrics}."
            )
        for name in sorted(metrics):
            if not isinstance(metrics[name], kinds):
                raise ValueError(
                    f"Value {metrics[name]} belonging to key {name} is not an instance of {KINDS}"
                )
            yield from named_member(metrics[name], name)
        return
    if not isinstance(metrics, (*kinds, Sequence)) or isinstance(metrics, str):
        raise ValueError(
            "Unknown input to MetricCollection. Expected `Metric`, `MetricCollection` or a `dict` or"
            f" `sequence` of these, but got {metrics}"
        )
    several = metrics if isinstance(metrics, Sequence) else [metrics]
    strange = [one for one in additional if not isinstance(one, kinds)]
    if strange:
        warn(f"You have passed extra arguments {strange} which are not `Metric` so they will be ignored.")
    for metric in (*several, *additional):
        if isinstance(metric, kinds):
            yield from named_member(metric, None)
        elif not any(metric is one for one in strange):
            raise ValueError(f"Input {metric} to `MetricCollection` is not a instance of {KINDS}")


def named_member(metric: Any, name: str | None) -> Iterator[tuple[str, Metric, Affixes]]:
    if isinstance(metric, Metric) or is_theirs(metric):
        yield name or type(metric).__name__, metric, ("", "")
        return
    for inner, member in metric.items(keep_base=False):
        affixes = (metric.prefix or "", metric.postfix or "")
        yield (inner if name is None else f"{name}_{inner}"), member, affixes


def chosen(
    sources: Sources, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The positional and the named arguments that `sources` are."""
    positional = [args[source] for source in sources if isinstance(source, int)]
    return positional, {source: kwargs[source] for source in sources if isinstance(source, str)}


def sources_of(member: Metric, given: int, names: tuple[str, ...]) -> Sources:
    """Which arguments of a call go to the member's ``update``, in its order.

    Raises:
        TypeError: the call has too many positional arguments, or lacks one.
    """
    parameters = list(member._parameters_of_update())
    kind = type(member).__name__
    plain = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if given > len(plain) and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise TypeError(f"`update` of {kind} takes {len(plain)} arguments, but {given} were given")
    taken: list[int | str] = list(range(given))
    left = [
        p for p in parameters if p not in plain[:given] and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return (*taken, *names)
    for p in left:
        if p.name in names:
            taken.append(p.name)
        elif p.default is p.empty:
            raise TypeError(f"`update` of {kind} misses the argument `{p.name}`")
        elif not member.direct and any(later.name in names for later in left[left.index(p) + 1 :]):
            break  # Statistics take arguments by their place.
    return tuple(taken)


def flattened(results: Mapping[str, Any], affixes: Mapping[str, Affixes]) -> dict[str, Any]:
    """Results by name, those that are dicts taken apart.

    Their keys get the affixes of the nested collection they come from, and where two would have the same
    name, that of the member.
    """
    if not any(isinstance(value, dict) for value in results.values()):
        return dict(results)
    keys = Counter(
        key for name, value in results.items() for key in (value if isinstance(value, dict) else (name,))
    )
    clash = any(count > 1 for count in keys.values())
    found: dict[str, Any] = {}
    for name, value in results.items():
        if not isinstance(value, dict):
            found[name] = value
            continue
        before, behind = affixes.get(name, ("", ""))
        own = f"{name.removeprefix(before).removesuffix(behind)}_" if clash else ""
        found.update((f"{before}{own}{key}{behind}", one) for key, one in value.items())
    return found

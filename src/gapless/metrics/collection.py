"""Metrics that are updated together: one pass over the data for all of them."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from typing import Any, NamedTuple

import torch
from torch import nn

from gapless.metrics.batch import Batch, device_of, ready
from gapless.metrics.everywhere import Everywhere
from gapless.metrics.faults import check, check_on_host, deliver_on_host
from gapless.metrics.metric import Ledger, Metric, squeezed
from gapless.metrics.reading import Every, Later, Reading, Watch
from gapless.metrics.statistic import Statistic

Sources = tuple[int | str, ...]
Watched = tuple[Statistic, tuple[str, ...]]


class Plan(NamedTuple):
    """How the arguments of one form of call reach the statistics."""

    groups: list[tuple[Sources | None, list[Watched]]]
    """Statistics with the names of their metrics, by the arguments they get; None for all, in order."""
    direct: list[tuple[Sources, Metric]]
    first: Statistic | None


class MetricCollection(nn.ModuleDict):
    """Several metrics under one call.

    Members that are computed from the same statistic share it: it is updated once, and what statistics derive
    from the arguments (the labels of logits, say) is derived once. Statistics are the same where their
    configuration is, whatever values they have met. A member that is updated by itself stops sharing first.

    Args:
        metrics: a metric, a sequence of them (named by their classes), a mapping, or collections of these.
        additional: more metrics, where the first argument is no mapping.
        prefix: put before every name of a result.
        postfix: put behind every name of a result.
        compute_groups: False to let every metric have statistics of its own.
    """

    def __init__(
        self,
        metrics: Any,
        *additional: Any,
        prefix: str | None = None,
        postfix: str | None = None,
        compute_groups: bool | list[list[str]] = True,
    ) -> None:
        super().__init__()
        self.prefix = check_affix("prefix", prefix)
        self.postfix = check_affix("postfix", postfix)
        self._share = bool(compute_groups)
        self._plans: dict[Any, Plan] = {}
        self._watch = Watch()
        self._ledger = Ledger()
        self._watchers: list[Every] = []
        self._in_forward = False
        self.add_metrics(metrics, *additional)

    # Members.

    def add_metrics(self, metrics: Any, *additional: Any) -> None:
        """Add members; raises ValueError for what is no metric, or has a name that is taken."""
        for name, metric in named(metrics, additional):
            if name in self:
                raise ValueError(f"Encountered two metrics both named {name}")
            super().__setitem__(name, metric)
            self._lend(metric)
        self.forget_plan()

    def _lend(self, metric: Metric) -> None:
        if metric.direct or not self._share:
            return
        if not metric.update_called and not self._ledger.updated and metric._lender is None:
            known = {part.key: part for part in self._distinct(except_for=metric)}
            for name, part in list(metric.statistics()):
                same = known.get(part.key)
                if same is not None:
                    same.checked = same.checked or part.checked
                    metric.use(name, same)
        metric.__dict__["_lender"] = self
        self._ledger.updated = self._ledger.updated or metric.update_called
        self._ledger.count = max(self._ledger.count, metric.update_count)
        metric.__dict__["_ledger"] = self._ledger

    def _distinct(self, except_for: Metric | None = None) -> list[Statistic]:
        """Every statistic that is updated here, once."""
        found: dict[int, Statistic] = {}
        for member in self._members():
            if member is not except_for and not member.direct:
                found.update((id(part), part) for part in member._parts)
        return list(found.values())

    def _members(self) -> list[Metric]:
        return [module for module in self._modules.values() if isinstance(module, Metric)]

    def forget_plan(self) -> None:
        """Work out anew which statistics there are.

        Plans for the calls to expect are made here and not in the first update, so that a compiled one is
        compiled once.
        """
        self._plans = {}
        needed: list[str] = []
        for member in self._members():
            parameters = inspect.signature(member.update).parameters.values()
            ordinary = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty]
            needed += [p.name for p in ordinary if p.name not in needed]
        for given, names in ((1, ()), (2, ()), (3, ()), (0, tuple(needed))):
            with suppress(TypeError):
                self._make_plan(given, names)

    def _make_plan(self, given: int, names: tuple[str, ...]) -> Plan:
        groups: dict[Sources, list[Watched]] = {}
        direct: list[tuple[Sources, Metric]] = []
        taken: set[int] = set()
        called = {id(part): watched for part, watched in self._named_parts()}
        for member in self._members():
            sources = sources_of(member, given, names)
            if member.direct:
                direct.append((sources, member))
                continue
            group = groups.setdefault(sources, [])
            group += [(part, called[id(part)]) for part in member._parts if id(part) not in taken]
            taken.update(id(part) for part in member._parts)
        plain = tuple(range(given))
        routes = [(None if sources == plain else sources, parts) for sources, parts in groups.items()]
        first = routes[0][1][0][0] if routes else None
        call: tuple[int | str, ...] = (given, *names)
        self._plans[call] = Plan(routes, direct, first)
        return self._plans[call]

    def _named_parts(self) -> list[Watched]:
        found: dict[int, tuple[Statistic, list[str]]] = {}
        for name, member in self._modules.items():
            for part in member._parts if isinstance(member, Metric) else ():
                found.setdefault(id(part), (part, []))[1].append(name)
        return [(part, tuple(names)) for part, names in found.values()]

    # What users call.

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch to every member. Of named arguments each member gets those its ``update`` knows."""
        plan = self._plans.get((len(args), *kwargs))
        if plan is None:
            plan = self._make_plan(len(args), tuple(kwargs))
        device = plan.first.device if plan.first is not None else self.device
        if device.type == "cpu" and not ready((*args, *kwargs.values()), device):
            device = self._follow((*args, *kwargs.values()), device)
        compiling = torch.compiler.is_compiling()
        at_once = device.type == "cpu" and not compiling
        self._ledger.updated_once(compiling)
        for sources, parts in plan.groups:
            given = (
                args if sources is None else [args[s] if isinstance(s, int) else kwargs[s] for s in sources]
            )
            batch = Batch(given, device)
            for part, names in parts:
                part.count(batch)
                if part.checked:
                    deliver_on_host(part, names) if at_once else part.note()
        for sources, member in plan.direct:
            member.update(*[args[s] if isinstance(s, int) else kwargs[s] for s in sources])
        if not self._in_forward:
            self._tell_watchers()

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Add a batch, and return the results over this batch alone, from the same pass over the data."""
        if self.device.type == "cpu":
            self._follow((*args, *kwargs.values()), self.device)
        self._in_forward = True
        with ExitStack() as stack:
            stack.callback(setattr, self, "_in_forward", False)
            for part in self._distinct():
                part.begin_batch()
                stack.callback(part.end_batch)
            for member in self._members():
                if member.direct:
                    stack.enter_context(member.batch_only())
            self.update(*args, **kwargs)
            members = self._reduced(lambda member: member.dist_sync_on_step)
            with Everywhere(members).held() if members else nullcontext():
                found = self._values()
        if not torch.compiler.is_compiling():
            check_on_host(self._named_parts())
        self._tell_watchers()
        return found

    def _tell_watchers(self) -> None:
        for watcher in self._watchers:
            watcher.updated(self)

    def compute(self) -> dict[str, Any]:
        """The results over every batch since the last reset, on the device, by name. The host does not wait.

        With several processes, all states travel together: one collective per kind of reduction.
        """
        self._watch.look(self._named_parts())
        members = self._reduced(lambda member: member.sync_on_compute)
        if not members:
            return self._values()
        known = self._ledger.computed
        if id(self) not in known:
            with Everywhere(members).held():
                known[id(self)] = self._values()
        return dict(known[id(self)])

    def reset(self) -> None:
        """Back to no data, in the same storages."""
        self._watch.look(self._named_parts())
        for part in self._distinct():
            part.reset()
        for member in self._members():
            if member.direct:
                member.reset()
        self._ledger.start_again()

    def read(self, async_op: bool = False) -> Reading:
        """Start to bring the results to the host and return at once.

        Bad values that updates met come with it, under the names of the metrics they concern. With several
        processes and `async_op` nothing waits for the others either: the reduction is started, and the
        results follow from it once they have answered.
        """
        members = self._reduced(lambda member: member.sync_on_compute) if async_op else []
        if members:
            self._watch.forget()
            whole = Everywhere(members, async_op=True)
            return Later(Reading(None, self._named_parts()), whole, self._values)
        found = self.compute()
        self._watch.forget()
        return Reading(found, self._named_parts())

    def every(
        self, updates: int, callback: Callable[[int, Any], Any], reset: bool = False, async_op: bool = False
    ) -> Every:
        """Call ``callback(update, values)`` for every so many updates, once the values have arrived.

        Nothing waits for them: they are looked for at each update, and come in order. With `reset` each
        reading starts afresh after the one before. `async_op` is that of :meth:`read`.
        """
        watcher = Every(updates, callback, reset, async_op)
        self._watchers.append(watcher)
        return watcher

    def check(self) -> None:
        """Raise or warn about bad values that updates met. On a GPU this waits for the device."""
        check(self._named_parts())

    def clone(self, prefix: str | None = None, postfix: str | None = None) -> MetricCollection:
        """A copy that shares nothing with this collection, with other affixes if given."""
        made = copy.deepcopy(self)
        made.prefix = check_affix("prefix", prefix) if prefix else made.prefix
        made.postfix = check_affix("postfix", postfix) if postfix else made.postfix
        return made

    def persistent(self, mode: bool = True) -> None:
        """Whether ``state_dict`` holds the states."""
        for member in self._members():
            member.persistent(mode)

    def set_dtype(self, dtype: torch.dtype) -> MetricCollection:
        """Give results the floating-point type `dtype`."""
        for member in self._members():
            member.set_dtype(dtype)
        return self

    @property
    def device(self) -> torch.device:
        """Where the states are."""
        members = self._members()
        return members[0].device if members else torch.get_default_device()

    @property
    def compute_groups(self) -> dict[int, list[str]]:
        """Names of members that share statistics."""
        found: dict[tuple[int, ...], list[str]] = {}
        for name, member in self._modules.items():
            parts = member._parts if isinstance(member, Metric) else []
            found.setdefault(tuple(id(part) for part in parts), []).append(name)
        return dict(enumerate(found.values()))

    # Names.

    def keys(self, keep_base: bool = False) -> Any:
        """Names of the results, or of the members themselves."""
        return (
            self._modules.keys() if keep_base else {self._outer(name): None for name in self._modules}.keys()
        )

    def items(self, keep_base: bool = False, copy_state: bool = True) -> Any:
        """Members by the names of their results, or by their own."""
        return zip(self.keys(keep_base), self._modules.values(), strict=True)

    def values(self, copy_state: bool = True) -> Any:
        """The members."""
        return self._modules.values()

    def __getitem__(self, key: str, copy_state: bool = True) -> Any:
        if key not in self._modules:
            for name in self._modules:
                if key == self._outer(name):
                    return self._modules[name]
        return self._modules[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __setitem__(self, name: str, metric: nn.Module) -> None:
        self._modules.pop(name, None)
        self.add_metrics({name: metric})

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self.forget_plan()

    def __repr__(self) -> str:
        affixes = (
            f"\n  prefix={self.prefix},\n  postfix={self.postfix}" if self.prefix or self.postfix else ""
        )
        return f"{super().__repr__()[:-1]}{affixes}\n)"

    def __getstate__(self) -> dict[str, Any]:
        # A copy shares nothing: who asked for readings of this collection did not ask for those of another.
        return {**self.__dict__, "_watchers": []}

    def _outer(self, name: str) -> str:
        return f"{self.prefix or ''}{name}{self.postfix or ''}"

    def _values(self) -> dict[str, Any]:
        results: dict[str, Any] = {}
        for name, member in self._modules.items():
            value = squeezed(member.value()) if isinstance(member, Metric) else None
            if isinstance(value, dict):
                results.update((self._outer(key), one) for key, one in value.items())
            else:
                results[self._outer(name)] = value
        return results

    # Processes and devices.

    def _reduced(self, wanted: Callable[[Metric], bool]) -> list[Metric]:
        """The wanted members, where any of them has other processes."""
        members = [member for member in self._members() if wanted(member)]
        return members if any(member._distributed() for member in members) else []

    def _follow(self, args: tuple[Any, ...], device: torch.device) -> torch.device:
        accelerator = device_of(args)
        if accelerator is None:
            return device
        for part in self._distinct():
            part.to(accelerator)
        for member in self._members():
            if member.direct:
                member._follow(args, member.device)
        return accelerator


def named(metrics: Any, additional: Sequence[Any]) -> Iterator[tuple[str, Metric]]:
    """Members and their names, nested collections taken apart."""
    if isinstance(metrics, Mapping):
        if additional:
            raise ValueError(
                f"Received extra metrics {additional}, which need names beside a mapping: {metrics}."
            )
        for name in sorted(metrics):
            yield from named_member(metrics[name], name)
        return
    several = metrics if isinstance(metrics, Sequence) else [metrics]
    for metric in (*several, *additional):
        yield from named_member(metric, None)


def named_member(metric: Any, name: str | None) -> Iterator[tuple[str, Metric]]:
    if isinstance(metric, MetricCollection):
        for inner, member in metric.items(keep_base=False):
            yield (inner if name is None else f"{name}_{inner}"), member
    elif isinstance(metric, Metric):
        yield name or type(metric).__name__, metric
    else:
        raise ValueError(
            f"Expected a `gapless.metrics.Metric` or a `MetricCollection`, but got {metric!r}"
            + (f" under the name {name}" if name else "")
        )


def sources_of(member: Metric, given: int, names: tuple[str, ...]) -> Sources:
    """Which arguments of a call go to the member's ``update``, in its order."""
    parameters = inspect.signature(member.update).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL or p.kind is p.VAR_KEYWORD for p in parameters):
        return (*range(given), *names)
    known = [p.name for p in parameters]
    taken: list[int | str] = list(range(given))
    if given > len(known):
        raise TypeError(
            f"`update` of {type(member).__name__} takes {len(known)} arguments, but {given} were given"
        )
    for name in known[given:]:
        if name not in names:
            break
        taken.append(name)
    needed = [p.name for p in parameters if p.default is p.empty]
    if len(taken) < len(needed):
        raise TypeError(f"`update` of {type(member).__name__} misses the argument `{needed[len(taken)]}`")
    return tuple(taken)


def check_affix(name: str, value: Any) -> str | None:
    """`value`; raises ValueError unless it is None or a string."""
    if value is not None and not isinstance(value, str):
        raise ValueError(f"Expected input `{name}` to be a string, but got {type(value)}")
    return value

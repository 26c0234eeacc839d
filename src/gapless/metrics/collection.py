"""Metrics that are updated together: one pass over the data for all of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gapless.metrics import faults
from gapless.metrics.batch import CPU, Batch, device_of, has_graph, ready
from gapless.metrics.board import Board
from gapless.metrics.faults import Watched, check_after, check_if_strict, deliver_on_host, strict
from gapless.metrics.foreign import Foreign, is_theirs
from gapless.metrics.global_states import GlobalStates
from gapless.metrics.ledger import Ledger
from gapless.metrics.members import Plan, Sources, chosen, flattened, named, sources_of
from gapless.metrics.metric import Metric
from gapless.metrics.reading import CheckedReading, Every, PendingReading, Watch
from gapless.metrics.statistic import Statistic, reset_together
from gapless.metrics.wrapping import OwnAttributes, properties_of, warn_of_no_data
from gapless.transfer import Reading
from gapless.trees import mapped


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
        compute_groups: False to let every metric have statistics of its own; lists of names to let only these
            share any.
    """

    __jit_ignored_attributes__ = OwnAttributes()
    __jit_unused_properties__: ClassVar[list[str]] = []
    _affixes: dict[str, tuple[str, str]]
    _foreign: dict[str, Foreign]
    """Members of TorchMetrics, as what they are here; the modules are they themselves."""
    _plans: dict[Any, Plan]
    _watchers: list[Every]

    def __init__(
        self,
        metrics: Any,
        *additional: Any,
        prefix: str | None = None,
        postfix: str | None = None,
        compute_groups: bool | list[list[str]] = True,
    ) -> None:
        nn.ModuleDict.__init__(self)  # and not that of TorchMetrics, which may be a base: `accepted`
        self.prefix = self._check_arg(prefix, "prefix")
        self.postfix = self._check_arg(postfix, "postfix")
        self._share = bool(compute_groups)
        self._given = compute_groups if isinstance(compute_groups, list) and compute_groups else None
        self._affixes = {}
        self._foreign = {}
        self._plans = {}
        self._watch = Watch()
        self._ledger = Ledger()
        self._board = Board()
        self._watchers = []
        self.add_metrics(metrics, *additional)

    # Members.

    def add_metrics(self, metrics: Any, *additional: Any) -> None:
        """Add members; raises ValueError for what is no metric, or has a name that is taken."""
        for name, metric, affixes in named(metrics, additional, MetricCollection):
            if name in self._modules:
                raise ValueError(f"Encountered two metrics both named {name}")
            nn.ModuleDict.__setitem__(self, name, metric)
            if is_theirs(metric):
                self._foreign[name] = Foreign(metric)
            self._affixes[name] = affixes
        self._check_groups()
        for name, member in self._each():
            if member._lender is not self:
                self._lend(name, member)
        self.forget_plan()

    def _check_groups(self) -> None:
        for group in self._given or ():
            for name in group:
                if name not in self._modules:
                    raise ValueError(
                        f"Input {name} in `compute_groups` argument does not match a metric in the"
                        f" collection: {self._given} must match {list(self._modules)}"
                    )

    def _lend(self, name: str, metric: Metric) -> None:
        if metric.direct:
            return
        if metric._lender is not None:  # Its mates elsewhere must not hear of updates here.
            metric._take_back()
        if self._share and not metric.update_called and not self._ledger.updated:
            known = {part.key: part for part in self._distinct(self._mates(name))}
            for part_name, part in list(metric.statistics()):
                same = known.get(part.key)
                if same is not None:
                    same.checked = same.checked or part.checked
                    metric.use(part_name, same)
        metric.__dict__["_lender"] = self
        self._ledger.updated = self._ledger.updated or metric.update_called
        self._ledger.count = max(self._ledger.count, metric.update_count)
        metric.__dict__["_ledger"] = self._ledger

    def _mates(self, name: str) -> set[str]:
        """The members whose statistics `name` may share, of those that share already."""
        if self._given is None:
            mates = set(self._modules)
        else:
            mates = {mate for group in self._given if name in group for mate in group}
        return {mate for mate, member in self._each() if mate in mates and member._lender is self}

    def _distinct(self, names: set[str] | None = None) -> list[Statistic]:
        """Every statistic that is updated here (for the members of these names, if given), once."""
        found: dict[int, Statistic] = {}
        for name, member in self._each():
            if not member.direct and (names is None or name in names):
                found.update((id(part), part) for part in member._parts)
        return list(found.values())

    def _members(self) -> list[Metric]:
        return [member for _, member in self._each()]

    def forget_plan(self) -> None:
        """Work out anew which statistics there are.

        Plans for the calls to expect are made here and not in the first update, so that a compiled one is
        compiled once.
        """
        self._plans = {}
        self._ledger.computed.clear()
        needed: list[str] = []
        for member in self._members():
            parameters = member._parameters_of_update()
            ordinary = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty]
            needed += [p.name for p in ordinary if p.name not in needed]
        for given, names in ((1, ()), (2, ()), (3, ()), (0, tuple(needed))):
            with suppress(TypeError):
                self._make_plan(given, names)

    def _make_plan(self, given: int, names: tuple[str, ...]) -> Plan:
        groups: dict[Sources, list[Watched]] = {}
        direct: list[tuple[Sources, str, Metric]] = []
        ledgers: dict[int, Ledger] = {}
        taken: set[int] = set()
        called = {id(part): watched for part, watched in self._named_parts()}
        for part, watched in self._named_parts():
            part.names = watched
        for name, member in self._each():
            sources = sources_of(member, given, names)
            if member.direct:
                direct.append((sources, name, member))
                continue
            if member._ledger is not self._ledger:
                ledgers[id(member._ledger)] = member._ledger
            group = groups.setdefault(sources, [])
            group += [(part, called[id(part)]) for part in member._parts if id(part) not in taken]
            taken.update(id(part) for part in member._parts)
        plain = tuple(range(given))
        routes = [(None if sources == plain else sources, parts) for sources, parts in groups.items()]
        first = routes[0][1][0][0] if routes else None
        call: tuple[int | str, ...] = (given, *names)
        self._plans[call] = Plan(routes, direct, first, list(ledgers.values()))
        return self._plans[call]

    def _named_parts(self) -> list[Watched]:
        found: dict[int, tuple[Statistic, list[str]]] = {}
        for name, member in self._each():
            for part in member._parts:
                found.setdefault(id(part), (part, []))[1].append(name)
        return [(part, tuple(names)) for part, names in found.values()]

    # What users call.

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch to every member. Of named arguments each member gets those its ``update`` knows."""
        plan = self._plan_for(args, kwargs)
        self._count(plan, args, kwargs)
        for sources, _, member in plan.direct:
            positional, named_ = chosen(sources, args, kwargs)
            member.update(*positional, **named_)
        if self._watchers:
            self._tell_watchers()

    def _plan_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
        plan = self._plans.get((len(args), *kwargs))
        return self._make_plan(len(args), tuple(kwargs)) if plan is None else plan

    def _count(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], graph: bool = False) -> None:
        """Add a batch to every statistic."""
        device = plan.first.device if plan.first is not None else self.device
        if device == CPU and not ready((*args, *kwargs.values()), device):
            device = self._follow((*args, *kwargs.values()), device)
        compiling = torch.compiler.is_compiling()
        at_once = device == CPU and not compiling
        self._ledger.updated_once(compiling)
        for ledger in plan.ledgers:
            ledger.updated_once(compiling)
        for sources, parts in plan.groups:
            given = (
                args if sources is None else [args[s] if isinstance(s, int) else kwargs[s] for s in sources]
            )
            batch = Batch(given, device, graph)
            for part, names in parts:
                part.count(batch)
                if part.checked and at_once:
                    deliver_on_host(part, names, batch)
        if not at_once:
            self._board.note([part for _, parts in plan.groups for part, _ in parts])
            if strict.on:
                check_if_strict([one for _, parts in plan.groups for one in parts])

    @torch.jit.unused
    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Add a batch, and return the results over this batch alone, from the same pass over the data."""
        plan = self._plan_for(args, kwargs)
        given = (*args, *kwargs.values())
        if plan.first is not None and plan.first.device == CPU:
            self._follow(given, CPU)
        graph = has_graph(given) and any(member.is_differentiable for member in self._members())
        watched = [one for _, parts in plan.groups for one in parts]
        for part, _ in watched:
            part.begin_batch(graph)
        try:
            self._count(plan, args, kwargs, graph)
            members = self._reduced(lambda member: member.dist_sync_on_step and not member.direct)
            with GlobalStates(members).held() if members else nullcontext():
                found = self._results(lambda member: not member.direct)
            for name, value in found.items():
                kept = mapped(value, Tensor.detach) if graph else value
                self._modules[name].__dict__["_forward_cache"] = kept  # type: ignore[union-attr]
        finally:
            for part, _ in watched:
                part.end_batch()
        if not torch.compiler.is_compiling():
            check_after(watched)
        for sources, name, member in plan.direct:
            positional, named_ = chosen(sources, args, kwargs)
            found[name] = member(*positional, **named_)
        if self._watchers:
            self._tell_watchers()
        return self._flat(found)

    def _tell_watchers(self) -> None:
        for watcher in self._watchers:
            watcher.updated(self)

    def compute(self) -> dict[str, Any]:
        """The results over every batch since the last reset, on the device, by name. The host does not wait.

        With several processes, all states travel together: one collective per kind of reduction.
        """
        warn_of_no_data(self)
        self._watch.look(self._named_parts())
        members = self._reduced(lambda member: member.sync_on_compute)
        if not members:
            return self._values()
        known = self._ledger.computed
        stamp = [(one._ledger.count, one._ledger.updated) for one in self._members()]
        if id(self) not in known or known[id(self)][0] != stamp:
            with GlobalStates(members).held():
                found = self._values()
            if all(member.compute_with_cache for member in members):
                known[id(self)] = (
                    stamp,
                    found,
                )  # before raising: the next call is alike everywhere
            faults.deliver_elsewhere(self._named_parts())
            return dict(found)
        return dict(known[id(self)][1])

    def reset(self) -> None:
        """Back to no data, in the same storages."""
        try:
            self._watch.look(self._named_parts(), resetting=True)
        finally:
            self._start_again()

    def _start_again(self) -> None:
        reset_together(self._distinct())
        for member in self._members():
            member.__dict__["_forward_cache"] = None
            if member.direct:
                member.reset()
            elif member._ledger is not self._ledger:
                member._ledger.start_again()
        self._ledger.start_again()

    def read(self, async_op: bool = False) -> Reading:
        """Start to bring the results to the host and return at once.

        Bad values that updates met come with it, under the names of the metrics they concern. With several
        processes and `async_op` nothing waits for the others either: the reduction is started, and the
        results follow from it once they have answered.
        """
        members = self._reduced(lambda member: member.sync_on_compute) if async_op else []
        if members:
            whole = GlobalStates(members, async_op=True)
            return PendingReading(CheckedReading(None, self._named_parts()), whole, self._values)
        return CheckedReading(self.compute(), self._named_parts())

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
        faults.check(self._named_parts())

    def clone(self, prefix: str | None = None, postfix: str | None = None) -> MetricCollection:
        """A copy that shares nothing with this collection, with other affixes if given."""
        made = copy.deepcopy(self)
        made.prefix = self._check_arg(prefix, "prefix") if prefix else made.prefix
        made.postfix = self._check_arg(postfix, "postfix") if postfix else made.postfix
        return made

    def persistent(self, mode: bool = True) -> None:
        """Whether ``state_dict`` holds the states."""
        for member in self._members():
            member.persistent(mode)

    def set_dtype(self, dst_type: torch.dtype | str) -> MetricCollection:
        """Give results the floating-point type `dst_type`."""
        for member in self._members():
            member.set_dtype(dst_type)
        return self

    def plot(self, val: Any = None, ax: Any = None, together: bool = False) -> Any:
        """Draw `val`, the results of a call or a list of them (None for those of ``compute``).

        Returns:
            The figure and its axes for each member, or one of both where all are drawn `together`.
        """
        from gapless.metrics.plotting import plot_collection

        return plot_collection(self, val, ax, together)

    @property
    def device(self) -> torch.device:
        """Where the states are."""
        return next((member.device for member in self._members()), torch.get_default_device())

    @property
    def compute_groups(self) -> dict[int, list[str]]:
        """Names of members that share statistics; none where nothing may be shared.

        As in TorchMetrics each member is a group by itself before the first update, unless groups were given.
        """
        if not self._share:
            return {}
        if self._given is not None:
            known = [name for group in self._given for name in group]
            return dict(enumerate([*self._given, *([name] for name in self._modules if name not in known)]))
        found: dict[Any, list[str]] = {}
        for name, member in self._each():
            alone = member.direct or not member._parts or not self._groups_checked
            key = id(member) if alone else tuple(id(part) for part in member._parts)
            found.setdefault(key, []).append(name)
        return dict(enumerate(found.values()))

    @property
    def _enable_compute_groups(self) -> bool:
        return self._share

    @property
    def _groups_checked(self) -> bool:
        return self._given is not None or self._ledger.updated or self._ledger.ever

    @property
    def metric_state(self) -> dict[str, dict[str, Any]]:
        """The states of the members, by the names of their results."""
        return {self._outer(name): member.metric_state for name, member in self._each()}

    def _each(self) -> Iterator[tuple[str, Metric]]:
        for name, module in self._modules.items():
            member = self._foreign.get(name, module)
            if isinstance(member, Metric):
                yield name, member

    # Names.

    def keys(self, keep_base: bool = False) -> Any:
        """Names of the results, or of the members themselves."""
        return self._renamed(keep_base).keys()

    def items(self, keep_base: bool = False, copy_state: bool = True) -> Any:
        """Members by the names of their results, or by their own.

        `copy_state` has no effect: a member that is updated or reset by itself stops sharing first.
        """
        return self._renamed(keep_base).items()

    def values(self, copy_state: bool = True) -> Any:
        """The members; `copy_state` as in :meth:`items`."""
        return self._modules.values()

    def _renamed(self, keep_base: bool) -> Mapping[str, nn.Module | None]:
        members = self._modules
        return members if keep_base else {self._outer(name): member for name, member in members.items()}

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
        self._foreign.pop(name, None)
        self.add_metrics({name: metric})

    def __delitem__(self, name: str) -> None:
        nn.ModuleDict.__delitem__(self, name)
        self._foreign.pop(name, None)
        self.forget_plan()

    def __repr__(self) -> str:
        affixes = [f",\n  {n}={v}" for n, v in (("prefix", self.prefix), ("postfix", self.postfix)) if v]
        return f"{nn.ModuleDict.__repr__(self)[:-2]}{''.join(affixes)}\n)"

    def __getstate__(self) -> dict[str, Any]:
        # A copy shares nothing: who asked for readings of this collection did not ask for those of another.
        return {**self.__dict__, "_watchers": []}

    def _outer(self, name: str) -> str:
        return f"{self.prefix or ''}{name}{self.postfix or ''}"

    def _values(self) -> dict[str, Any]:
        return self._flat(self._results(lambda member: True))

    def _results(self, wanted: Callable[[Metric], bool]) -> dict[str, Any]:
        """The results of the wanted members; what follows from a statistic for several of them, once."""
        members = [(name, member) for name, member in self._each() if wanted(member)]
        parts = list({id(part): part for _, member in members for part in member._parts}.values())
        for part in parts:
            part.derived = {}
            part.readers = [member for _, member in members if part in member._parts]
        try:
            return {name: member._squeezed_result() for name, member in members}
        finally:
            for part in parts:
                part.derived, part.readers = None, ()

    def _flat(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """Results by their outer names, those that are dicts taken apart."""
        found = flattened({name: results[name] for name in self._modules}, self._affixes)
        return {self._outer(name): value for name, value in found.items()}

    @staticmethod
    def _check_arg(arg: Any, name: str) -> str | None:
        """`arg`; raises ValueError unless it is None or a string."""
        if arg is None or isinstance(arg, str):
            return arg
        raise ValueError(f"Expected input `{name}` to be a string, but got {type(arg)}")

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


MetricCollection.__jit_unused_properties__ = properties_of(MetricCollection)

"""Update several metrics together, with one pass over the data."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gapless.metrics import faults
from gapless.metrics.batch import CPU, Batch, all_on_device, device_of, has_graph
from gapless.metrics.board import Board
from gapless.metrics.faults import (
    NamedStatistic,
    check_after_update,
    check_if_strict,
    deliver_on_host,
    strict,
)
from gapless.metrics.foreign import ForeignMetric, is_torchmetrics_metric
from gapless.metrics.global_states import GlobalStates
from gapless.metrics.members import Plan, Sources, flatten_results, iter_members, select_arguments, sources_of
from gapless.metrics.metric import Metric
from gapless.metrics.reading import CheckedReading, FaultWatch, PendingReading, PeriodicReader
from gapless.metrics.statistic import Statistic, reset_together
from gapless.metrics.update_history import SavedWhole, UpdateHistory
from gapless.metrics.wrapping import OwnAttributes, properties_of, warn_of_no_data
from gapless.transfer import Reading
from gapless.trees import map_tensors


class MetricCollection(SavedWhole, nn.ModuleDict):
    """Several metrics under one call.

    Members computed from the same statistic share it: it is updated once, and values derived from the
    arguments (such as labels from logits) are derived once. Statistics are the same if their configuration
    is, regardless of values. A member that is updated by itself stops sharing first.

    Args:
        metrics: a metric, a sequence of them (named by their classes), a mapping, or collections of these.
        additional: more metrics, if the first argument is not a mapping.
        prefix: prepended to every name of a result.
        postfix: appended to every name of a result.
        compute_groups: False to give every metric its own statistics; lists of names to let only these share.
    """

    __jit_ignored_attributes__ = OwnAttributes()
    __jit_unused_properties__: ClassVar[list[str]] = []
    _affixes: dict[str, tuple[str, str]]
    _foreign: dict[str, ForeignMetric]
    """TorchMetrics' members, wrapped; the modules are the unwrapped metrics."""
    former_names: ClassVar = {"_ledger": "update_history"}
    _plans: dict[Any, Plan]
    _watchers: list[PeriodicReader]

    def __init__(
        self,
        metrics: Any,
        *additional: Any,
        prefix: str | None = None,
        postfix: str | None = None,
        compute_groups: bool | list[list[str]] = True,
    ) -> None:
        nn.ModuleDict.__init__(self)  # not TorchMetrics', which may be a base (see `accepted`)
        self.prefix = self._check_arg(prefix, "prefix")
        self.postfix = self._check_arg(postfix, "postfix")
        self._share = bool(compute_groups)
        self._explicit_groups = (
            compute_groups if isinstance(compute_groups, list) and compute_groups else None
        )
        self._affixes = {}
        self._foreign = {}
        self._plans = {}
        self._watch = FaultWatch()
        self.update_history = UpdateHistory()
        self._board = Board()
        self._watchers = []
        self.add_metrics(metrics, *additional)

    # Members.

    def add_metrics(self, metrics: Any, *additional: Any) -> None:
        """Add members; raise ValueError for what is not a metric or has a name already in use."""
        for name, metric, affixes in iter_members(metrics, additional, MetricCollection):
            if name in self._modules:
                raise ValueError(f"Encountered two metrics both named {name}")
            nn.ModuleDict.__setitem__(self, name, metric)
            if is_torchmetrics_metric(metric):
                self._foreign[name] = ForeignMetric(metric)
            self._affixes[name] = affixes
        self._check_groups()
        for name, member in self._iter_members():
            if member.sharing_collection is not self:
                self._lend(name, member)
        self.rebuild_plans()

    def _check_groups(self) -> None:
        for group in self._explicit_groups or ():
            for name in group:
                if name not in self._modules:
                    raise ValueError(
                        f"Input {name} in `compute_groups` argument does not match a metric in the"
                        f" collection: {self._explicit_groups} must match {list(self._modules)}"
                    )

    def _lend(self, name: str, metric: Metric) -> None:
        """Let `metric` share the statistics of other members; those it has are used if they have data."""
        if metric.direct:
            return
        metric.stop_sharing()  # Members of its other collection must not share updates made here.
        if self._share and not metric.update_called and not self.update_history.updated:
            shareable = {part.key: part for part in self._distinct(self._mates(name))}
            for part_name, part in list(metric.statistics()):
                if (shared := shareable.get(part.key)) is not None:
                    shared.checked = shared.checked or part.checked
                    metric.use(part_name, shared)
        self.update_history.updated = self.update_history.updated or metric.update_called
        self.update_history.count = max(self.update_history.count, metric.update_count)
        metric.share_with(self, self.update_history)

    def _mates(self, name: str) -> set[str]:
        """Return the members that share statistics and whose statistics `name` may use."""
        sharing = {mate for mate, member in self._iter_members() if member.sharing_collection is self}
        if self._explicit_groups is None:
            return sharing
        return sharing.intersection(
            mate for group in self._explicit_groups if name in group for mate in group
        )

    def _distinct(self, names: set[str] | None = None) -> list[Statistic]:
        """Return every statistic of the members `names` (None: all) once, if it is updated from here."""
        statistics: dict[int, Statistic] = {}
        for name, member in self._iter_members():
            if not member.direct and (names is None or name in names):
                statistics.update((id(part), part) for part in member.all_statistics())
        return list(statistics.values())

    def _members(self) -> list[Metric]:
        return [member for _, member in self._iter_members()]

    def rebuild_plans(self) -> None:
        """Rebuild the plans that say which arguments go to which statistic.

        Plans for likely calls are made here, not in the first update, so that a compiled one compiles once.
        """
        self._plans = {}
        self.update_history.computed.clear()
        needed: list[str] = []
        for member in self._members():
            parameters = member._parameters_of_update()
            ordinary = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty]
            needed += [p.name for p in ordinary if p.name not in needed]
        for num_positional, names in ((1, ()), (2, ()), (3, ()), (0, tuple(needed))):
            with suppress(TypeError):
                self._make_plan(num_positional, names)

    def _make_plan(self, num_positional: int, names: tuple[str, ...]) -> Plan:
        """Make and cache the plan for calls with so many positional and these named arguments."""
        groups: dict[Sources, list[NamedStatistic]] = {}
        direct: list[tuple[Sources, str, Metric]] = []
        histories: dict[int, UpdateHistory] = {}
        planned: set[int] = set()
        for part, metric_names in self._named_statistics():
            part.names = metric_names
        for name, member in self._iter_members():
            sources = sources_of(member, num_positional, names)
            if member.direct:
                direct.append((sources, name, member))
                continue
            if member.update_history is not self.update_history:
                histories[id(member.update_history)] = member.update_history
            group = groups.setdefault(sources, [])
            group += [(part, part.names) for part in member.all_statistics() if id(part) not in planned]
            planned.update(id(part) for part in member.all_statistics())
        plain = tuple(range(num_positional))
        routes = [(None if sources == plain else sources, parts) for sources, parts in groups.items()]
        first = routes[0][1][0][0] if routes else None
        call: tuple[int | str, ...] = (num_positional, *names)
        self._plans[call] = Plan(routes, direct, first, list(histories.values()))
        return self._plans[call]

    def _named_statistics(self) -> list[NamedStatistic]:
        """Return every statistic once, with the names of its members."""
        statistics: dict[int, tuple[Statistic, list[str]]] = {}
        for name, member in self._iter_members():
            for part in member.all_statistics():
                statistics.setdefault(id(part), (part, []))[1].append(name)
        return [(part, tuple(names)) for part, names in statistics.values()]

    # What users call.

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch to every member, each with the named arguments that its ``update`` accepts."""
        plan = self._plan_for(args, kwargs)
        self._count(plan, args, kwargs)
        for sources, _, member in plan.direct:
            positional, named_ = select_arguments(sources, args, kwargs)
            member.update(*positional, **named_)
        for watcher in self._watchers:
            watcher.count_update(self)

    def _plan_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
        plan = self._plans.get((len(args), *kwargs))
        return self._make_plan(len(args), tuple(kwargs)) if plan is None else plan

    def _count(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], graph: bool = False) -> None:
        """Add a batch to every statistic."""
        device = plan.first.device if plan.first is not None else self.device
        if device == CPU and not all_on_device((*args, *kwargs.values()), device):
            device = self._move_to_inputs((*args, *kwargs.values()), device)
        compiling = torch.compiler.is_compiling()
        at_once = device == CPU and not compiling
        self.update_history.record_update(not compiling)
        for history in plan.histories:
            history.record_update(not compiling)
        for sources, parts in plan.groups:
            inputs: Any = args
            if sources is not None:
                inputs = [args[s] if isinstance(s, int) else kwargs[s] for s in sources]
            batch = Batch(inputs, device, graph)
            for part, names in parts:
                part.count(batch)
                if part.checked and at_once:
                    deliver_on_host(part, names, batch)
        if not at_once:
            self._board.note([part for _, parts in plan.groups for part, _ in parts])
            if strict.on:
                check_if_strict([named_statistic for _, parts in plan.groups for named_statistic in parts])

    @torch.jit.unused
    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Add a batch and return the results over this batch alone, from the same pass over the data."""
        plan = self._plan_for(args, kwargs)
        inputs = (*args, *kwargs.values())
        if plan.first is not None and plan.first.device == CPU:
            self._move_to_inputs(inputs, CPU)
        graph = has_graph(inputs) and any(member.is_differentiable for member in self._members())
        statistics = [named_statistic for _, parts in plan.groups for named_statistic in parts]
        for part, _ in statistics:
            part.begin_batch(graph)
        try:
            self._count(plan, args, kwargs, graph)
            members = self._members_to_reduce(lambda member: member.dist_sync_on_step and not member.direct)
            with GlobalStates(members).swap_in() if members else nullcontext():
                results = self._results(lambda member: not member.direct)
            for name, value in results.items():
                kept = map_tensors(value, Tensor.detach) if graph else value
                self._modules[name].__dict__["_forward_cache"] = kept  # type: ignore[union-attr]
        finally:
            for part, _ in statistics:
                part.end_batch()
        if not torch.compiler.is_compiling():
            check_after_update(statistics)
        for sources, name, member in plan.direct:
            positional, named_ = select_arguments(sources, args, kwargs)
            results[name] = member(*positional, **named_)
        for watcher in self._watchers:
            watcher.count_update(self)
        return self._flatten(results)

    def compute(self) -> dict[str, Any]:
        """Return the results over every batch since the last reset, on the device, by name, without waiting.

        With several processes, all states are reduced together: one collective per kind of reduction.
        """
        warn_of_no_data(self)
        self._watch.look(self._named_statistics())
        members = self._members_to_reduce(lambda member: member.sync_on_compute)
        if not members:
            return self._values()
        cache = self.update_history.computed
        stamp = [(member.update_history.count, member.update_history.updated) for member in self._members()]
        if id(self) not in cache or cache[id(self)][0] != stamp:
            with GlobalStates(members).swap_in():
                results = self._values()
            if all(member.compute_with_cache for member in members):
                cache[id(self)] = (stamp, results)  # before raising: the next call is the same everywhere
            faults.deliver_from_other_processes(self._named_statistics())
            return dict(results)
        return dict(cache[id(self)][1])

    def reset(self) -> None:
        """Remove all data, in the same storages."""
        try:
            self._watch.look(self._named_statistics(), resetting=True)
        finally:
            reset_together(self._distinct())
            for member in self._members():
                member.__dict__["_forward_cache"] = None
                if member.direct:
                    member.reset()
                elif member.update_history is not self.update_history:
                    member.update_history.record_reset()
            self.update_history.record_reset()

    def read(self, async_op: bool = False) -> Reading:
        """Start copying the results to the host and return at once.

        The reading also reports bad values, with the names of the metrics concerned. With several processes
        and `async_op` it does not wait for the others either: the reduction is started, and the results are
        computed when it has completed.
        """
        members = self._members_to_reduce(lambda member: member.sync_on_compute) if async_op else []
        if members:
            whole = GlobalStates(members, async_op=True)
            return PendingReading(CheckedReading(None, self._named_statistics()), whole, self._values)
        return CheckedReading(self.compute(), self._named_statistics())

    def every(
        self, updates: int, callback: Callable[[int, Any], Any], reset: bool = False, async_op: bool = False
    ) -> PeriodicReader:
        """Call ``callback(update, values)`` every `updates` updates, once the values have arrived.

        Nothing waits: each update checks for arrived values, and callbacks run in order. With `reset` the
        metrics are reset after each reading. `async_op` as in :meth:`read`.
        """
        watcher = PeriodicReader(updates, callback, reset, async_op)
        self._watchers.append(watcher)
        return watcher

    def check(self) -> None:
        """Raise or warn about bad values that updates met. On a GPU this waits for the device."""
        faults.check(self._named_statistics())

    def clone(self, prefix: str | None = None, postfix: str | None = None) -> MetricCollection:
        """Return a copy that shares nothing with this collection, with other affixes if given."""
        copied = copy.deepcopy(self)
        copied.prefix = self._check_arg(prefix, "prefix") if prefix else copied.prefix
        copied.postfix = self._check_arg(postfix, "postfix") if postfix else copied.postfix
        return copied

    def persistent(self, mode: bool = True) -> None:
        """Set whether ``state_dict`` holds the states."""
        for member in self._members():
            member.persistent(mode)

    def set_dtype(self, dst_type: torch.dtype | str) -> MetricCollection:
        """Set the floating-point type of results."""
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
        """The device of the states."""
        return next((member.device for member in self._members()), torch.get_default_device())

    @property
    def compute_groups(self) -> dict[int, list[str]]:
        """Names of members that share statistics, by group number; empty if sharing is off.

        As in TorchMetrics, each member is its own group before the first update, unless groups were given.
        """
        if not self._share:
            return {}
        if self._explicit_groups is not None:
            grouped = [name for group in self._explicit_groups for name in group]
            return dict(
                enumerate(
                    [*self._explicit_groups, *([name] for name in self._modules if name not in grouped)]
                )
            )
        groups: dict[Any, list[str]] = {}
        for name, member in self._iter_members():
            alone = member.direct or not member.all_statistics() or not self._groups_checked
            key = id(member) if alone else tuple(id(part) for part in member.all_statistics())
            groups.setdefault(key, []).append(name)
        return dict(enumerate(groups.values()))

    @property
    def _enable_compute_groups(self) -> bool:
        return self._share

    @property
    def _groups_checked(self) -> bool:
        return self._explicit_groups is not None or self.update_history.updated or self.update_history.ever

    @property
    def metric_state(self) -> dict[str, dict[str, Any]]:
        """The members' states, by the names of their results."""
        return {self._result_name(name): member.metric_state for name, member in self._iter_members()}

    def _iter_members(self) -> Iterator[tuple[str, Metric]]:
        for name, module in self._modules.items():
            member = self._foreign.get(name, module)
            if isinstance(member, Metric):
                yield name, member

    # Names.

    def keys(self, keep_base: bool = False) -> Any:
        """Return the names of the results, or of the members."""
        return self._members_by_name(keep_base).keys()

    def items(self, keep_base: bool = False, copy_state: bool = True) -> Any:
        """Return the members by the names of their results, or by their own.

        `copy_state` has no effect: a member that is updated or reset by itself stops sharing first.
        """
        return self._members_by_name(keep_base).items()

    def values(self, copy_state: bool = True) -> Any:
        """Return the members; `copy_state` as in :meth:`items`."""
        return self._modules.values()

    def _members_by_name(self, keep_base: bool) -> Mapping[str, nn.Module | None]:
        members = self._modules
        return members if keep_base else {self._result_name(name): member for name, member in members.items()}

    def __getitem__(self, key: str, copy_state: bool = True) -> Any:
        if key not in self._modules:
            for name in self._modules:
                if key == self._result_name(name):
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
        self.rebuild_plans()

    def __repr__(self) -> str:
        affixes = [f",\n  {n}={v}" for n, v in (("prefix", self.prefix), ("postfix", self.postfix)) if v]
        return f"{nn.ModuleDict.__repr__(self)[:-2]}{''.join(affixes)}\n)"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_watchers": []}  # callbacks of this collection are not for its copies

    def _result_name(self, name: str) -> str:
        return f"{self.prefix or ''}{name}{self.postfix or ''}"

    def _values(self) -> dict[str, Any]:
        return self._flatten(self._results(lambda member: True))

    def _results(self, wanted: Callable[[Metric], bool]) -> dict[str, Any]:
        """Return the results of the wanted members, computing what shared statistics derive once."""
        members = [(name, member) for name, member in self._iter_members() if wanted(member)]
        parts = list({id(part): part for _, member in members for part in member.all_statistics()}.values())
        for part in parts:
            part.derived = {}
            part.readers = [member for _, member in members if part in member.all_statistics()]
        try:
            return {name: member._squeezed_result() for name, member in members}
        finally:
            for part in parts:
                part.derived, part.readers = None, ()

    def _flatten(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """Return results by their outer names, with results that are dicts flattened."""
        flat = flatten_results({name: results[name] for name in self._modules}, self._affixes)
        return {self._result_name(name): value for name, value in flat.items()}

    @staticmethod
    def _check_arg(arg: Any, name: str) -> str | None:
        """Return `arg`; raise ValueError unless it is None or a string."""
        if arg is None or isinstance(arg, str):
            return arg
        raise ValueError(f"Expected input `{name}` to be a string, but got {type(arg)}")

    # Processes and devices.

    def _members_to_reduce(self, wanted: Callable[[Metric], bool]) -> list[Metric]:
        """Return the wanted members if any of them has other processes to reduce over."""
        members = [member for member in self._members() if wanted(member)]
        return members if any(member._is_distributed() for member in members) else []

    def _move_to_inputs(self, args: tuple[Any, ...], device: torch.device) -> torch.device:
        accelerator = device_of(args)
        if accelerator is None:
            return device
        for part in self._distinct():
            part.to(accelerator)
        for member in self._members():
            if member.direct:
                member._move_to_inputs(args, member.device)
        return accelerator


MetricCollection.__jit_unused_properties__ = properties_of(MetricCollection)

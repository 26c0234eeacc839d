"""The base of every metric: six methods over statistics that never make the host wait."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from gapless.metrics import distributed, twins
from gapless.metrics.batch import CPU, Batch, all_on_device, device_of
from gapless.metrics.declared import DeclaringMetric
from gapless.metrics.faults import NamedStatistic, check, check_if_strict, deliver_on_host, strict
from gapless.metrics.global_states import GlobalStates, SwappedStates
from gapless.metrics.reading import CheckedReading, FaultWatch
from gapless.metrics.statistic import Statistic, reset_together
from gapless.metrics.update_history import SavedWhole, UpdateHistory
from gapless.transfer import Reading
from gapless.trees import map_tensors, mark_result


class Core(SavedWhole):
    """A value (or several) over a stream of batches, computed from statistics.

    A subclass registers its statistics with :meth:`use`, passes the arguments of ``update`` to
    :meth:`observe`, and computes the result from the statistics' states in :meth:`value`. It then has:

    - :meth:`empty` removes all data, in the same storages;
    - :meth:`update` adds a batch, and the host does not wait;
    - :meth:`merge` adds the data of another metric of the class: in any order;
    - :meth:`reduce` makes the states those of all processes, inside a ``with`` block;
    - :meth:`compute` returns the result, on the device;
    - :meth:`read` starts copying it to the host; only its ``result()`` may wait.

    :class:`~gapless.metrics.Metric` adds the rest of TorchMetrics' interface; collections and wrappers only
    accept that class.

    >>> from gapless.metrics import Sum
    >>> def squares(batch):
    ...     return batch.args[0].square()
    >>> class MeanSquare(Core):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.use("squares", Sum(squares))
    ...
    ...     def update(self, values):
    ...         self.observe(values)
    ...
    ...     def value(self):
    ...         return self.squares.reduced().to(self.dtype)
    >>> first, second = MeanSquare(), MeanSquare()
    >>> first.update(torch.tensor([1.0, 2.0]))
    >>> second.update(torch.tensor([5.0]))
    >>> first.merge(second)
    >>> first.compute()
    tensor(10.)
    >>> reading = first.read()
    >>> first.empty()
    >>> reading.result(), first.compute()
    (tensor(10.), tensor(nan))

    Args:
        process_group: the processes to reduce over, as a group or a one-dimensional ``DeviceMesh``; None for
            all.
    """

    dist_sync_fn: Any = None
    _parts: list[Statistic]
    _names: list[str]
    _history: UpdateHistory
    _watch: FaultWatch
    _collection: Any
    _device: torch.device
    _dtype: torch.dtype

    def __init__(self, process_group: Any = None) -> None:
        self.process_group = process_group
        self.__dict__.update(
            _parts=[],
            _names=[],
            _collection=None,
            _history=UpdateHistory(),
            _watch=FaultWatch(),
            _device=torch.get_default_device(),
            _dtype=torch.get_default_dtype(),
        )

    # For subclasses.

    def use(self, name: str, statistic: Statistic) -> None:
        """Register `statistic` as the attribute `name`, to compute the result from."""
        statistic.names = statistic.names or (type(self).__name__,)
        self.__dict__[name] = statistic
        if name in self._names:
            self._parts[self._names.index(name)] = statistic
        else:
            self._names.append(name)
            self._parts.append(statistic)

    def observe(self, *args: Any) -> None:
        """Add a batch with these arguments to every statistic."""
        own = self.__dict__
        if own["_collection"] is not None:
            self.stop_sharing()
        parts = own["_parts"]
        device = parts[0].device
        on_host = device == CPU
        if on_host and not all_on_device(args, device):
            device = self._move_to_inputs(args, device)
            on_host = device.type == "cpu"
        batch = Batch(args, device, parts[0].graph)
        compiling = torch.compiler.is_compiling()
        at_once = on_host and not compiling
        own["_history"].record_update(not compiling)
        for part in parts:
            shared = part.twins and not on_host and not compiling
            if shared and twins.copy_leader_state(part, args):
                continue
            before = part.state_id if shared else 0
            part.count(batch)
            if part.checked:
                deliver_on_host(part, part.names, batch) if at_once else part.note()
            if shared:
                twins.record_update(part, args, before)
        if strict.on and not on_host:
            check_if_strict(self._named_statistics())

    def value(self) -> Any:
        """Return the result, as new tensors on the device, from the statistics' states."""
        raise NotImplementedError

    # What users call.

    def empty(self) -> None:
        """Remove all data, in the same storages. The host does not wait."""
        self.stop_sharing()
        try:
            self._watch.look(self._named_statistics(), resetting=True)
        finally:
            reset_together(self._parts)
            self._history.record_reset()

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch. The host does not wait."""
        raise NotImplementedError

    def merge(self, other: Core) -> None:
        """Add the data of `other`, a metric of the same class and arguments.

        Raises:
            ValueError: `other` is not such a metric.
        """
        kind = type(self)
        mine, theirs = ({name: part.key for name, part in metric.statistics()} for metric in (self, other))
        if not isinstance(other, kind) or mine != theirs:
            raise ValueError(f"Expected a {kind.__name__} with the same arguments, but got {other!r}")
        self._absorb(other.statistics())
        self.record_update(counted=False)

    def reduce(self) -> SwappedStates:
        """Make the states those of all processes inside a ``with`` block, and local again after it.

        ::

            with loss.reduce():
                value = loss.compute()

        Runs one collective for each kind of reduction, in which every process must take part; none if there
        is a single process.
        """
        return GlobalStates([self] if distributed.is_available() else []).swap_in()

    def compute(self) -> Any:
        """Return the result over every batch since the last :meth:`empty`, on the device, without waiting."""
        self._watch.look(self._named_statistics())
        return map_tensors(self.value(), mark_result)

    def read(self) -> Reading:
        """Start copying the result to the host and return a :class:`~.reading.Reading` at once.

        The reading also reports bad values that updates met.
        """
        return CheckedReading(self.compute(), self._named_statistics())

    def check(self) -> None:
        """Raise or warn about bad values that updates met. On a GPU this waits for the device.

        Raises:
            RuntimeError: a value was bad, and the metric treats that as an error.
        """
        check(self._named_statistics())

    def statistics(self) -> Iterator[tuple[str, Statistic]]:
        """Return the statistics that the result is computed from, with their names."""
        return zip(self._names, self._parts, strict=True)

    @property
    def device(self) -> torch.device:
        """The device of the states: that of the first batch on an accelerator, unless :meth:`move`
        was called.
        """
        parts = self._parts
        return parts[0].device if parts else self._device

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of results."""
        return self._dtype

    def move(self, device: torch.device | str) -> None:
        """Move the states to `device`. Waits only for copies to the CPU."""
        device_with_index = torch.empty(0, device=device).device
        for part in self._parts:
            part.to(device_with_index)
        self.__dict__["_device"] = device_with_index
        self._history.computed.clear()

    # What collections, wrappers and checkpoints of this package call.

    def all_statistics(self) -> list[Statistic]:
        """Return the statistics without their names, in the order of :meth:`use`.

        Collections plan updates with them and reductions go over them. The list is the metric's own.
        """
        return self._parts

    def use_statistics_of(self, inner: Core) -> None:
        """Compute from the statistics of `inner`, later ones included: for wrappers of one metric."""
        self.__dict__.update(_parts=inner._parts, _names=inner._names)

    @property
    def update_history(self) -> UpdateHistory:
        """The updates and cached results, which members of a collection share with it."""
        return self._history

    def record_update(self, counted: bool | None = None) -> None:
        """Record an update that did not go through :meth:`observe`: by a wrapper, a merge or a checkpoint.

        With `counted` None it is counted unless it runs in a compiled function.
        """
        self._history.record_update(not torch.compiler.is_compiling() if counted is None else counted)

    @property
    def sharing_collection(self) -> Any:
        """The collection with whose members this metric may share statistics; None if there is none."""
        return self._collection

    def share_with(self, collection: Any, history: UpdateHistory) -> None:
        """Become a member of `collection`, which updates the statistics and keeps the `history`."""
        self.__dict__.update(_collection=collection, _history=history)

    def stop_sharing(self) -> None:
        """Take copies of the statistics that other members of a collection share, if there is one.

        Whoever updates, resets or merges a member by itself calls this first.
        """
        collection = self._collection
        if collection is None:
            return
        self.__dict__.update(_collection=None, _history=copy.deepcopy(self._history))
        for name, part in list(self.statistics()):
            own = copy.deepcopy(part)
            own.names = (type(self).__name__,)
            self.use(name, own)
        collection.rebuild_plans()

    # Parts.

    def _named_statistics(self) -> Sequence[NamedStatistic]:
        return [(part, part.names) for part in self._parts]

    def _move_to_inputs(self, args: Sequence[Any], device: torch.device) -> torch.device:
        """Move states on the CPU to the accelerator that holds one of `args`; return the states' device."""
        accelerator = device_of(args)
        if accelerator is None or device.type != "cpu":
            return device
        for part in self._parts:
            part.to(accelerator)
        return accelerator

    def _absorb(self, statistics: Iterable[tuple[str, Statistic]]) -> None:
        """Add the states of `statistics` to the statistics of the same names."""
        self.stop_sharing()
        for name, other in list(statistics):
            if name in self._names:
                part = self._parts[self._names.index(name)]
                part.absorb(other)
                part.reported.count += other.reported.count
            else:  # The statistics depend on the first batch, which this metric has not had.
                self.use(name, copy.deepcopy(other))

    def _declaring_metrics(self) -> Sequence[DeclaringMetric]:
        """Return the metrics with states declared as in TorchMetrics that the result depends on."""
        return ()

"""The core of every metric: six verbs over statistics that never make the host wait."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from gapless.metrics import distributed, twins
from gapless.metrics.batch import CPU, Batch, device_of, ready
from gapless.metrics.declared import Holder
from gapless.metrics.faults import Watched, check, check_if_strict, deliver_on_host, strict
from gapless.metrics.global_states import GlobalStates, Held
from gapless.metrics.ledger import Ledger
from gapless.metrics.reading import CheckedReading, Watch
from gapless.metrics.statistic import Statistic, reset_together
from gapless.transfer import Reading


class Core:
    """A value (or several) over a stream of batches, computed from statistics.

    A subclass names its statistics with :meth:`use`, passes what its ``update`` is given to :meth:`observe`,
    and says in :meth:`value` how the result follows from the statistics' states. Then there are six verbs:

    - :meth:`empty` forgets all data, in the same storages;
    - :meth:`update` adds a batch, and the host does not wait;
    - :meth:`merge` adds what another metric of the class has seen: in any order;
    - :meth:`reduce` makes the states those of all processes, inside a ``with`` block;
    - :meth:`compute` gives the result, on the device;
    - :meth:`read` starts to bring it to the host, and is the one that may wait: in ``result()``.

    :class:`~gapless.metrics.Metric` is the same with all that TorchMetrics' users expect; only that is taken
    by collections and wrappers.

    >>> from gapless.metrics.reduced import Sum
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
    _ledger: Ledger
    _watch: Watch
    _lender: Any
    _device: torch.device
    _dtype: torch.dtype

    def __init__(self, process_group: Any = None) -> None:
        self.process_group = process_group
        self.__dict__.update(
            _parts=[],
            _names=[],
            _lender=None,
            _ledger=Ledger(),
            _watch=Watch(),
            _device=torch.get_default_device(),
            _dtype=torch.get_default_dtype(),
        )

    # For subclasses.

    def use(self, name: str, statistic: Statistic) -> None:
        """Compute from `statistic`, found as the attribute `name`."""
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
        if own["_lender"] is not None:
            self._take_back()
        parts = own["_parts"]
        device = parts[0].device
        on_host = device == CPU
        if on_host and not ready(args, device):
            device = self._follow(args, device)
            on_host = device.type == "cpu"
        batch = Batch(args, device, parts[0].graph)
        compiling = torch.compiler.is_compiling()
        at_once = on_host and not compiling
        own["_ledger"].updated_once(compiling)
        for part in parts:
            shared = part.twins and not on_host and not compiling
            if shared and twins.followed(part, args):
                continue
            before = part.past if shared else 0
            part.count(batch)
            if part.checked:
                deliver_on_host(part, part.names, batch) if at_once else part.note()
            if shared:
                twins.counted(part, args, before)
        if strict.on and not on_host:
            check_if_strict(self._watched())

    def value(self) -> Any:
        """The result, as new tensors on the device, from the statistics' states."""
        raise NotImplementedError

    # What users call.

    def empty(self) -> None:
        """Back to no data, in the same storages. The host does not wait."""
        if self._lender is not None:
            self._take_back()
        try:
            self._watch.look(self._watched(), resetting=True)
        finally:
            reset_together(self._parts)
            self._ledger.start_again()

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch. The host does not wait."""
        raise NotImplementedError

    def merge(self, other: Core) -> None:
        """Add what `other`, a metric of the same class and arguments, has seen.

        Raises:
            ValueError: it is no such metric.
        """
        kind = type(self)
        mine, theirs = ({name: part.key for name, part in one.statistics()} for one in (self, other))
        if not isinstance(other, kind) or mine != theirs:
            raise ValueError(f"Expected a {kind.__name__} with the same arguments, but got {other!r}")
        self._absorb(other.statistics())
        self._ledger.updated_once(compiling=True)

    def reduce(self) -> Held:
        """The states over all processes inside a ``with`` block, the local ones behind it.

        ::

            with loss.reduce():
                value = loss.compute()

        It is one collective for each kind of reduction, in which every process must take part. A process that
        is alone has them already.
        """
        return GlobalStates([self] if distributed.available() else []).held()

    def compute(self) -> Any:
        """The result over every batch since the last :meth:`empty`, on the device. The host does not wait."""
        self._watch.look(self._watched())
        return self.value()

    def read(self) -> Reading:
        """Start to bring the result to the host and return at once, with a :class:`~.reading.Reading`.

        Bad values that updates met come with it.
        """
        return CheckedReading(self.compute(), self._watched())

    def check(self) -> None:
        """Raise or warn about bad values that updates met. On a GPU this waits for the device.

        Raises:
            RuntimeError: a value was bad and the metric was to take that for an error.
        """
        check(self._watched())

    def statistics(self) -> Iterator[tuple[str, Statistic]]:
        """The statistics that the result follows from, by name."""
        return zip(self._names, self._parts, strict=True)

    @property
    def device(self) -> torch.device:
        """Where the states are: the accelerator of the first batch, unless :meth:`move` said another."""
        parts = self._parts
        return parts[0].device if parts else self._device

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of results."""
        return self._dtype

    def move(self, device: torch.device | str) -> None:
        """Put the states on `device`. The way to the host waits."""
        there = torch.empty(0, device=device).device  # with its number
        for part in self._parts:
            part.to(there)
        self.__dict__["_device"] = there
        self._ledger.computed.clear()

    # Parts.

    def _watched(self) -> Sequence[Watched]:
        return [(part, part.names) for part in self._parts]

    def _follow(self, args: Sequence[Any], device: torch.device) -> torch.device:
        """Move states of the host to the accelerator that holds one of `args`."""
        accelerator = device_of(args)
        if accelerator is None or device.type != "cpu":
            return device
        for part in self._parts:
            part.to(accelerator)
        return accelerator

    def _take_back(self) -> None:
        """Stop sharing statistics with the members of a collection, which keep them as they are."""
        lender, self.__dict__["_lender"] = self._lender, None
        self.__dict__["_ledger"] = copy.deepcopy(self._ledger)
        for name, part in list(self.statistics()):
            own = copy.deepcopy(part)
            own.names = (type(self).__name__,)
            self.use(name, own)
        lender.forget_plan()

    def _absorb(self, others: Iterable[tuple[str, Statistic]]) -> None:
        """Add what statistics of the same names hold."""
        if self._lender is not None:
            self._take_back()
        for name, other in list(others):
            if name in self._names:
                part = self._parts[self._names.index(name)]
                part.absorb(other)
                part.told.count += other.told.count
            else:  # The first batch decides what it is computed from, and there was none here.
                self.use(name, copy.deepcopy(other))

    def _holders(self) -> Sequence[Holder]:
        """What else the result depends on: states that classes written for TorchMetrics declare."""
        return ()

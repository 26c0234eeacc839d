"""The base of every metric: what TorchMetrics' users call, over statistics that never make the host wait."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gapless.metrics import distributed
from gapless.metrics.batch import Batch, device_of, ready
from gapless.metrics.everywhere import Everywhere
from gapless.metrics.faults import check, check_on_host, deliver_on_host
from gapless.metrics.operators import Operators
from gapless.metrics.reading import Later, Reading, Watch
from gapless.metrics.statistic import State, Statistic, swap

FIXED = ("higher_is_better", "is_differentiable", "full_state_update")


class Ledger:
    """What the host knows about a metric's updates."""

    def __init__(self) -> None:
        self.updated = False
        self.count = 0
        self.computed: dict[int, Any] = {}

    def updated_once(self, compiling: bool) -> None:
        """There was an update; in a compiled function its number is not known."""
        self.updated = True
        if self.computed:
            self.computed.clear()
        if not compiling:
            self.count += 1

    def start_again(self) -> None:
        """There was a reset."""
        self.updated = False
        self.count = 0
        self.computed.clear()


class Metric(Operators, nn.Module):
    """A number (or several) over a stream of batches.

    A subclass declares its statistics with :meth:`use`, passes what its ``update`` is given to
    :meth:`observe`, and says in :meth:`value` how the result follows from the statistics' states.

    Args:
        compute_on_cpu: accepted and of no effect; states stay where the inputs are.
        dist_sync_on_step: whether the batch value of ``forward`` is taken over all processes.
        process_group: the processes to reduce over, as a group or a one-dimensional ``DeviceMesh``; None for
            all.
        dist_sync_fn: accepted and of no effect; states are reduced, not gathered.
        distributed_available_fn: says whether there are other processes; None to ask ``torch.distributed``.
        sync_on_compute: whether ``compute`` reduces over all processes.
        compute_with_cache: whether ``compute`` may return the last value reduced over processes again, so
            that it is no collective where nothing was updated.
    """

    higher_is_better: bool | None = None
    is_differentiable: bool | None = None
    full_state_update: bool | None = False
    plot_lower_bound: float | None = None
    plot_upper_bound: float | None = None
    plot_legend_name: str | None = None
    direct = False
    """Whether a collection must call ``update``, because statistics alone do not make the metric."""

    _ledger: Ledger
    _watch: Watch
    _parts: list[Statistic]
    _names: list[str]
    _lender: Any
    _local: list[State] | None
    _persistent: bool
    _dtype: torch.dtype
    sync_on_compute: bool
    dist_sync_on_step: bool
    compute_with_cache: bool

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._set_options(options)
        own = self.__dict__
        own["_parts"] = []
        own["_names"] = []
        own["_lender"] = None
        own["_ledger"] = Ledger()
        own["_watch"] = Watch()
        own["_local"] = None
        own["_persistent"] = False
        own["_dtype"] = torch.get_default_dtype()

    def _set_options(self, options: dict[str, Any]) -> None:
        flags = {"compute_on_cpu": False, "dist_sync_on_step": False, "sync_on_compute": True}
        for name, default in {**flags, "compute_with_cache": True}.items():
            value = options.pop(name, default)
            if not isinstance(value, bool):
                article = "an" if name in ("compute_on_cpu", "dist_sync_on_step") else "a"
                raise ValueError(f"Expected keyword argument `{name}` to be {article} `bool` but got {value}")
            setattr(self, name, value)
        self.process_group = options.pop("process_group", None)
        self.dist_sync_fn = options.pop("dist_sync_fn", None)
        if self.dist_sync_fn is not None and not callable(self.dist_sync_fn):
            raise ValueError(
                "Expected keyword argument `dist_sync_fn` to be an callable function "
                f"but got {self.dist_sync_fn}"
            )
        available: Callable[[], bool] | None = options.pop("distributed_available_fn", None)
        self.distributed_available_fn = available or distributed.available
        if options:
            raise ValueError(
                f"Unexpected keyword arguments: {', '.join(f'`{name}`' for name in sorted(options))}"
            )

    # For subclasses.

    def use(self, name: str, statistic: Statistic) -> None:
        """Compute from `statistic`, found as the attribute `name`."""
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
        on_host = device.type == "cpu"
        if on_host and not ready(args, device):
            device = self._follow(args, device)
            on_host = device.type == "cpu"
        batch = Batch(args, device)
        compiling = torch.compiler.is_compiling()
        at_once = on_host and not compiling
        own["_ledger"].updated_once(compiling)
        for part in parts:
            part.count(batch)
            if part.checked:
                deliver_on_host(part, (type(self).__name__,)) if at_once else part.note()

    def value(self) -> Any:
        """The result, as new tensors on the device, from the statistics' states."""
        raise NotImplementedError

    # What users call.

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch. The host does not wait."""
        raise NotImplementedError

    def compute(self) -> Any:
        """The result over every batch since the last reset, on the device. The host does not wait.

        With several processes it is the result over all of them, and a collective operation.
        """
        if not self._ledger.updated and not torch.compiler.is_compiling():
            warnings.warn(
                f"`compute` of {type(self).__name__} was called before `update`: a result of no data",
                UserWarning,
                stacklevel=2,
            )
        self._watch.look(self._watched())
        if not (self.sync_on_compute and self._local is None and self._distributed()):
            return squeezed(self.value())
        known = self._ledger.computed
        if id(self) not in known or not self.compute_with_cache:
            with self.sync_context():
                known[id(self)] = squeezed(self.value())
        return copy.copy(known[id(self)])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Add a batch and return the result over this batch alone, from the same pass over the data."""
        if self._lender is not None:
            self._take_back()
        if device_of(args) is not None:
            self._follow(args, self.device)
        with self.batch_only():
            self.update(*args, **kwargs)
            if self.dist_sync_on_step and self._distributed():
                with self.sync_context():
                    found = self.value()
            else:
                found = self.value()
        return squeezed(found)

    def reset(self) -> None:
        """Back to no data, in the same storages."""
        if self._lender is not None:
            self._take_back()
        self._watch.look(self._watched())
        for part in self._parts:
            part.reset()
        self._ledger.start_again()

    def read(self, async_op: bool = False) -> Reading:
        """Start to bring the result to the host and return at once, with a :class:`~.reading.Reading`.

        Bad values that updates met come with it. With several processes and `async_op` nothing waits for the
        others either: the reduction is started, and the result follows from it once they have answered.
        """
        if async_op and self.sync_on_compute and self._local is None and self._distributed():
            self._watch.forget()
            whole = Everywhere([self], async_op=True)
            return Later(Reading(None, self._watched()), whole, lambda: squeezed(self.value()))
        found = self.compute()
        self._watch.forget()
        return Reading(found, self._watched())

    def check(self) -> None:
        """Raise or warn about bad values that updates met. On a GPU this waits for the device.

        Raises:
            RuntimeError: a value was bad and the metric was to take that for an error.
        """
        check(self._watched())

    def _watched(self) -> list[tuple[Statistic, tuple[str, ...]]]:
        return [(part, (type(self).__name__,)) for part in self._parts]

    def clone(self) -> Metric:
        """A copy that shares nothing with this metric."""
        return copy.deepcopy(self)

    @property
    def device(self) -> torch.device:
        """Where the states are."""
        parts = self._parts
        return parts[0].device if parts else torch.get_default_device()

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of results."""
        return self._dtype

    @property
    def update_called(self) -> bool:
        """Whether there has been data since the last reset."""
        return self._ledger.updated

    @property
    def update_count(self) -> int:
        """Updates since the last reset that Python ran; those in a compiled function or a CUDA graph are not
        counted.
        """
        return self._ledger.count

    @property
    def metric_state(self) -> dict[str, Tensor]:
        """The states by name."""
        return {f"{n}.{slot}": value for n, part in self.statistics() for slot, value in part.saved().items()}

    def statistics(self) -> Iterator[tuple[str, Statistic]]:
        """The statistics this metric is computed from, by name."""
        return zip(self._names, self._parts, strict=True)

    def set_dtype(self, dtype: torch.dtype) -> Metric:
        """Give results the floating-point type `dtype`. Sums keep their own, wider type."""
        self.__dict__["_dtype"] = dtype
        return self

    # Processes.

    def sync(
        self,
        dist_sync_fn: Any = None,
        process_group: Any = None,
        should_sync: bool = True,
        distributed_available: Callable[[], bool] | None = None,
    ) -> None:
        """Put the states reduced over all processes in place of the local ones, until :meth:`unsync`."""
        if self._local is not None:
            raise RuntimeError(f"{type(self).__name__} has been synced already: call `unsync` first")
        available = distributed_available or self.distributed_available_fn
        if not should_sync or not available():
            return
        reduced = distributed.reduce(self._parts, process_group or self.process_group)
        self.__dict__["_local"] = swap(self._parts, reduced)

    def unsync(self, should_unsync: bool = True) -> None:
        """Put the local states back."""
        if not should_unsync:
            return
        if self._local is None:
            raise RuntimeError(f"{type(self).__name__} has not been synced: there is nothing to undo")
        swap(self._parts, self._local)
        self.__dict__["_local"] = None

    @contextmanager
    def sync_context(self, **options: Any) -> Iterator[None]:
        """The states of all processes inside the block, the local ones after it."""
        self.sync(**options)
        try:
            yield
        finally:
            if self._local is not None:
                self.unsync()

    def _distributed(self) -> bool:
        return bool(self.distributed_available_fn())

    # Parts.

    @contextmanager
    def batch_only(self) -> Iterator[None]:
        """Updates and values inside the block are of one batch, which is added to the rest at its end."""
        for part in self._parts:
            part.begin_batch()
        try:
            yield
        finally:
            for part in self._parts:
                part.end_batch()
        if not torch.compiler.is_compiling():
            check_on_host(self._watched())

    def _follow(self, args: tuple[Any, ...], device: torch.device) -> torch.device:
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
            self.use(name, copy.deepcopy(part))
        lender.forget_plan()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Metric:
        super()._apply(fn, recurse)
        for part in self._parts:
            part.to(fn(torch.empty(0, device=part.device)).device)
        return self

    # Saving.

    def persistent(self, mode: bool = False) -> None:
        """Whether ``state_dict`` holds the states."""
        self.__dict__["_persistent"] = mode

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._persistent:
            for name, value in self.metric_state.items():
                destination[prefix + name] = value if keep_vars else value.detach().clone()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        missing = args[2]
        for name, part in self.statistics():
            found = {slot: state_dict.pop(f"{prefix}{name}.{slot}", None) for slot in part.saved_names()}
            lost = [slot for slot in part.slots if found[slot] is None]
            if not lost:
                part.load({slot: value for slot, value in found.items() if value is not None})
                self._ledger.updated_once(False)
            elif self._persistent:
                missing += [f"{prefix}{name}.{slot}" for slot in lost]
        super()._load_from_state_dict(state_dict, prefix, *args)

    # Attributes.

    def __setattr__(self, name: str, value: Any) -> None:
        if name in FIXED:
            raise RuntimeError(f"Can't change const `{name}`.")
        super().__setattr__(name, value)


def squeezed(value: Any) -> Any:
    """`value`, its tensors of one element without dimensions; how many there are is known to the host."""
    if isinstance(value, Tensor):
        return value.squeeze() if value.dim() and value.numel() == 1 else value
    if isinstance(value, dict):
        return {name: squeezed(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(squeezed(one) for one in value)
    return value

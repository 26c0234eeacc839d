"""The base of every metric: TorchMetrics' interface, over statistics that never make the host wait."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from gapless.metrics import declared, distributed, exposed, wrapping
from gapless.metrics.batch import device_of, has_graph, move_to_device
from gapless.metrics.checks import user_error
from gapless.metrics.core import Core
from gapless.metrics.describing import inherit_descriptions
from gapless.metrics.faults import check_after_update, deliver_from_other_processes
from gapless.metrics.global_states import GlobalStates, SwappedStates
from gapless.metrics.incoming import check_mergeable, load_or_explain, state_readers, statistics_from_dict
from gapless.metrics.operators import Operators
from gapless.metrics.reading import CheckedReading, PendingReading
from gapless.metrics.wrapping import squeeze_result
from gapless.transfer import Reading
from gapless.trees import map_tensors

Self_ = TypeVar("Self_", bound="Metric")
CONSTANT_ATTRIBUTES = (
    "higher_is_better",
    "is_differentiable",
    "full_state_update",
    "plot_lower_bound",
    "plot_upper_bound",
    "plot_legend_name",
)
"""Class attributes that may not be set on an object."""


class Metric(Operators, Core, nn.Module):
    """A number (or several) over a stream of batches, with TorchMetrics' interface.

    A subclass registers its statistics with :meth:`use`, passes the arguments of ``update`` to
    :meth:`observe`, and computes the result from the statistics' states in :meth:`value`. A class written for
    TorchMetrics (``add_state``, ``update``, ``compute``) works as it does there.

    Args:
        compute_on_cpu: whether states that are lists are moved to the CPU after each update.
        dist_sync_on_step: whether the batch value of ``forward`` is taken over all processes.
        process_group: the processes to reduce over, as a group or a one-dimensional ``DeviceMesh``; None for
            all.
        dist_sync_fn: gathers a tensor from all processes, called as ``dist_sync_fn(tensor, group=…)``; None
            to reduce all states together.
        distributed_available_fn: whether there are other processes; None to ask ``torch.distributed``.
        sync_on_compute: whether ``compute`` reduces over all processes.
        compute_with_cache: whether ``compute`` may return the last value again if there was no update, which
            then needs no collective.
    """

    higher_is_better: bool | None = None
    is_differentiable: bool | None = None
    full_state_update: bool | None = None
    plot_lower_bound: float | None = None
    plot_upper_bound: float | None = None
    plot_legend_name: str | None = None
    drawn_as = "values"
    """How `plot` draws a result: ``"values"``, ``"matrix"``, or ``"curve"``."""
    direct = False
    """Whether a collection must call ``update``, because statistics alone do not make the metric."""
    abstract: ClassVar[bool]
    more_arguments: ClassVar[tuple[str, ...]] = ()
    """Names of arguments that the constructor takes in ``**kwargs``."""
    torchmetrics_file: ClassVar[str | None] = ""
    """TorchMetrics' module of the metric if named otherwise; None if TorchMetrics lacks the metric."""
    torchmetrics_slots: ClassVar[tuple[tuple[str, ...], ...] | None] = None
    """TorchMetrics' states: name, slot here, and how it differs: ``"int64"`` (else it is of the metric's
    dtype), ``"row"`` (at least one row), ``"negative"`` (opposite sign)."""
    __jit_unused_properties__: ClassVar[list[str]] = []
    __jit_ignored_attributes__ = wrapping.OwnAttributes()

    compute_on_cpu: bool
    dist_sync_on_step: bool
    sync_on_compute: bool
    compute_with_cache: bool
    distributed_available_fn: Callable[[], bool]
    _own_defaults: dict[str, Any]
    _own_reductions: dict[str, Any]
    _own_persistent: dict[str, bool]
    _cache: SwappedStates | None
    _is_synced: bool
    _is_unwrapped: bool
    _is_persistent: bool
    _forward_cache: Any
    _computes_itself: ClassVar[bool] = False
    """Whether a subclass defines ``compute``."""

    def __init_subclass__(cls, abstract: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if abstract:  # a base class, not a metric: see `gapless.metrics.rooms`
            cls.abstract = True
        wrapping.adapt(cls, Metric)
        inherit_descriptions(cls, Metric)

    def __init__(self, **options: Any) -> None:
        nn.Module.__init__(self)
        Core.__init__(self, options.pop("process_group", None))
        self._set_options(options)
        self.__dict__.update(_own_defaults={}, _own_reductions={}, _own_persistent={})
        self.__dict__.update(_is_unwrapped=False, _updating=False, _enable_grad=False, _is_persistent=False)
        self.__dict__.update(_is_synced=False, _cache=None, _forward_cache=None)

    def _set_options(self, options: dict[str, Any]) -> None:
        flags = {"compute_on_cpu": False, "dist_sync_on_step": False, "sync_on_compute": True}
        for name, default in {**flags, "compute_with_cache": True}.items():
            value = options.pop(name, default)
            if not isinstance(value, bool):
                article = "an" if name in ("compute_on_cpu", "dist_sync_on_step") else "a"
                raise ValueError(f"Expected keyword argument `{name}` to be {article} `bool` but got {value}")
            setattr(self, name, value)
        self.dist_sync_fn = gather = options.pop("dist_sync_fn", None)
        if gather is not None and not callable(gather):
            words = "Expected keyword argument `dist_sync_fn` to be an callable function"
            raise ValueError(f"{words} but got {gather}")
        available: Callable[[], bool] | None = options.pop("distributed_available_fn", None)
        self.distributed_available_fn = available or distributed.is_available
        if options:
            raise ValueError(
                f"Unexpected keyword arguments: {', '.join(f'`{name}`' for name in sorted(options))}"
            )

    # States that a subclass declares.

    def add_state(
        self,
        name: str,
        default: list[Any] | Tensor,
        dist_reduce_fx: str | Callable[[Any], Any] | None = None,
        persistent: bool = False,
    ) -> None:
        """Declare the state `name`, an attribute that ``reset`` sets to `default`.

        Args:
            name: the attribute.
            default: a tensor, or an empty list to which updates append tensors.
            dist_reduce_fx: how states of several processes, or of a batch and those before, are merged:
                ``"sum"``, ``"mean"``, ``"max"``, ``"min"``, ``"cat"``, a function of the stacked tensors (of
                the list, for lists), or None to leave them stacked.
            persistent: whether it is part of the ``state_dict``.

        Raises:
            ValueError: the default or the reduction is none of these.
        """
        declared.check_default(default)
        reduction = declared.reduction_of(dist_reduce_fx)
        if isinstance(default, Tensor):
            default = default.contiguous()
        setattr(self, name, default)
        self._own_defaults[name] = copy.deepcopy(default)
        self._own_persistent[name] = persistent
        self._own_reductions[name] = reduction

    @property
    def _defaults(self) -> dict[str, Any]:
        own = self._own_defaults
        return {**own, **exposed.defaults(self)} if self._parts else own

    @property
    def _reductions(self) -> dict[str, Any]:
        own = self._own_reductions
        return {**own, **exposed.reductions(self)} if self._parts else own

    @property
    def _persistent(self) -> dict[str, bool]:
        own = self._own_persistent
        return {**own, **dict.fromkeys(exposed.defaults(self), self._is_persistent)} if self._parts else own

    # What users call.

    def compute(self) -> Any:
        """Return the result over every batch since the last reset, on the device, without waiting.

        With several processes it is the result over all of them, and this is a collective operation.
        """
        if self._is_unwrapped:
            return squeeze_result(self.value())
        wrapping.warn_of_no_data(self)
        self._watch.look(self._named_statistics())
        if not (self.sync_on_compute and not self._is_synced and self._is_distributed()):
            return squeeze_result(self.value())
        cache = self.update_history.computed
        if id(self) not in cache or not self.compute_with_cache:
            with self.sync_context(distributed_available=lambda: True):
                cache[id(self)] = squeeze_result(self.value())
            deliver_from_other_processes(self._named_statistics())
        return copy.copy(cache[id(self)])

    @torch.jit.unused
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Add a batch and return the result over this batch alone, from the same pass over the data."""
        if self._is_synced:
            words = "The Metric shouldn't be synced when performing ``forward``: call ``unsync`` first"
            raise user_error(RuntimeError, words)
        self.stop_sharing()
        if self._declaring_metrics():
            result = wrapping.forward_declared(self, args, kwargs)
        else:
            result = self._forward_statistics(args, kwargs)
        # The cached result must keep no graph alive, and must be copyable.
        self.__dict__["_forward_cache"] = map_tensors(result, Tensor.detach)
        return result

    def _forward_statistics(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if device_of(args) is not None:
            self._move_to_inputs(args, self.device)
        with self.batch_only(graph=self.keeps_graph((*args, *kwargs.values()))):
            self.update(*args, **kwargs)
            if self.dist_sync_on_step:
                with self.sync_context():
                    return self._squeezed_result()
            return self._squeezed_result()

    def _result(self) -> Any:
        """Return the result from the states as they are, by a subclass's ``compute`` or by :meth:`value`."""
        if not self._computes_itself:
            return self.value()
        with wrapping.without_wrapper(self):
            return self.compute()

    def _squeezed_result(self) -> Any:
        return squeeze_result(self._result())

    def reset(self) -> None:
        """Remove all data, in the same storages."""
        if self._is_synced:
            self.unsync()
        try:
            super().empty()
        finally:
            for holder in self._declaring_metrics():
                declared.reset_states(holder)
            self.__dict__["_forward_cache"] = None

    def read(self, async_op: bool = False) -> Reading:
        """Start copying the result to the host and return a :class:`~.reading.Reading` at once.

        The reading also reports bad values. With several processes and `async_op` it does not wait for the
        others either: the reduction is started, and the result is computed when it has completed.
        """
        if async_op and self.sync_on_compute and not self._is_synced and self._is_distributed():
            faults = CheckedReading(None, self._named_statistics())
            return PendingReading(faults, GlobalStates([self], async_op=True), self._squeezed_result)
        return super().read()

    def clone(self) -> Metric:
        """Return a copy that shares nothing with this metric."""
        return copy.deepcopy(self)

    def plot(self, val: Any = None, ax: Any = None, **options: Any) -> Any:
        """Draw `val`, one or more results (None for that of ``compute``), with Matplotlib.

        Args:
            val: the results; only one if it is a curve or a matrix.
            ax: the axes to draw in; None for a new figure.
            options: for curves `score`, a number for the legend or True for the area; for matrices
                `add_text`, `labels` and `cmap`.

        Returns:
            The figure and its axes.
        """
        from gapless.metrics import plotting

        result = options.pop("curve", val)
        result = self.compute() if result is None else result
        return plotting.PLOTTERS[self.drawn_as](self, result, ax, **options)

    @property
    def update_called(self) -> bool:
        """Whether there was an update since the last reset."""
        return self.update_history.updated

    @property
    def update_count(self) -> int:
        """Updates since the last reset, without those in a compiled function or a CUDA graph."""
        return self.update_history.count

    _update_called = update_called

    @property
    def _update_count(self) -> int:
        return self.update_history.count

    @_update_count.setter
    def _update_count(self, count: int) -> None:
        self.update_history.count = count
        self.update_history.updated = count > 0

    @property
    def _computed(self) -> Any:
        """The cached result, until the next update; None if there is none."""
        return self.update_history.computed.get(id(self))

    @_computed.setter
    def _computed(self, value: Any) -> None:
        if value is None:
            self.update_history.computed.pop(id(self), None)
        else:
            self.update_history.computed[id(self)] = value

    @property
    def metric_state(self) -> dict[str, Any]:
        """The states by name."""
        states = {name: getattr(self, name) for name in self._own_defaults}
        return {**states, **{n: v for n, v in self._counted_state().items() if not n.endswith(".clean")}}

    def _counted_state(self) -> dict[str, Tensor]:
        parts = [(name, part.saved_state()) for name, part in self.statistics()]
        return {f"{name}.{slot}": value for name, state in parts for slot, value in state.items()}

    def set_dtype(self, dst_type: torch.dtype | str) -> Metric:
        """Set the floating-point type of results and declared states, but not of statistics."""
        dtype = torch.empty(0).type(dst_type).dtype
        self.__dict__["_dtype"] = dtype
        declared.transform_states(self, lambda value: value.to(dtype) if value.is_floating_point() else value)
        for child in self.modules():
            if child is not self and isinstance(child, Metric):
                child.set_dtype(dtype)
        return self

    # Parts.

    def keeps_graph(self, args: Iterable[Any]) -> bool:
        """Whether gradients may be taken of the result over a batch of `args`."""
        return bool(self.is_differentiable) and has_graph(args)

    @contextmanager
    def batch_only(self, graph: bool = False) -> Iterator[None]:
        """Inside the block, updates and values concern one batch only; it is added to the rest at the end.

        With `graph`, gradients can be taken of values.
        """
        for part in self._parts:
            part.begin_batch(graph)
        try:
            yield
        finally:
            for part in self._parts:
                part.end_batch()
        if not torch.compiler.is_compiling():
            check_after_update(self._named_statistics())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Metric:
        super()._apply(fn, recurse)
        device = fn(torch.empty(0, device=self.device)).device
        super().move(device)
        declared.transform_states(self, lambda value: move_to_device(value, device))
        self.__dict__["_forward_cache"] = map_tensors(self._forward_cache, lambda value: value.to(device))
        return self

    # Other metrics, other processes.

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add the data of another metric of this class, given itself or as its ``metric_state``.

        Raises:
            ValueError: it is not the state of such a metric.
            RuntimeError: states of this metric cannot be merged.
        """
        self._reduce_states(check_mergeable(self, incoming_state))
        self.record_update(counted=False)

    def _reduce_states(self, incoming: Mapping[str, Any] | Metric) -> None:
        parts = (
            incoming.statistics() if isinstance(incoming, Metric) else statistics_from_dict(self, incoming)
        )
        self._absorb(parts)
        if self._own_defaults:
            states = incoming.metric_state if isinstance(incoming, Metric) else incoming
            declared.merge_states(self, states, self.update_count)

    def sync(
        self,
        dist_sync_fn: Any = None,
        process_group: Any = None,
        should_sync: bool = True,
        distributed_available: Callable[[], bool] | None = None,
    ) -> None:
        """Put the states reduced over all processes in place of the local ones, until :meth:`unsync`."""
        if self._is_synced and should_sync:
            raise user_error(RuntimeError, "The Metric has already been synced. Call ``unsync`` first")
        available = distributed_available or self.distributed_available_fn
        if not should_sync or not available():
            return
        held = GlobalStates([self], group=process_group, gather=dist_sync_fn).swap_in()
        self.__dict__.update(_cache=held, _is_synced=True)

    def unsync(self, should_unsync: bool = True) -> None:
        """Put the local states back."""
        if not should_unsync:
            return
        if not self._is_synced:
            raise user_error(RuntimeError, "The Metric has already been un-synced.")
        if self._cache is None:
            raise RuntimeError("The internal cache should exist to unsync the Metric.")
        self._cache.release()
        self.__dict__.update(_cache=None, _is_synced=False)

    @contextmanager
    def sync_context(self, should_unsync: bool = True, **options: Any) -> Iterator[None]:
        """Use all processes' states inside the block, then local ones (if `should_unsync`); `options`
        as in `sync`.
        """
        was_synced = self._is_synced
        self.sync(**options)
        try:
            yield
        finally:
            if should_unsync and self._is_synced and not was_synced:
                self.unsync()

    def _sync_dist(self, dist_sync_fn: Any = None, process_group: Any = None) -> None:
        """Put the declared states over all processes in place of the local ones."""
        group = distributed.process_group_of(process_group or self.process_group)
        declared.swap_states(self, declared.reduce(self, group, dist_sync_fn))

    def _is_distributed(self) -> bool:
        return bool(self.distributed_available_fn())

    def _declaring_metrics(self) -> Sequence[Metric]:
        """Return the metrics with declared states that the result depends on."""
        return [self] if self._own_defaults else ()

    # Saving.

    def persistent(self, mode: bool = False) -> None:
        """Set whether ``state_dict`` holds the states."""
        self.__dict__["_is_persistent"] = mode
        self._own_persistent.update(dict.fromkeys(self._own_persistent, mode))

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        states: dict[str, Any] = {
            name: getattr(self, name) for name in self._own_defaults if self._own_persistent[name]
        }
        if self._is_persistent:
            states.update(self._counted_state())
        for name, value in states.items():
            destination[prefix + name] = value if keep_vars else declared.copy_state(value)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        missing = args[2]
        for name in self._own_defaults:
            if prefix + name in state_dict:
                setattr(self, name, state_dict.pop(prefix + name))
                self.record_update(counted=False)
        if any(read(self, state_dict, prefix, args[4]) for read in state_readers):
            return
        for name, part in self.statistics():
            slots = {s: state_dict.pop(f"{prefix}{name}.{s}", None) for s in part.saved_state_names()}
            lost = [slot for slot in part.saved_slots if slots[slot] is None]
            if not lost:
                load_or_explain(part, slots, args[4], f"{prefix}{name}")
                self.record_update(counted=True)
            elif self._is_persistent:
                missing += [f"{prefix}{name}.{slot}" for slot in lost]
        super()._load_from_state_dict(state_dict, prefix, *args)

    def type(self: Self_, dst_type: Any) -> Self_:
        """Return the metric unchanged; see :meth:`set_dtype`."""
        return self

    def float(self: Self_) -> Self_:
        """Return the metric unchanged; see :meth:`set_dtype`."""
        return self

    double = half = float

    def _parameters_of_update(self) -> list[inspect.Parameter]:
        return list(inspect.signature(self.update).parameters.values())

    def _filter_kwargs(self, **kwargs: Any) -> dict[str, Any]:
        """Return the keyword arguments that ``update`` accepts."""
        return wrapping.select_known(self._parameters_of_update(), kwargs) if kwargs else kwargs

    # Attributes.

    def __getattr__(self, name: str) -> Any:
        if "." in name:
            return exposed.copy_state(self, name)
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in CONSTANT_ATTRIBUTES:
            raise RuntimeError(f"Can't change const `{name}`.")
        if "." in name and exposed.write_state(self, name, value):
            return
        super().__setattr__(name, value)


Metric.__jit_unused_properties__ = wrapping.properties_of(Metric)
